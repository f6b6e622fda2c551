"""What a draft of a schema says of columns, as text."""

from collections.abc import Iterator

from htrain.data.draft import ROWS_TRIED, Draft
from htrain.data.guess import Guess

_CALLED = {"": "left out", "dense": "number", "ids": "id", "padded": "list of ids", "time": "time"}


def drafted_text(found: Draft) -> str:
    """A table with a line for each column, and a line end behind each."""
    return "".join(f"{line}\n" for line in _lines(found))


def _lines(found: Draft) -> Iterator[str]:
    width = max(8, *(len(each.column) + 2 for each in found.columns))
    wrong = (
        f"; of the first {min(found.examples, ROWS_TRIED):,}, {found.malformed:,} cannot be read by it"
        if found.malformed
        else ""
    )
    yield f"{'all' if found.is_all else 'the first'} {found.examples:,} rows were looked at{wrong}"
    yield f"{'column':<{width}}{'taken for':<14}{'rows':>12}  what was seen"
    for each in found.columns:
        called = "label" if each.column == found.label else _CALLED[each.kind]
        rows = f"{each.rows:,}" if each.rows and each.column != found.label else ""
        yield f"{each.column:<{width}}{called:<14}{rows:>12}  {_told(each)}"


def _told(each: Guess) -> str:
    return each.told if each.kind else f"{each.type}: {each.told}"
