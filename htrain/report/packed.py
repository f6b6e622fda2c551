"""A packed file as text: what it holds, where that came from, and whose it is."""

from collections.abc import Iterator

from htrain.data.packed_contents import PackedContents, PackedInput
from htrain.printable import as_word

_MOST_NAMES = 3  # of tables that are all named
_LENGTHS = {"dense": "{:,} numbers", "ids": "{:,} columns", "padded": "at most {:,}", "bag": "{:,} in the mean"}
_NOW = {
    "unchanged": "as it was packed", "changed": "has changed since it was packed", "absent": "is not there",
    "elsewhere": "is at an address, and was not looked at",
}  # fmt: skip


def packed_text(contents: PackedContents) -> str:
    """Several lines."""
    return "\n".join(_lines(contents))


def _lines(contents: PackedContents) -> Iterator[str]:
    checked, blocks = contents.checked_blocks, contents.blocks
    written = "all as they were written" if checked == blocks else f"{checked:,} of them read, as they were written"
    yield f"{contents.path}: {contents.examples:,} examples, {contents.bytes:,} bytes in {blocks:,} blocks, {written}"
    left_out = f"; {contents.malformed:,} malformed rows were left out" if contents.malformed else ""
    yield f"packed from {contents.uri}{left_out}"
    yield from (f"  {file.path}, {file.bytes:,} bytes: {_NOW[file.now]}" for file in contents.files)
    if any(file.now == "changed" for file in contents.files):
        again = f" --partition FILE of digest {contents.partition[:12]}" if contents.partition else ""
        yield f"it is refused as data: pack it again (htrain data pack '{contents.uri}'{again} --out {as_word(contents.path)})"
    yield ""
    yield from _inputs(contents.inputs)
    if contents.partition:
        yield ""
        yield from _workers(contents)


def _inputs(inputs: tuple[PackedInput, ...]) -> Iterator[str]:
    width = max([8, *(len(each.name) + 2 for each in inputs)])
    yield f"{'input':<{width}}{'kind':<9}{'stored as':<11}{'length':<20}{'rows':>15}  tables"
    for each in inputs:
        length = _LENGTHS[each.kind].format(each.width)
        rows = f"{sum(dict(zip(each.tables, each.rows, strict=True)).values()):,}" if each.rows else "-"
        yield f"{each.name:<{width}}{each.kind:<9}{each.dtype:<11}{length:<20}{rows:>15}  {_named(each.tables)}".rstrip()


def _named(tables: tuple[str, ...]) -> str:
    names = list(dict.fromkeys(tables))
    return ", ".join(names) if len(names) <= _MOST_NAMES else f"{names[0]} to {names[-1]}, {len(names)} in all"


def _workers(contents: PackedContents) -> Iterator[str]:
    found = contents.worker_examples
    most = max(found) * len(found) / contents.examples
    yield f"for {len(found)} workers, by the partition of digest {contents.partition}; {most:.3f} times the even share at most"
    yield f"{'worker':<8}{'examples':>12}"
    yield from (f"{worker:<8}{examples:>12,}" for worker, examples in enumerate(found))
