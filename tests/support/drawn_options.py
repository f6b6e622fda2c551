"""Options with every section of every kind, drawn from what stands on the fields."""

from dataclasses import fields
from typing import Any, get_args, get_origin

from hypothesis import strategies as st
from msgspec import Meta

from htrain.errors import UsageError
from htrain.spec.fields import alternatives, check, choices, fields_of, is_pairs, plain, value_of_pairs
from htrain.spec.options import Options
from htrain.spec.tree import checked, questions, sections_of

_CAPACITIES = st.one_of(st.integers(1, 10**6).map(str), st.integers(1, 100).map("{}%".format))


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """What a field of this type may be."""
    if is_pairs(hint):
        values = st.floats(0, 9) if plain(value_of_pairs(hint)) is float else st.sampled_from(["none", "3", "50%"])
        pairs = st.tuples(st.sampled_from(["C1", "C*", "wide.2"]), values)
        return st.lists(pairs, max_size=2, unique_by=lambda pair: pair[0]).map(tuple)
    return st.one_of([_one(kind) for kind in alternatives(hint)])


def _one(hint: Any) -> st.SearchStrategy[Any]:
    base = plain(hint)
    if get_origin(base) is not None:
        return st.sampled_from(get_args(base))
    if base is bool:
        return st.booleans()
    if choices(hint):
        return st.sampled_from(choices(hint))
    if base is str:
        return _CAPACITIES.filter(lambda text: _fits(text, hint))
    notes = [note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Meta)]
    bounds = {
        name: getattr(note, name)
        for note in notes
        for name in ("ge", "gt", "le", "lt")
        if getattr(note, name) is not None
    }
    least, most = bounds.get("ge", bounds.get("gt", 0)), bounds.get("le", bounds.get("lt", 1e9))
    drawn = (
        st.integers(least, most)
        if base is int
        else st.floats(least, most, exclude_min="gt" in bounds, exclude_max="lt" in bounds)
    )
    return drawn.filter(lambda value: check(value, hint) == value)


def _fits(text: str, hint: Any) -> bool:
    try:
        check(text, hint)
    except ValueError:
        return False
    return True


@st.composite
def drawn_options(draw: st.DrawFn) -> Options:
    found: dict[str, Any] = {}
    for field in fields(Options):
        if field.name not in questions():
            found[field.name] = draw(values_of(fields_of(Options)[field.name].hint))
            continue
        section = draw(st.sampled_from(sections_of(field.name)))
        found[field.name] = section(**{name: draw(values_of(entry.hint)) for name, entry in fields_of(section).items()})
    try:
        return checked(Options(**found))
    except UsageError:
        return checked(Options(**{name: value for name, value in found.items() if name != "numerics"}))
