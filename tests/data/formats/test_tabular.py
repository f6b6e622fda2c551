"""CSV and Parquet with a schema file."""

import csv
import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from htrain.data import Malformed, open_data
from htrain.data.arrow_rows import table_rows
from htrain.data.formats.tabular import parse_csv
from htrain.data.layout import Layout, load_layout
from htrain.data.schema import Input, Schema
from htrain.errors import DataError

SCHEMA = """
label: y
inputs:
  d: {kind: dense, columns: [x, z], transform: log1p}
  s: {kind: ids, columns: [a, b], rows: [10, 7]}
  h: {kind: padded, column: h, length: 3, rows: 100}
  t: {kind: bag, column: t, rows: 100, width: 2}
"""
IDS = Layout(Schema((Input("s", "ids", 1, ("a",), (1000,), ("a",)),)), "y")


def fnv(word: str) -> int:
    value = 0xCBF29CE484222325
    for byte in word.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def reference_id(word: str, rows: int) -> int:
    if re.fullmatch("-?[0-9]{1,20}", word) and -(2**63) <= int(word) < 2**64:
        return int(word) % rows
    return fnv(word) % rows if word else 0


@pytest.fixture
def schema(tmp_path):
    (tmp_path / "s.yaml").write_text(SCHEMA)
    return f"{tmp_path}/s.yaml"


ROWS = [  # arrays by name: d, h, h_length, label, s, t
    ((np.log1p(3), 0), (1, 2, 0), (2,), (1,), (4, fnv("x") % 7), (5,)),
    ((0, 0), (0, 0, 0), (0,), (0,), (0, 0), ()),
    ((0, np.log1p(1.5)), (7, 8, 9), (3,), (0,), (8, 6), (1, 99, 3)),
]


def approximately(rows):
    return [tuple(pytest.approx(part, rel=1e-6) for part in row) for row in rows]


def test_csv_fills_every_kind_of_input(tmp_path, read, schema):
    path = tmp_path / "a.csv"
    path.write_text("h,y,x,z,a,b,t,more\n1 2,1,3,,14,x,5,q\n,-1,-2,NA,,,,\n7|8|9|4,0,,1.5,-2,6,1 99 103,\n")
    assert read(f"csv:{path}?schema={schema}") == approximately(ROWS)


def test_parquet_fills_every_kind_of_input(tmp_path, read, schema):
    table = pa.table({
        "y": [1.0, -1.0, 0.0], "x": [3, -2, None], "z": [None, float("nan"), 1.5], "a": pa.array([14, None, -2]),
        "b": pa.array(["x", None, "6"]).dictionary_encode(), "h": [[1, 2], None, [7, 8, 9, 4]],
        "t": pa.array([["5"], [], ["1", "99", "103"]], pa.large_list(pa.large_string())),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(f"parquet:{tmp_path}/a.parquet?schema={schema}") == approximately(ROWS)


@given(
    st.lists(
        st.one_of(
            st.text(max_size=6), st.integers(-(10**20), 10**20).map(str), st.sampled_from(["²", "--5", "-", "9" * 5000])
        )
    )
)
def test_text_ids_agree_with_plain_python(words):
    table = pa.table({"y": pa.array([1.0] * len(words)), "a": pa.array(words, pa.string())})
    rows, faults = table_rows(table, IDS)
    assert rows.fixed["s"][:, 0].tolist() == [reference_id(word, 1000) for word in words]
    assert not faults


@pytest.mark.parametrize(
    ("values", "kind"),
    [([3, 2**63 + 5], pa.uint64()), ([3.0, 1e6], pa.float64()), ([-3, 7], pa.int8()), ([True, False], pa.bool_())],
)
def test_ids_of_any_numeric_type_are_taken_modulo_rows(values, kind):
    rows, _ = table_rows(pa.table({"y": [1, 1], "a": pa.array(values, kind)}), IDS)
    if kind == pa.bool_():  # a truth value is text
        assert rows.fixed["s"][:, 0].tolist() == [fnv("true") % 1000, fnv("false") % 1000]
    else:
        assert rows.fixed["s"][:, 0].tolist() == [int(v) % 1000 for v in values]


field = st.sampled_from(["1", "0", "", "7", "x", '"a,b"', '"q""q"', '5"', '"open', "9\r9", "é", " "])
row = st.lists(field, min_size=1, max_size=4).map(",".join)


def reference_row(line: str):
    """y and the id, None for a malformed line, "" for a blank one."""
    line = line.removesuffix("\r")
    if not line:
        return ""
    try:
        parts = next(csv.reader(io.StringIO(line, newline=""), strict=False)) if "\r" not in line else []
    except csv.Error:
        return None
    quoted = False
    at_start = True
    characters = iter(range(len(line)))
    for i in characters:
        if quoted and line[i] == '"':
            quoted = line[i + 1 : i + 2] == '"' and next(characters) is not None
        elif not quoted:
            quoted, at_start = line[i] == '"' and at_start, line[i] == ","
    if quoted or len(parts) != 2 or parts[0].strip() not in ("0", "1", "7"):
        return None
    return float(parts[0]), reference_id(parts[1], 1000)


@settings(max_examples=150, deadline=None)
@given(lines=st.lists(row, max_size=8), ending=st.sampled_from(["\n", "\r\n"]))
def test_csv_lines_agree_with_python_and_a_malformed_one_never_spoils_its_neighbours(lines, ending):
    rows, faults = parse_csv(np.frombuffer(ending.join(lines).encode(), np.uint8), ("y", "a"), IDS)
    wanted = [reference_row(line) for line in lines]
    good = [w for w in wanted if w]
    assert list(zip(rows.fixed["label"].tolist(), rows.fixed["s"][:, 0].tolist(), strict=True)) == good
    assert [line for line, _ in faults] == [i for i, w in enumerate(wanted) if w is None]


def test_malformed_csv_rows_are_counted_with_their_true_lines(tmp_path, read):
    (tmp_path / "s.yaml").write_text("label: y\ninputs:\n  d: {kind: dense, columns: [x]}\n")
    bad = [b"1", b"q,3", b",2", b'1,"4', b"1,\xff", b"1,1e99"]
    (tmp_path / "a.csv").write_bytes(b"y,x\r\n" + b"1,2\n\r\n" * 100 + b"\n".join(bad) + b"\n1,5\n")
    malformed = Malformed()
    assert len(read(f"csv:{tmp_path}/a.csv?schema={tmp_path}/s.yaml", malformed=malformed)) == 101
    assert malformed.count == 6
    assert malformed.examples == [
        f"{tmp_path}/a.csv:202: has 1 columns, want 2",
        f"{tmp_path}/a.csv:203: column 'y' is not a number",
        f"{tmp_path}/a.csv:204: column 'y' is missing",
        f"{tmp_path}/a.csv:205: has a quote that does not end on its line",
        f"{tmp_path}/a.csv:206: is not UTF-8 text",
    ]


def test_malformed_parquet_rows_are_named_by_their_place_across_row_groups(tmp_path, read):
    (tmp_path / "s.yaml").write_text("label: y\ninputs:\n  d: {kind: dense, columns: [x]}\n")
    labels = [1.0] * 30
    labels[25] = None
    numbers = [0.5] * 30
    numbers[3] = float("inf")
    pq.write_table(pa.table({"y": labels, "x": numbers}), tmp_path / "a.parquet", row_group_size=10)
    malformed = Malformed()
    assert len(read(f"parquet:{tmp_path}/a.parquet?schema={tmp_path}/s.yaml", malformed=malformed)) == 28
    assert malformed.examples == [
        f"{tmp_path}/a.parquet: row 4: column 'x' is not a number",
        f"{tmp_path}/a.parquet: row 26: column 'y' is missing",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("label: [", r"s\.yaml: not YAML: .*line 2"),
        ("label: 2024-99-99", r"s\.yaml: not a schema: "),
        ("inputs: {a: 1}", r"s\.yaml: not a schema: .*label"),
        ("label: y\ninputs: {}", r"s\.yaml: not a schema: .*inputs"),
        ("label: y\nmore: 1\ninputs: {a: {kind: dense, columns: [a]}}", r"s\.yaml: not a schema: .*more"),
        ("label: y\ninputs: {a: 5}", r"s\.yaml: inputs\.a: Expected `object`, got `int`"),
        ("label: y\ninputs: {a: {columns: [a]}}", r"s\.yaml: inputs\.a: .*`kind`"),
        (
            "label: y\ninputs: {a: {kind: sparse, columns: [a]}}",
            r"s\.yaml: inputs\.a: Invalid value 'sparse' - at `kind`",
        ),
        ("label: y\ninputs: {a: {kind: dense, columns: []}}", r"s\.yaml: inputs\.a: .*`columns`"),
        ("label: y\ninputs: {a: {kind: dense, columns: [a], rows: 3}}", r"s\.yaml: inputs\.a: .*unknown field `rows`"),
        ("label: y\ninputs: {a: {kind: dense, columns: [a], transform: sqrt}}", r"s\.yaml: inputs\.a: .*`transform`"),
        ("label: y\ninputs: {a: {kind: ids, columns: [a], rows: 0}}", r"s\.yaml: inputs\.a: .*`int` >= 1 - at `rows`"),
        (
            "label: y\ninputs: {a: {kind: ids, columns: [a, b], rows: [3]}}",
            r"inputs\.a: rows: has 1 numbers for 2 columns",
        ),
        ("label: y\ninputs: {a: {kind: padded, column: a, rows: 3}}", r"s\.yaml: inputs\.a: .*`length`"),
        ("label: y\ninputs: {label: {kind: dense, columns: [a]}}", "two arrays of a batch would be called 'label'"),
        (
            "label: y\ninputs: {h: {kind: bag, column: a, rows: 3}, h_offsets: {kind: dense, columns: [a]}}",
            "two arrays of a batch would be called 'h_offsets'",
        ),
    ],
)
def test_a_wrong_schema_file_is_refused_by_file_and_field(tmp_path, content, message):
    (tmp_path / "s.yaml").write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        load_layout(tmp_path / "s.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n\n", r"a\.csv:1: want a line of column names: "),
        ("y\n1\n", r"a\.csv: no column 'x'; it has y$"),
        ("y,x,x\n1,2,3\n", r"a\.csv: has 2 columns called 'x'$"),
        ("y,x\n", r"a\.csv: holds no rows$"),
    ],
)
def test_a_csv_file_that_does_not_fit_its_schema_is_refused(tmp_path, read, content, message):
    (tmp_path / "s.yaml").write_text("label: y\ninputs:\n  d: {kind: dense, columns: [x]}\n")
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        read(f"csv:{tmp_path}/a.csv?schema={tmp_path}/s.yaml")


def test_a_parquet_column_of_the_wrong_type_is_refused_by_name(tmp_path):
    pq.write_table(pa.table({"y": [1], "x": [[1]]}), tmp_path / "a.parquet")
    (tmp_path / "s.yaml").write_text("label: y\ninputs:\n  d: {kind: dense, columns: [x]}\n")
    with pytest.raises(DataError, match=r"column 'x' is list<.*>; want a number or text$"):
        open_data(f"parquet:{tmp_path}/a.parquet?schema={tmp_path}/s.yaml")
    (tmp_path / "s.yaml").write_text("label: y\ninputs:\n  d: {kind: bag, column: y, rows: 3}\n")
    with pytest.raises(DataError, match=r"column 'y' is int64; want a list of ids, or text$"):
        open_data(f"parquet:{tmp_path}/a.parquet?schema={tmp_path}/s.yaml")


def test_pages_of_parquet_are_held_against_their_checksums(tmp_path, read):
    (tmp_path / "s.yaml").write_text("label: y\ninputs:\n  d: {kind: dense, columns: [x]}\n")
    table = pa.table({"y": np.arange(500) % 2, "x": np.arange(500.0)})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, write_page_checksum=True, use_dictionary=False, compression="none")
    raw = bytearray(path.read_bytes())
    assert len(read(f"parquet:{path}?schema={tmp_path}/s.yaml")) == 500
    raw[raw.index(np.float64(250).tobytes())] ^= 1  # 250 would be another number
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read: .*checksum"):
        read(f"parquet:{path}?schema={tmp_path}/s.yaml")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    places=st.lists(st.integers(0, 2**20), min_size=1, max_size=3), byte=st.integers(0, 255), is_footer=st.booleans()
)
@example(places=[501], byte=0, is_footer=True)  # a row group of 36 rows, of a hundred
def test_a_damaged_parquet_file_is_one_line_or_has_all_of_its_rows(tmp_path, read, places, byte, is_footer):
    (tmp_path / "s.yaml").write_text("label: y\ninputs:\n  s: {kind: ids, columns: [a], rows: 9}\n")
    words = [f"w{k % 9}" for k in range(300)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"y": np.arange(300) % 2, "a": words}), path, row_group_size=100)
    raw = bytearray(path.read_bytes())
    footer = int.from_bytes(raw[-8:-4], "little")
    for place in places:
        raw[len(raw) - 8 - place % footer if is_footer else place % len(raw)] = byte
    path.write_bytes(raw)
    malformed = Malformed(share=1.0)
    try:
        count = len(read(f"parquet:{path}?schema={tmp_path}/s.yaml", malformed=malformed))
    except DataError:
        return
    assert count + malformed.count == 300


@pytest.mark.parametrize("name", [b"\xff", b"\xad"])
def test_a_parquet_file_whose_names_or_rows_are_not_as_it_says_is_one_line(tmp_path, read, name):
    (tmp_path / "s.yaml").write_text("label: y\ninputs:\n  d: {kind: dense, columns: [x]}\n")
    path = tmp_path / "a.parquet"
    writer = {"use_dictionary": False, "compression": "none", "store_schema": False}
    pq.write_table(pa.table({"y": [1.0], "x": [1.0], "other": [1.0]}), path, **writer)
    path.write_bytes(path.read_bytes().replace(b"other", name + b"ther"))
    with pytest.raises(DataError, match=r"a\.parquet: not a Parquet file: 'utf-8' codec can't decode"):
        read(f"parquet:{path}?schema={tmp_path}/s.yaml")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted by Linux")
def test_a_header_that_does_not_fit_leaves_no_thread_behind_that_could_abort_the_command(tmp_path, schema):
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe1,2\n")
    script = f"""
import os, htrain.data, pyarrow.csv
from htrain.errors import DataError
before = len(os.listdir("/proc/self/task"))
try:
    htrain.data.open_data("csv:{tmp_path}/a.csv?schema={schema}")
except DataError as error:
    print(len(os.listdir("/proc/self/task")) - before, error)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True).stdout
    assert (
        said
        == f"0 {tmp_path}/a.csv:1: want a line of column names: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte\n"
    )


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"\r\n", "it is blank"),
        (b"y,x\rz,a\n", "it has a carriage return inside the line"),
        (b'y,"x', "it has a quote that does not end on its line"),
        (b'\xef\xbb\xbf"y","x"\r\n', "no column 'z'; it has y, x"),
        (b'y,"x ""1"", 2"\n', "no column 'x'; it has y, x \"1\", 2"),
    ],
)
def test_a_line_of_names_is_read_as_its_rows_are(tmp_path, schema, header, said):
    (tmp_path / "a.csv").write_bytes(header)
    with pytest.raises(DataError, match=re.escape(said)):
        open_data(f"csv:{tmp_path}/a.csv?schema={schema}")


def test_columns_share_a_table_where_the_schema_says_so(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "label: y\ninputs:\n  s: {kind: ids, columns: [a, b, c], rows: 7, tables: [word, b, word]}\n"
        "  h: {kind: padded, column: h, length: 3, rows: 7, table: word}\n  t: {kind: bag, column: t, rows: 5}\n"
    )
    tables = [each.tables for each in load_layout(tmp_path / "s.yaml").schema.inputs]
    assert tables == [("word", "b", "word"), ("word",), ("t",)]


@pytest.mark.parametrize(("inputs", "said"), [
    ("s: {kind: ids, columns: [a, b], rows: 7, tables: [a]}", r"inputs.s: tables: has 1 names for 2 columns$"),
    ("s: {kind: ids, columns: [a, b], rows: [7, 9], tables: [w, w]}", r"inputs.s: table 'w' has 9 rows here and 7 in inputs.s: columns that share a table"),
    ("{s: {kind: ids, columns: [a], rows: 7}, t: {kind: bag, column: t, rows: 9, table: a}}", r"inputs.t: table 'a' has 9 rows here and 7 in inputs.s"),
    ("s: {kind: ids, columns: [a], rows: 7, tables: ['']}", "inputs.s: .*length >= 1"),
    ("s: {kind: padded, column: a, length: 2, rows: 7, tables: [a]}", "unknown field `tables`"),
])  # fmt: skip
def test_columns_that_cannot_share_a_table_are_refused(inputs: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        f"label: y\ninputs: {inputs}" if inputs[0] == "{" else f"label: y\ninputs:\n  {inputs}\n"
    )
    with pytest.raises(DataError, match=said):
        load_layout(tmp_path / "s.yaml")
