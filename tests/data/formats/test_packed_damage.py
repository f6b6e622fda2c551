"""Packed files that are cut short, damaged, or written by someone else."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from htrain.data import START, Malformed, open_data
from htrain.data.formats.packed import KEY, reading
from htrain.data.pack import pack
from htrain.data.packed_writer import PackedWriter
from htrain.data.seal import digest_of, to_index
from htrain.errors import DataError

SCHEMA = """label: y
inputs:
  d: {kind: dense, columns: [a]}
  s: {kind: ids, columns: [a, c], rows: [300, 70000]}
  p: {kind: padded, column: b, length: 2, rows: 5000000000}
  t: {kind: bag, column: b, rows: 200}
"""


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A packed file whose source is elsewhere, with every kind of column."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "s.yaml").write_text(SCHEMA)
    (folder / "a.csv").write_text("y,a,c,b\n" + "".join(f"{i % 2},{i},{i},{i} 2\n" for i in range(90)))
    pack(f"csv:{folder}/a.csv?schema={folder}/s.yaml", folder / "p", malformed=Malformed())
    return (folder / "p").rename(tmp_path_factory.mktemp("elsewhere") / "p")


def read_all(path: Path) -> str:
    """What is wrong with a packed file; "" when it can be read."""
    try:
        for batch in open_data(f"packed:{path}").batches(
            batch_size=32, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()
        ):
            assert all(c.max(initial=0) < 5e9 for n, c in batch.columns.items() if c.dtype == np.int64)
            assert batch.columns["t"].max(initial=0) < 200
            assert batch.columns["p_length"].max(initial=0) <= 2
    except DataError as error:
        return str(error)
    return ""


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_that_is_cut_short_or_damaged_is_one_error_or_read_without_harm(good, tmp_path, data):
    whole = good.read_bytes()
    content = bytearray(whole)
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(1, len(whole) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "p").write_bytes(content)
    said = read_all(tmp_path / "p")
    assert ("; pack the data again: htrain data pack SOURCE --out " in said) == (content != whole)
    assert "\n" not in said


def test_no_bit_of_a_packed_file_can_flip_unseen(good, tmp_path):
    """1,000 bits, spread over header, columns, padding, index and footer."""
    whole, path = good.read_bytes(), tmp_path / "p"
    for bit in np.random.default_rng(0).choice(8 * len(whole), 1000, replace=False).tolist():
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        assert read_all(path), f"bit {bit % 8} of byte {bit // 8} of {len(whole)}"


def test_a_block_that_would_be_longer_than_any_file_is_seen(good, tmp_path):
    with reading(good) as file:
        blocks = file.blocks
    longer = [*blocks[:-1], replace(blocks[-1], length=2**63 - 1)]
    content = good.read_bytes().replace(to_index(blocks), to_index(longer))
    (tmp_path / "p").write_bytes(content)
    assert "is no packed file, or a damaged one (" in read_all(tmp_path / "p")


def test_blocks_that_change_places_are_seen(good, tmp_path):
    large = bytes(range(256)) * 200
    swapped = large[:4096] + large[8192:12288] + large[4096:8192] + large[12288:]
    assert digest_of(large) == digest_of(bytes(large)) != digest_of(large[:-1])
    assert (
        sum(digest_of(large[: 4096 * n] + bytes(4096) + large[4096 * (n + 1) :]) == digest_of(large) for n in range(12))
        == 0
    )
    assert large == swapped or digest_of(large) != digest_of(swapped)


def rewritten(good: Path, path: Path, header=lambda h: h, totals=lambda t: t, batch=lambda b: b, drop=0) -> str:
    """What is said of a packed file of which a part was made anew, its seal too: of its batches, the first."""
    reader = pa.ipc.open_file(str(good))
    told = header(msgspec.json.decode(reader.schema.metadata[KEY]))
    schema = reader.schema.with_metadata({KEY: msgspec.json.encode(told)})
    count = reader.num_record_batches
    with path.open("wb") as file:
        writer = PackedWriter(file, schema)
        for i in range(drop, count - 1):
            writer.write(batch(reader.get_batch(i)) if i == 0 else reader.get_batch(i))
        last = dict(reader.get_batch_with_custom_metadata(count - 1).custom_metadata)
        writer.finish({KEY: msgspec.json.encode(totals(msgspec.json.decode(last[KEY])))})
    return read_all(path)


def with_ids(*ids):
    """The batch with these ids in the first row of `s`."""

    def change(batch):
        stored = np.zeros(batch.num_rows * 2, np.uint32)
        stored[:2] = ids
        column = pa.FixedSizeListArray.from_arrays(pa.array(stored), type=batch.schema.field("s").type)
        return batch.set_column(2, "s", column)

    return change


def with_crossed_lists(batch):
    starts = np.zeros(batch.num_rows + 1, np.int64)
    starts[1:-1:2] = 2
    lists = pa.LargeListArray.from_arrays(pa.array(starts), batch["t"].values, type=batch.schema.field("t").type)
    return batch.set_column(5, "t", lists)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"header": lambda h: h | {"version": 1}}, "of version 1, this htrain reads versions 2, 3, 4"),
        ({"header": lambda h: h | {"version": "x"}}, "Expected `int`, got `str` - at `$.version`"),
        ({"header": lambda h: h | {"surprise": 1}}, "unknown field `surprise`"),
        ({"header": lambda h: h | {"inputs": h["inputs"][1:]}}, "its columns are not those of its schema"),
        ({"header": lambda h: h | {"inputs": [i | {"width": 10**12} for i in h["inputs"]]}}, "its columns are not"),
        ({"header": lambda h: h | {"inputs": [i | {"rows": []} for i in h["inputs"]]}}, "its columns are not"),
        ({"totals": lambda t: t | {"blocks": 3}}, "blocks, want 3"),
        ({"totals": lambda t: t | {"examples": -1}}, "blocks, want"),
        ({"drop": 1}, "blocks, want"),
        ({"batch": with_ids(300, 0)}, "block 0: 's' has a value that is too large"),
        ({"batch": with_ids(0, 70000)}, "block 0: 's' has a value that is too large"),
        ({"batch": with_crossed_lists}, "block 0: In column 5: Invalid: Offset invariant"),
    ],
)
def test_a_file_that_htrain_did_not_write_like_this_is_refused_by_what_is_wrong_with_it(good, tmp_path, change, said):
    assert rewritten(good, tmp_path / "p") == rewritten(good, tmp_path / "p", batch=with_ids(299, 69999)) == ""
    found = rewritten(good, tmp_path / "p", **change)
    assert found.startswith(f"{tmp_path}/p: is no packed file, or a damaged one (")
    assert said in found
    assert found.endswith(f"; pack the data again: htrain data pack SOURCE --out {tmp_path}/p")


def test_an_arrow_file_of_someone_else_is_refused(tmp_path):
    table = pa.table({"label": [1.0]})
    with pa.ipc.new_file(str(tmp_path / "p"), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="an Arrow file that something else wrote"):
        open_data(f"packed:{tmp_path}/p")
