"""Parts by time, and rows that must be in its order: against plain Python, in any format."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import htrain
from htrain.data import START, Malformed, open_data
from htrain.errors import DataError

BEGIN = datetime(2026, 11, 18, tzinfo=UTC)
COUNT = 3000
TIMES = [BEGIN + timedelta(minutes=(7 * i) % COUNT) for i in range(COUNT)]  # in no order
SCHEMA = "label: y\ntime: at\ninputs:\n  s: {kind: ids, columns: [id], rows: 3000}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows in the forms that data has."""
    place = tmp_path_factory.mktemp("in_time")
    (place / "s.yaml").write_text(SCHEMA)
    (place / "seconds.yaml").write_text(SCHEMA.replace("time: at", "time: {column: at, unit: ms}"))
    table = pa.table({"y": [0, 1] * (COUNT // 2), "id": range(COUNT), "at": pa.array(TIMES)})
    pq.write_table(table, place / "a.parquet", row_group_size=500)
    text = table.set_column(2, "at", pa.array([f"{t:%Y-%m-%dT%H:%M:%S}" for t in TIMES]))
    pacsv.write_csv(text, place / "a.csv")
    (place / "many").mkdir()
    for k in range(6):
        pacsv.write_csv(text.slice(500 * k, 500), place / "many" / f"{k}.csv")
    numbers = table.set_column(2, "at", pa.array([int(t.timestamp() * 1000) for t in TIMES]))
    pq.write_table(numbers, place / "n.parquet")
    htrain.pack(f"csv:{place}/a.csv?schema={place}/s.yaml", out=place / "a.packed")
    in_order = text.take(sorted(range(COUNT), key=TIMES.__getitem__))
    pacsv.write_csv(in_order, place / "ordered.csv")
    return place


FORMS = {
    "csv": "csv:{folder}/a.csv?schema={folder}/s.yaml",
    "many": "csv:{folder}/many?schema={folder}/s.yaml",
    "parquet": "parquet:{folder}/a.parquet?schema={folder}/s.yaml",
    "milliseconds": "parquet:{folder}/n.parquet?schema={folder}/seconds.yaml",
    "packed": "packed:{folder}/a.packed?",
}


def ids(uri: str, *, shards: int = 1) -> list[int]:
    data = open_data(uri.replace("?&", "?"))
    found = []
    for shard in range(shards):
        batches = data.batches(
            batch_size=64, shard=shard, num_shards=shards, epochs=1, start=START, malformed=Malformed()
        )
        found += [i for batch in batches for i in batch.columns["s"][:, 0].tolist()]
    return sorted(found) if shards > 1 else found


@pytest.mark.parametrize("form", FORMS)
def test_a_row_is_in_the_part_of_its_time_in_any_form(form: str, folder: Path) -> None:
    uri = FORMS[form].format(folder=folder)
    begin, end = BEGIN + timedelta(days=1), BEGIN + timedelta(days=2)
    train = [i for i in range(COUNT) if TIMES[i] < begin]
    test = [i for i in range(COUNT) if begin <= TIMES[i] < end]
    options = "&test_from=2026-11-19&test_until=2026-11-20T01:00+01:00"
    assert ids(uri + options) == train
    assert ids(f"{uri}{options}&part=test") == test
    assert ids(f"{uri}&test_from=2026-11-19&part=test", shards=3) == [i for i in range(COUNT) if TIMES[i] >= begin]


def test_no_model_gets_the_times_and_hashes_of_rows_do_not_have_them(folder: Path) -> None:
    uri = FORMS["csv"].format(folder=folder)
    data = open_data(uri)
    batch = next(data.batches(batch_size=9, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()))
    assert sorted(batch.columns) == ["label", "s"]
    (folder / "plain.yaml").write_text(SCHEMA.replace("time: at\n", ""))
    held = ids(f"{uri}&test=0.2&part=test")
    assert held == ids(f"{uri.replace('s.yaml', 'plain.yaml')}&test=0.2&part=test")
    assert held == ids(f"packed:{folder}/a.packed?test=0.2&part=test")


def test_rows_in_the_order_of_time_come_so_and_others_are_refused_by_their_line(folder: Path) -> None:
    ordered = f"csv:{folder}/ordered.csv?schema={folder}/s.yaml&order=time"
    assert [TIMES[i] for i in ids(ordered)] == sorted(TIMES)
    assert ids(ordered, shards=2) == list(range(COUNT))
    wrong = next(i for i in range(1, COUNT) if TIMES[i] < TIMES[i - 1])
    message = (
        rf"a\.csv:{wrong + 2}: is of 2026-11-18T00:\d\d:00, and a row before it of 2026-11-20T01:\d\d:00: order=time"
    )
    with pytest.raises(DataError, match=message):
        ids(f"{FORMS['csv'].format(folder=folder)}&order=time")
    lines = (folder / "ordered.csv").read_text().splitlines(keepends=True)
    swapped = folder / "swapped"  # each file is in order by itself
    swapped.mkdir()
    (swapped / "0.csv").write_text("".join([lines[0], *lines[1501:]]))
    (swapped / "1.csv").write_text("".join([lines[0], *lines[1:1501]]))
    with pytest.raises(DataError, match=r"swapped/1\.csv:2: is of .*: order=time wants rows, and files by their names"):
        ids(f"csv:{swapped}?schema={folder}/s.yaml&order=time")


def test_a_row_without_a_time_is_malformed(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCHEMA)
    (tmp_path / "a.csv").write_text("y,id,at\n1,5,2026-11-18\n0,6,\n1,7,soon\n1,8,2026-11-20T05:00Z\n")
    malformed = Malformed()
    data = open_data(f"csv:{tmp_path}/a.csv?schema={tmp_path}/s.yaml&test_from=2026-11-19")
    batches = data.batches(batch_size=9, shard=0, num_shards=1, epochs=1, start=START, malformed=malformed)
    assert [batch.columns["s"].tolist() for batch in batches] == [[[5]]]
    assert malformed.examples == [
        f"{tmp_path}/a.csv:3: column 'at' is missing",
        f"{tmp_path}/a.csv:4: column 'at' is not a time",
    ]
    table = pa.table({"id": [5]})  # a server's rows need none
    assert htrain.features(table, schema=tmp_path / "s.yaml")["s"].tolist() == [[5]]


def test_a_row_of_no_year_of_four_digits_is_named_where_it_is_out_of_order(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCHEMA)
    times = pa.array([2**60, 0], pa.timestamp("us"))
    pq.write_table(pa.table({"y": [0, 1], "id": [1, 2], "at": times}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=f"{2**60} us since the epoch"):
        ids(f"parquet:{tmp_path}/a.parquet?schema={tmp_path}/s.yaml&order=time")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("test_from=soon", r"option test_from=soon: want a day or a time such as 2026-11-20"),
        ("test_from=9999-12-31T23:59-05:00", "want a day or a time such as 2026-11-20"),
        ("test_from=2026-11-20&test=0.1", "want either test=SHARE or times, not both"),
        ("test_until=2026-11-20", "option test_until=2026-11-20: has no effect without test_from=TIME"),
        ("test=0.1&test_until=2026-11-20", "option test_until=2026-11-20: has no effect without test_from=TIME"),
        ("test_from=2026-11-20&test_until=2026-11-20", "is not after test_from=2026-11-20"),
        ("part=test", "option part=test: has no effect without test=SHARE, the share that is held out, or test_from"),
        ("order=rows", "option order=rows: want time, or leave it out"),
        ("order=time&shuffle=100", "option order=time: shuffle would undo it"),
    ],
)
def test_what_makes_no_part_or_order_is_one_line(options: str, message: str, folder: Path) -> None:
    with pytest.raises(DataError, match=message):
        open_data(f"{FORMS['csv'].format(folder=folder)}&{options}")


@pytest.mark.parametrize("options", ["test_from=2026-11-20", "order=time"])
def test_data_without_times_says_so(options: str, tmp_path: Path) -> None:
    (tmp_path / "a.libfm").write_text("1 0:1 1:1\n")
    with pytest.raises(DataError, match=r"a\.libfm: has no times of rows, which .*: a schema file names their column"):
        open_data(f"libfm:{tmp_path}/a.libfm?{options}")
