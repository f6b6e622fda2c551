"""Numbers that torch left symbolic, as they depend on a batch: what Python code makes of its size, `2 * len(x) - 1` or `x.shape[0] ** 0.5`, as ops.

Python's integers become int64 and its floats float64, so that nothing is rounded before it meets a tensor.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from htrain.errors import ModelError
from htrain.net.net import Attr

Step = Callable[[str, Sequence[str], Mapping[str, Attr]], str]  # appends an op; its output
_FLOAT: Mapping[str, Attr] = {"to": "float64"}
_WHOLE: Mapping[str, Attr] = {"to": "int64"}
_NONE: Mapping[str, Attr] = {}
_JOINED = {"Add": "Add", "Mul": "Mul", "Max": "Max", "Min": "Min"}  # of any number of operands
_OF_TWO = {"FloorDiv": "FloorDiv", "Mod": "Mod", "PythonMod": "Mod", "FloatTrueDiv": "Div", "FloatPow": "Pow", "PowByNatural": "Pow", "Pow": "Pow"}  # fmt: skip
_ROUNDED = {"TruncToInt": "Trunc", "FloorToInt": "Floor", "CeilToInt": "Ceil", "RoundToInt": "Round"}


class Numbers:
    """Writes expressions by `step`. `symbol` gives the int64 or float64 blob of a symbol, and `constant` that of a Python number."""

    def __init__(self, step: Step, symbol: Callable[[Any], str], constant: Callable[[int | float], str]) -> None:
        self._step, self._symbol, self._constant = step, symbol, constant

    def write(self, expression: Any) -> str:
        """The blob of an expression. Raises ModelError for a function of its that no op computes."""
        if expression.is_Symbol:
            return self._symbol(expression)
        if expression.is_Integer:
            return self._constant(int(expression))
        if expression.is_number:
            return self._constant(float(expression))
        name = type(expression).__name__
        parts = [self.write(part) for part in expression.args]
        if name in _JOINED:
            return self._joined(_JOINED[name], expression.args, parts)
        if name in _OF_TWO:
            return self._step(_OF_TWO[name], parts, _NONE)
        if name == "ToFloat":
            return self._step("Cast", parts, _FLOAT)
        if name == "IntTrueDiv":
            return self._step("Div", [self._step("Cast", (part,), _FLOAT) for part in parts], _NONE)
        if name in _ROUNDED:
            return self._step("Cast", (self._step(_ROUNDED[name], parts, _NONE),), _WHOLE)
        raise ModelError(f"forward() makes a number of the batch size by {name}, {expression}: make it of a tensor")

    def _joined(self, type: str, expressions: Sequence[Any], parts: Sequence[str]) -> str:
        """As Python does it, whole numbers beside others are floats."""
        whole = [bool(expression.is_integer) for expression in expressions]
        if not all(whole):
            parts = [self._step("Cast", (p,), _FLOAT) if w else p for p, w in zip(parts, whole, strict=True)]
        first, *others = parts
        for other in others:
            first = self._step(type, (first, other), _NONE)
        return first
