"""Vocabularies: values that were counted have the rows that plain Python gives them, in any format, in files and in a server's table."""

from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import htrain
from htrain.data import START, Malformed, open_data
from htrain.data.counting import Counts
from htrain.data.identity import identity_of
from htrain.data.source import files_of
from htrain.data.vocabulary import vocabulary_of
from htrain.errors import DataError, UsageError

SCHEMA = """label: y
inputs:
  sparse: {kind: ids, columns: [user, item], rows: [vocabulary, 7], vocabulary: v.parquet}
  history: {kind: padded, column: seen, length: 3, vocabulary: v.parquet}
  tags: {kind: bag, column: tags, vocabulary: v.parquet}
"""
USERS = [17, 3, None, 17, 5, 17, 3, 10**17, -4]
SEEN = [[7, 8, 9, 9, 9], [], [8], [8, 7], [1], [8], [], [4], [4]]
TAGS = [["b"], ["a", "b"], [], ["c", "b"], ["a"], [], [], ["é", "b"], ["a"]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same rows in Parquet and in CSV, beside their schema."""
    count = len(USERS)
    columns: dict[str, Any] = {"y": [0, 1, 0] * (count // 3), "user": USERS, "item": list(range(count))}
    pq.write_table(pa.table(columns | {"seen": SEEN, "tags": TAGS}), tmp_path / "a.parquet", row_group_size=4)
    words = {"seen": [" ".join(map(str, s)) for s in SEEN], "tags": ["|".join(t) for t in TAGS]}
    pacsv.write_csv(pa.table(columns | words), tmp_path / "a.csv", pacsv.WriteOptions(quoting_style="none"))
    (tmp_path / "s.yaml").write_text(SCHEMA)
    return tmp_path


def uri_of(form: str, folder: Path) -> str:
    return f"{form}:{folder}/a.{form}?schema={folder}/s.yaml"


def values_of(folder: Path, column: str) -> list[tuple[str, int]]:
    table = pq.read_table(folder / "v.parquet").to_pylist()
    return [(row["value"], row["count"]) for row in table if row["column"] == column]


def row_of(value: Any, kept: list[str]) -> int:
    """The rule of docs/how-to/export.md."""
    if value is None:
        return 0
    return 2 + kept.index(str(value)) if str(value) in kept else 1


def columns_of(uri: str) -> dict[str, np.ndarray]:
    data = open_data(uri)
    return next(
        data.batches(batch_size=99, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed())
    ).columns


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_values_have_the_rows_of_plain_python_in_any_format(form: str, folder: Path) -> None:
    told = htrain.vocabulary(uri_of(form, folder), out=folder / "v.parquet", min_count=2)
    assert values_of(folder, "seen") == [("8", 4), ("4", 2), ("7", 2)]  # of 9 only what is not cut off counts
    assert values_of(folder, "user") == [("17", 3), ("3", 2)]
    assert values_of(folder, "tags") == [("b", 4), ("a", 3)]
    found = {each.column: each for each in told.columns}
    assert [found["user"].distinct, found["user"].rows, found["user"].missing, found["user"].values_kept] == [
        5,
        4,
        1,
        5,
    ]
    columns = columns_of(uri_of(form, folder))
    assert columns["sparse"].tolist() == [[row_of(u, ["17", "3"]), item % 7] for item, u in enumerate(USERS)]
    padded = [[row_of(v, ["8", "4", "7"]) for v in (*values, None, None, None)][:3] for values in SEEN]
    assert columns["history"].tolist() == padded
    assert columns["tags"].tolist() == [row_of(tag, ["b", "a"]) for tags in TAGS for tag in tags]
    assert [item.rows for item in open_data(uri_of(form, folder)).schema.inputs] == [(4, 7), (5,), (4,)]


def test_string_views_are_counted_as_any_text(folder: Path) -> None:
    htrain.vocabulary(uri_of("parquet", folder), out=folder / "v.parquet")
    wanted = (folder / "v.parquet").read_bytes()
    table = pq.read_table(folder / "a.parquet")
    table = table.set_column(4, "tags", pa.array(TAGS, pa.list_(pa.string_view())))
    table = table.set_column(1, "user", pa.array([None if u is None else str(u) for u in USERS], pa.string_view()))
    pq.write_table(table, folder / "a.parquet")
    htrain.vocabulary(uri_of("parquet", folder), out=folder / "v.parquet")
    assert (folder / "v.parquet").read_bytes() == wanted


def test_a_server_gets_the_rows_of_training_whatever_type_its_columns_have(folder: Path) -> None:
    htrain.vocabulary(uri_of("csv", folder), out=folder / "v.parquet")
    wanted = columns_of(uri_of("csv", folder))["sparse"].tolist()
    lists = {"item": pa.array(range(len(USERS))), "seen": SEEN, "tags": TAGS}
    exact = [None if user == 10**17 else user for user in USERS]
    for kind, users in (("string", USERS), ("int64", USERS), ("float64", exact), ("dictionary", USERS)):
        column = pa.array([None if u is None else str(u) for u in users])
        column = column.dictionary_encode() if kind == "dictionary" else column.cast(kind)
        found = htrain.features(pa.table({"user": column, **lists}), schema=folder / "s.yaml")["sparse"].tolist()
        rows = zip(USERS, users, wanted, strict=True)
        assert found == [[0 if there is None else row[0], row[1]] for _, there, row in rows], kind


def test_of_many_the_most_frequent_are_kept_and_columns_can_be_counted_as_one(folder: Path) -> None:
    htrain.vocabulary(uri_of("csv", folder), out=folder / "v.parquet", most=1)
    assert values_of(folder, "user") == [("17", 3)]
    uri = uri_of("parquet", folder)
    told = htrain.vocabulary(uri, out=folder / "v.parquet", columns=["item", "seen"], together=[["item", "seen"]])
    every = Counter([*range(len(USERS)), *(value for values in SEEN for value in values[:3])])
    wanted = sorted(((str(value), count) for value, count in every.items()), key=lambda e: (-e[1], e[0]))
    assert values_of(folder, "item") == values_of(folder, "seen") == wanted
    assert [each.distinct for each in told.columns] == [9, 5]


words = st.one_of(st.text(max_size=4), st.integers(-(10**18), 10**18).map(str), st.none())


@settings(max_examples=60, deadline=None)
@given(chunks=st.lists(st.lists(words, max_size=12), max_size=6), asked=st.lists(words, max_size=12))
def test_counts_and_rows_agree_with_plain_python(chunks: list[list[str | None]], asked: list[str | None]) -> None:
    counts = Counts()
    for chunk in chunks:
        counts.add(pa.array(chunk, pa.string()))
        counts.narrow(lambda table: table)
    every = Counter(value for chunk in chunks for value in chunk if value)
    assert dict(zip(counts.table["value"].to_pylist(), counts.table["count"].to_pylist(), strict=True)) == every
    assert counts.missing == sum(not value for chunk in chunks for value in chunk)
    kept = list(every)
    found = vocabulary_of(pa.array(kept, pa.string())).ids(pa.array(asked, pa.string()))
    assert found.tolist() == [row_of(value or None, kept) for value in asked]


def test_a_vocabulary_is_a_file_of_the_data(folder: Path) -> None:
    uri, out = uri_of("csv", folder), folder / "v.parquet"
    htrain.vocabulary(uri, out=out)
    before = identity_of(uri)
    htrain.pack(uri, out=folder / "a.packed")
    packed = columns_of(f"packed:{folder}/a.packed")
    for name, column in columns_of(uri).items():
        np.testing.assert_array_equal(packed[name], column)
    htrain.vocabulary(uri, out=out, min_count=2)
    assert "'v.parquet' has " in before.difference(identity_of(uri))
    with pytest.raises(DataError, match=r"a\.packed: was packed from .*v\.parquet as it was before it changed"):
        open_data(f"packed:{folder}/a.packed")
    table = pq.read_table(out)
    pq.write_table(table.take(list(range(len(table)))[::-1]), out)  # the same values in other rows
    assert "'v.parquet' has " in before.difference(identity_of(uri))


def test_a_vocabulary_counts_a_part_by_time_and_no_part_that_it_would_change(folder: Path) -> None:
    (folder / "s.yaml").write_text(f"{SCHEMA}time: {{column: item, unit: s}}\n")
    uri = uri_of("csv", folder)
    with pytest.raises(DataError, match="which rows test=SHARE holds out follows from ids, and they from the voc"):
        htrain.vocabulary(f"{uri}&test=0.5", out=folder / "v.parquet")
    told = htrain.vocabulary(f"{uri}&test_from=1970-01-01T00:00:05", out=folder / "v.parquet")
    assert told.examples == 5
    assert values_of(folder, "user") == [("17", 2), ("3", 1), ("5", 1)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("columns: [user]", "inputs.a: rows: say how many the tables have, or vocabulary: FILE"),
        ("columns: [user], rows: 3, vocabulary: v.parquet", "inputs.a: vocabulary: has no effect beside rows"),
        ("columns: [user], rows: [vocabulary]", "inputs.a: rows: say how many the tables have, or vocabulary: FILE"),
        ("columns: [user], vocabulary: none.parquet", r"none\.parquet: no such file \(vocabulary\): count one"),
        ("columns: [user], vocabulary: s.yaml", r"s\.yaml: not a vocabulary, a Parquet file with the columns column"),
        ("columns: [item], vocabulary: v.parquet", r"v\.parquet: has no values of column 'item', but of 'user'"),
        ("columns: [user], vocabulary: twice.parquet", r"twice\.parquet: column 'user' holds 'a' twice"),
        ("columns: [user], vocabulary: numbers.parquet", r"numbers\.parquet: not a vocabulary.*int64, want text"),
    ],
)
def test_what_is_no_vocabulary_is_one_line(line: str, message: str, folder: Path) -> None:
    htrain.vocabulary(uri_of("csv", folder), out=folder / "v.parquet", columns=["user"])
    pq.write_table(pa.table({"column": ["user", "user"], "value": ["a", "a"]}), folder / "twice.parquet")
    pq.write_table(pa.table({"column": ["user"], "value": [1]}), folder / "numbers.parquet")
    (folder / "s.yaml").write_text(f"label: y\ninputs:\n  a: {{kind: ids, {line}}}\n")
    with pytest.raises(DataError, match=message) as caught:
        open_data(uri_of("csv", folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "given", "message"),
    [
        ("{csv}", {"columns": ["y"]}, "'y' is no column of ids of its schema file, which are user, item, seen, tags"),
        ("{csv}", {"together": [["user", "nobody"]]}, "together: 'nobody' is none of the columns"),
        ("{csv}", {"together": [["user", "tags"], ["seen", "tags"]]}, "together: 'tags' is named twice"),
        ("{csv}", {"together": [[]]}, "together: a group without columns"),
        (
            "{csv}",
            {"min_count": 3, "columns": ["seen", "user", "item"]},
            "column 'item' has no value that comes 3 times or more; the most frequent comes 1 times: count with a smaller",
        ),
        ("{csv}&shuffle=9", {}, "option shuffle has no effect on what is counted"),
        ("synthetic:?rows=9", {}, "columns are those that a schema file describes: want csv or parquet"),
        ("{csv}", {"out": "s.yaml"}, r"s\.yaml: cannot be written: it holds something that htrain did not write"),
    ],
)
def test_what_cannot_be_counted_is_one_line(uri: str, given: dict[str, Any], message: str, folder: Path) -> None:
    out = folder / given.get("out", "v.parquet")
    with pytest.raises(DataError, match=message):
        htrain.vocabulary(uri.format(csv=uri_of("csv", folder)), **{**given, "out": out})
    assert out.name == "s.yaml" or not out.exists()


def test_a_vocabulary_at_an_address_lies_beside_its_schema_file(folder: Path) -> None:
    uri = uri_of("parquet", folder)
    htrain.vocabulary(uri, out=folder / "v.parquet")
    wanted = columns_of(uri)
    store = fsspec.filesystem("memory")
    for name in ("s.yaml", "v.parquet"):
        store.pipe_file(f"/vocabulary-test/{name}", (folder / name).read_bytes())
    (folder / "v.parquet").unlink()
    found = columns_of(uri.replace(f"{folder}/s.yaml", "memory://vocabulary-test/s.yaml"))
    assert all((found[name] == column).all() for name, column in wanted.items())
    assert [str(path) for path in files_of(f"{uri.partition('?')[0]}?schema=memory://vocabulary-test/s.yaml")[1:]] == [
        "memory://vocabulary-test/s.yaml",
        "memory://vocabulary-test/v.parquet",
    ]


def rows_of(folder: Path, name: str, column: str) -> list[tuple[str, int]]:
    table = pq.read_table(folder / name).to_pylist()
    return [(row["value"], row["count"]) for row in table if row["column"] == column]


def days(folder: Path, first: list[Any], second: list[Any]) -> list[str]:
    """The data of two days with a column `user`, whose schema files have a vocabulary each."""
    uris = []
    for name, users in (("one", first), ("two", second)):
        pq.write_table(pa.table({"y": [0] * len(users), "user": users}), folder / f"{name}.parquet")
        line = f"sparse: {{kind: ids, columns: [user], vocabulary: v-{name}.parquet}}"
        (folder / f"{name}.yaml").write_text(f"label: y\ninputs:\n  {line}\n")
        uris.append(f"parquet:{folder}/{name}.parquet?schema={folder}/{name}.yaml")
    return uris


@settings(max_examples=25, deadline=None)
@given(
    first=st.lists(words, min_size=1, max_size=20),
    second=st.lists(words, min_size=1, max_size=20),
    min_count=st.integers(1, 2),
    more=st.integers(0, 5),
)
def test_values_of_what_is_extended_keep_their_rows(
    first: list[str | None],
    second: list[str | None],
    min_count: int,
    more: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("days")
    one, two = days(folder, [*first, "always"], second)
    htrain.vocabulary(one, out=folder / "v-one.parquet")
    before = rows_of(folder, "v-one.parquet", "user")
    told = htrain.vocabulary(
        two,
        out=folder / "v-two.parquet",
        extends=folder / "v-one.parquet",
        min_count=min_count,
        most=len(before) + more,
    )
    came = Counter(value for value in second if value)
    new = sorted(
        ((v, n) for v, n in came.items() if n >= min_count and v not in dict(before)),
        key=lambda e: (-e[1], e[0].encode()),
    )[:more]
    assert rows_of(folder, "v-two.parquet", "user") == [*((v, n + came[v]) for v, n in before), *new]
    assert (told.columns[0].new_rows, told.columns[0].rows) == (len(new), 2 + len(before) + len(new))
    data = open_data(two).schema
    assert data.extends == {"sparse.user": tuple(open_data(one).schema.vocabularies.values())}
    assert columns_of(two)["sparse"][:, 0].tolist() == [
        row_of(value or None, [v for v, _ in (*before, *new)]) for value in second
    ]  # fmt: skip


def test_a_vocabulary_knows_all_that_it_extends_as_long_as_it_is_as_it_was_written(folder: Path) -> None:
    one, _ = days(folder, ["a", "b"], [])
    digests = []
    for day in range(4):
        pq.write_table(pa.table({"y": [0, 0], "user": ["a", f"new {day}"]}), folder / "one.parquet")
        last = folder / f"v{day - 1}.parquet"
        htrain.vocabulary(one, out=folder / f"v{day}.parquet", extends=last if day else "")
        (folder / "one.yaml").write_text(
            (folder / "one.yaml")
            .read_text()
            .replace(last.name, f"v{day}.parquet")
            .replace("v-one.parquet", "v0.parquet")
        )
        schema = open_data(one).schema
        assert schema.extends == ({"sparse.user": tuple(digests)} if day else {})
        digests.append(schema.vocabularies["sparse.user"])
    htrain.pack(one, out=folder / "a.packed")
    assert open_data(f"packed:{folder}/a.packed").schema.extends == {"sparse.user": tuple(digests[:-1])}
    table = pq.read_table(folder / "v3.parquet")  # with its metadata
    pq.write_table(table.take(list(range(len(table)))[::-1]), folder / "v3.parquet")
    assert open_data(one).schema.extends == {}
    pq.write_table(table, folder / "v3.parquet")
    assert open_data(one).schema.extends == schema.extends
    for damaged in (b"{", b"\xff", b'{"columns": {"user": 3}}'):
        pq.write_table(table.replace_schema_metadata({b"htrain.vocabulary": damaged}), folder / "v3.parquet")
        assert open_data(one).schema.extends == {}


def test_columns_that_are_not_counted_stay_and_foreign_files_are_extended(folder: Path) -> None:
    uri, out = uri_of("parquet", folder), folder / "v.parquet"
    foreign = {"column": ["user", "tags", "seen", "tags"], "value": ["17", "z", "nothing", "b"]}
    pq.write_table(pa.table(foreign), folder / "foreign.parquet")
    told = htrain.vocabulary(uri, out=out, extends=folder / "foreign.parquet", columns=["user", "item"])
    assert values_of(folder, "tags") == [("z", 0), ("b", 0)]
    assert values_of(folder, "user")[:2] == [("17", 3), ("3", 2)]
    assert [each.new_rows for each in told.columns] == [4, len(USERS)]
    assert columns_of(uri)["tags"].tolist() == [row_of(tag, ["z", "b"]) for tags in TAGS for tag in tags]
    assert set(open_data(uri).schema.extends) == {"sparse.user", "history.seen", "tags.tags"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"extends": "v.parquet"},
            r"v\.parquet: --out would replace what it extends, by which runs have read their data",
        ),
        (
            {"extends": "none.parquet"},
            r"none\.parquet: no such file \(--extends\): name the vocabulary that was counted",
        ),
        ({"extends": "a.csv"}, r"a\.csv: not a vocabulary, a Parquet file with the columns column and value"),
        ({"extends": "old.parquet", "most": 1}, "--most 1 is less than the 5 values that it extends"),
        (
            {"extends": "old.parquet", "columns": ["user", "seen"], "together": [["user", "seen"]]},
            r"old\.parquet: has not the same values for 'user' and 'seen', which are counted together: some would have",
        ),
    ],
)
def test_what_cannot_be_extended_is_one_line(given: dict[str, Any], message: str, folder: Path) -> None:
    uri, out = uri_of("csv", folder), folder / "v.parquet"
    htrain.vocabulary(uri, out=out)
    htrain.vocabulary(uri, out=folder / "old.parquet")
    before = out.read_bytes()
    with pytest.raises(DataError, match=message):
        htrain.vocabulary(uri, **{**given, "extends": folder / given["extends"], "out": out})
    assert out.read_bytes() == before


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
def test_a_table_in_memory_is_counted_as_its_file(kind: str, folder: Path) -> None:
    table = pq.read_table(folder / "a.parquet")
    given: Any = table if kind == "arrow" else pytest.importorskip(kind)
    if kind == "pandas":
        given = table.to_pandas(types_mapper={pa.int64(): given.Int64Dtype()}.get)
    elif kind == "polars":
        given = given.from_arrow(table)
    uri, schema = uri_of("parquet", folder), folder / "s.yaml"
    told = htrain.vocabulary(uri, out=folder / "v.parquet", min_count=2)
    assert htrain.vocabulary(given, schema=schema, out=folder / "w.parquet", min_count=2) == told
    assert pq.read_table(folder / "w.parquet").equals(pq.read_table(folder / "v.parquet"))
    as_dict = {
        "label": "y",
        "inputs": {"user": {"kind": "ids", "columns": ["user"], "vocabulary": str(folder / "x.parquet")}},
    }
    htrain.vocabulary(given, schema=as_dict, out=folder / "x.parquet", extends=folder / "w.parquet")
    assert htrain.features(given, schema=as_dict)["user"][:, 0].tolist() == [
        row_of(u, ["17", "3", "-4", str(10**17), "5"]) for u in USERS
    ]
    assert htrain.collisions(given, schema=schema) == htrain.collisions(uri)


def test_what_is_no_table_is_not_counted(folder: Path) -> None:
    table = pq.read_table(folder / "a.parquet")
    schema = {"label": "y", "inputs": {"user": {"kind": "ids", "columns": ["user"], "rows": 9}}}
    for count in (htrain.collisions, lambda data, **given: htrain.vocabulary(data, out=folder / "v.parquet", **given)):
        with pytest.raises(UsageError, match="a Table needs schema=: a schema file, or what one holds"):
            count(table)
        with pytest.raises(UsageError, match="data is a list: want FORMAT:PATH, or a table that Arrow takes"):
            count([1, 2], schema=schema)
        with pytest.raises(UsageError, match="schema= has no effect beside FORMAT:PATH"):
            count(uri_of("csv", folder), schema=schema)
        with pytest.raises(DataError, match="a Table in memory: no column 'user'"):
            count(table.drop_columns(["user"]), schema=schema)
    assert not (folder / "v.parquet").exists()


def test_columns_of_one_vocabulary_or_of_one_table_stay_together(folder: Path) -> None:
    """Who counts them apart on the second day would give new values two rows, and a row two values."""
    uri = uri_of("parquet", folder)
    htrain.vocabulary(uri, out=folder / "v.parquet", columns=["item", "seen"], together=[["item", "seen"]])
    for asked in ([], ["item"], ["item", "seen"]):
        columns = asked or ["user", "item", "seen"]
        told = htrain.vocabulary(uri, out=folder / "w.parquet", extends=folder / "v.parquet", columns=columns)
        assert rows_of(folder, "w.parquet", "item") == rows_of(folder, "w.parquet", "seen")
        assert {each.column: each.new_rows for each in told.columns if each.column != "user"} == dict.fromkeys(
            asked or ["item", "seen"], 0
        )
    shared = SCHEMA.replace("rows: [vocabulary, 7]", "rows: [vocabulary, vocabulary], tables: [user, item]")
    (folder / "s.yaml").write_text(shared.replace("column: seen,", "column: seen, table: item,"))
    htrain.vocabulary(uri, out=folder / "v.parquet")
    assert (
        rows_of(folder, "v.parquet", "item")
        == rows_of(folder, "v.parquet", "seen")
        != rows_of(folder, "v.parquet", "user")
    )
    assert len({item.rows[-1] for item in open_data(uri).schema.inputs[:2]}) == 1
