"""A packed file as text."""

import msgspec
import pytest

from htrain.data.packed_contents import PackedContents, PackedFrom, PackedInput
from htrain.report.packed import packed_text

TABLES = tuple(f"C{c}" for c in range(1, 27))
CONTENTS = PackedContents(
    path="a.packed",
    bytes=1234567,
    version=3,
    examples=6000,
    blocks=12,
    checked_blocks=12,
    malformed=0,
    uri="criteo:a.tsv?rows=500",
    files=(PackedFrom("../a.tsv", 98765, "unchanged"),),
    inputs=(
        PackedInput("dense", "dense", "float32", 13, (), ()),
        PackedInput("sparse", "ids", "uint16", 26, (500,) * 26, TABLES),
        PackedInput("seen", "padded", "uint8", 4, (24,), ("b",)),
        PackedInput("pair", "ids", "uint8", 2, (40, 40), ("a", "a")),
        PackedInput("tags", "bag", "uint8", 2, (35,), ("c",)),
    ),
    partition="",
    worker_examples=(),
)


def changed(**fields: object) -> list[str]:
    return packed_text(msgspec.structs.replace(CONTENTS, **fields)).splitlines()


def test_what_it_holds_where_it_came_from_and_its_inputs() -> None:
    assert packed_text(CONTENTS) == "\n".join([
        "a.packed: 6,000 examples, 1,234,567 bytes in 12 blocks, all as they were written",
        "packed from criteo:a.tsv?rows=500",
        "  ../a.tsv, 98,765 bytes: as it was packed",
        "",
        "input   kind     stored as  length                         rows  tables",
        "dense   dense    float32    13 numbers                        -",
        "sparse  ids      uint16     26 columns                   13,000  C1 to C26, 26 in all",
        "seen    padded   uint8      at most 4                        24  b",
        "pair    ids      uint8      2 columns                        40  a",
        "tags    bag      uint8      2 in the mean                    35  c",
    ])  # fmt: skip


def test_workers_are_listed_with_their_examples() -> None:
    lines = changed(partition="abcdef0123456789", worker_examples=(2900, 3100))
    assert lines[-5:] == [
        "",
        "for 2 workers, by the partition of digest abcdef0123456789; 1.033 times the even share at most",
        "worker      examples",
        "0              2,900",
        "1              3,100",
    ]


@pytest.mark.parametrize(
    ("partition", "flag"), [("", ""), ("abcdef0123456789", " --partition FILE of digest abcdef012345")]
)
def test_a_source_that_has_changed_is_to_be_packed_again(partition: str, flag: str) -> None:
    files = (PackedFrom("a.tsv", 5, "changed"), PackedFrom("s.yaml", 6, "absent"))
    lines = changed(files=files, partition=partition, worker_examples=(6000,) * bool(partition))
    assert lines[2:5] == [
        "  a.tsv, 5 bytes: has changed since it was packed",
        "  s.yaml, 6 bytes: is not there",
        f"it is refused as data: pack it again (htrain data pack 'criteo:a.tsv?rows=500'{flag} --out a.packed)",
    ]


def test_rows_left_out_and_blocks_not_looked_at_are_told() -> None:
    lines = changed(malformed=1234, checked_blocks=3)
    assert lines[0].endswith("in 12 blocks, 3 of them read, as they were written")
    assert lines[1] == "packed from criteo:a.tsv?rows=500; 1,234 malformed rows were left out"
