"""Good files, spoilt: bytes flipped, cut, repeated, and swapped for what has broken readers before."""

from typing import Any

from hypothesis import strategies as st

NASTY = (
    "1e400", "1.0e+400", "-1", "0", "00", "0x10", "²", "１", "2020-99-99", "1:30", "9" * 30, "9" * 5000, ".nan", "nan", ".inf", "-.inf", "inf", "~", "null",
    "''", "true", "yes", "[", "]", "{", "}", "[" * 5000, "{a: " * 2000, "- " * 3000, "? " * 3000, "[]", "{}", "[[1], {a: b}]", "&a [1, 2]", "*a",
    "&a [*a, *a]", "<<: {a: 1}", "!!python/object:os.system x", "!!binary x", "!!timestamp x", "!!int x", "! 3", "\x1b[31mred\x1b[0m", '"\\e[2J"', "\x00",
    "\x7f", "\u202e", "\ufeff", "\u2028", "a" * 300, "a/b", "../../etc/passwd", "/dev/zero", "/dev/stdin", "%s", "{0}", "[/red]", "|", ">", "---", "...",
    "#", ":", "=", "%", "1GiB", "1e9", "unbounded", "auto", "none", "*", "top.*", "group_ps:0", "group_ps:²", "sparse_ps:99", "trainer", "NaN", "-0.0",
    "1e-400", "1_000", "é", "\r\n", "\t",
)  # fmt: skip


def words() -> st.SearchStrategy[str]:
    """A word that has broken something before, or any text."""
    return st.one_of(st.sampled_from(NASTY), st.text(max_size=8), st.integers().map(str), st.floats().map(str))


@st.composite
def spoilt(draw: st.DrawFn, good: bytes) -> bytes:
    """`good` after one to four edits."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.one_of(st.integers(0, 12), st.integers(0, 4000))))
        kind = draw(st.sampled_from(("insert", "replace", "cut", "repeat", "flip", "bytes", "end")))
        if kind == "insert":
            data[start:start] = draw(words()).encode("utf-8", "surrogatepass")
        elif kind == "replace":
            data[start:end] = draw(words()).encode("utf-8", "surrogatepass")
        elif kind == "cut":
            del data[start:end]
        elif kind == "repeat":
            data[start:start] = data[start:end] * draw(st.integers(1, 3))
        elif kind == "bytes":
            data[start:end] = draw(st.binary(max_size=6))
        elif kind == "end":
            del data[start:]
        elif start < len(data):
            data[start] ^= draw(st.integers(1, 255))
    return bytes(data)


def values() -> st.SearchStrategy[Any]:
    """Anything that YAML or JSON can hold."""
    scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), words())
    return st.recursive(
        scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words(), inner, max_size=3)),
        max_leaves=5,
    )


@st.composite
def rewritten(draw: st.DrawFn, good: Any) -> Any:
    """A document with one to three of its values, keys or entries changed for others."""
    document = good
    for _ in range(draw(st.integers(1, 3))):
        document = _changed(draw, document)
    return document


def _changed(draw: st.DrawFn, value: Any) -> Any:
    if isinstance(value, dict) and value and draw(st.integers(0, 7)):
        key = draw(st.sampled_from(sorted(value, key=repr)))
        how = draw(st.sampled_from(("inside", "inside", "inside", "drop", "rename", "add")))
        if how == "inside":
            return {**value, key: _changed(draw, value[key])}
        rest = {k: v for k, v in value.items() if k != key or how == "add"}
        return rest if how == "drop" else {**rest, draw(words()): value[key]}
    if isinstance(value, list) and value and draw(st.integers(0, 7)):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], _changed(draw, value[place]), *value[place + draw(st.integers(0, 1)) :]]
    return draw(values())
