"""What was counted of columns of ids as text: vocabularies, and collisions of hashing."""

from collections.abc import Iterator

from htrain.data.collisions import CollisionReport
from htrain.data.vocabulary import FIRST
from htrain.data.vocabulary_file import Vocabularies


def vocabulary_text(found: Vocabularies) -> str:
    """A table with a line for each column, and a line end behind each."""
    return "".join(f"{line}\n" for line in _vocabulary(found))


def _vocabulary(found: Vocabularies) -> Iterator[str]:
    width = _width([each.column for each in found.columns])
    yield f"{found.examples:,} examples{_left_out(found.malformed)}"
    grown = any(each.new_rows + FIRST < each.rows for each in found.columns)
    new = f"{'new':>14}" if grown else ""
    yield f"{'column':<{width}}{'distinct':>14}{'kept':>14}{'rows':>14}{new}{'of all that come':>18}{'missing':>14}"
    for each in found.columns:
        share = f"{each.values_kept / each.values:.2%}" if each.values else "-"
        new = f"{each.new_rows:>14,}" if grown else ""
        yield f"{each.column:<{width}}{each.distinct:>14,}{each.kept:>14,}{each.rows:>14,}{new}{share:>18}{each.missing:>14,}"


def collisions_text(found: CollisionReport) -> str:
    """A table with a line for each column."""
    return "\n".join(_collisions(found))


def _collisions(found: CollisionReport) -> Iterator[str]:
    width = _width([each.column for each in found.columns])
    yield f"{found.examples:,} examples{_left_out(found.malformed)}"
    yield f"{'column':<{width}}{'distinct':>14}{'rows':>14}{'share a row':>14}{'of all that come':>18}{'rows for < 1 %':>18}"
    for each in found.columns:
        about = "~" if each.sampled < 1 else ""
        shares = f"{each.sharing:>14.2%}{each.examples_sharing:>18.2%}"
        yield f"{each.column:<{width}}{f'{about}{each.distinct:,}':>14}{each.rows:>14,}{shares}{f'{about}{each.enough_rows:,}':>18}"
    for each in found.columns:
        if each.sampled < 1:
            yield f"{each.column}: estimated from {each.sampled:.2%} of the rows of its table, with all of their values"
    if found.listed:
        yield f"not hashed, but by a vocabulary: {', '.join(found.listed)}"


def _width(names: list[str]) -> int:
    return max(8, *(len(name) + 2 for name in names))


def _left_out(malformed: int) -> str:
    return f"; {malformed:,} malformed rows were left out" if malformed else ""
