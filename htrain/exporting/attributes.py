"""Attributes of an op as a rule reads them."""

from collections.abc import Sequence

from htrain.net.net import Op


def number(op: Op, name: str, default: float = 0.0) -> float:
    """A number, or `default` where the op has none of this name."""
    value = op.attrs.get(name, default)
    assert isinstance(value, int | float)
    return value


def ints(op: Op, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
    """A list of whole numbers, or `default` where the op has none of this name, or an empty one."""
    value = op.attrs.get(name, ())
    assert isinstance(value, tuple)
    return tuple(value or default)
