"""What a capture must know of masks that pick elements by the values of a batch: which are the same mask, and that as many as they pick is no special number.

Code says `x[ids != 0]` and `y[ids != 0]`, and torch has a number of its own for how many each picks. Here one mask is made of both. And code of torch asks
whether so many are none, or one: the answer is that of any larger number, as for the size of a batch. What the model's own code asks is its own to answer, but
for whether a mask picks anything: that is told of, and the self-check looks at batches in which none does.
"""

from dis import opname
from types import FrameType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.overrides import TorchFunctionMode

from htrain.errors import ModelError
from htrain.frontend.blame import asked_by_model, asking

_COMPARED = {"eq", "ne", "gt", "ge", "lt", "le", "__eq__", "__ne__", "__gt__", "__ge__", "__lt__", "__le__", "greater", "less", "not_equal",
             "greater_equal", "less_equal", "isnan", "isfinite", "isin"}  # fmt: skip
_JOINED = {"logical_not", "logical_and", "logical_or", "logical_xor", "bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "__invert__",
           "__and__", "__or__", "__xor__", "__rand__", "__ror__", "any", "all", "bool"}  # fmt: skip
_VIEWED = {"view", "reshape", "flatten", "unsqueeze", "squeeze", "expand", "select", "narrow", "t", "transpose", "permute",
           "__getitem__"}  # fmt: skip
_COUNTED = {"__mod__", "remainder", "__add__", "add", "__sub__", "sub", "__mul__", "mul", "__floordiv__", "floor_divide", "sum", "long", "int",
            "to"}  # fmt: skip  # of whole numbers
_PICKING = {"__getitem__", "masked_select", "nonzero", "argwhere", "where"}
# A question that has one answer for both is about small numbers.
_SIZES = ((1009, 2003, 3001, 4001, 5003), (4001, 3001, 2003, 1009, 503))


class ChangedMaskError(ModelError):
    """A mask that was made twice, and of which there is one here, is changed in place."""


class SameMasks(TorchFunctionMode):
    """Within, what is compared, joined, viewed or counted in the same way gives the same mask, and torch's questions about how many one picks have an answer.

    Raises ChangedMaskError, on leaving, where a mask that was made of two was changed in place.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[Any, tuple[torch.Tensor, int, Any]] = {}
        self._shared: list[tuple[torch.Tensor, int]] = []
        self._counts: set[Any] = set()  # symbols of how many a mask picks
        self._evaluate: Any = None
        self.supposed: dict[str, None] = {}  # lines of the model that ask whether a mask picks anything, in order

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, given = getattr(func, "__name__", ""), kwargs or {}
        if "out" in given or name not in _COMPARED | _JOINED | _VIEWED | _COUNTED | _PICKING:
            return func(*args, **given)
        key = (name, _key(args), _key(tuple(sorted(given.items()))))
        if key in self._made:
            found, version, _ = self._made[key]
            if found._version == version:
                self._shared.append((found, version))
                return found
        result = func(*args, **given)
        if name in _PICKING and not (name == "__getitem__" and not _holds_tensor(args[1])):
            self._counts |= _symbols(result) - _symbols((args, tuple(given.values())))
        elif isinstance(result, torch.Tensor) and not (result.is_floating_point() or result.is_complex()):
            self._made[key] = (result, result._version, (args, given))  # whose ids are theirs as long as they are kept
        return result

    def __enter__(self) -> "SameMasks":
        super().__enter__()
        self._evaluate = ShapeEnv.evaluate_expr
        patched: Any = ShapeEnv
        patched.evaluate_expr = self._answering()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        patched: Any = ShapeEnv
        patched.evaluate_expr = self._evaluate
        super().__exit__(kind, error, trace)
        if kind is None and any(mask._version != version for mask, version in self._shared):
            raise ChangedMaskError(
                "forward() changes a mask in place that it has made twice: make it once, or write `mask = mask & other`"
            )

    def _answering(self) -> Any:
        original = self._evaluate

        def evaluate(shapes: Any, *args: Any, **given: Any) -> Any:
            try:
                return original(shapes, *args, **given)
            except GuardOnDataDependentSymNode as error:
                answer = self._usual(error.cond)
                if answer is None or (asked_by_model() and not self._is_supposed(error.cond)):
                    raise
                return answer

        return evaluate

    def _is_supposed(self, question: Any) -> bool:
        """Whether an `if` asks whether a mask picks anything: the answer is yes, and its line is kept in `supposed`.

        It has one answer for none, and another for any other number. Where bool() asks, the answer is a number of the model, and may be no constant.
        """
        symbols, (frame, _) = question.free_symbols, asking()
        if frame is None or not _is_branch(frame) or len(symbols) != 1 or not symbols <= self._counts:
            return False
        none, *others = (str(question.subs(dict.fromkeys(symbols, count))) for count in (0, 1, 2, 3, 1009))
        if len(set(others)) != 1 or {none, others[0]} != {"True", "False"}:
            return False
        self.supposed[f"{frame.f_code.co_filename}:{frame.f_lineno}"] = None
        return True

    def _usual(self, question: Any) -> Any:
        """The answer for any large numbers; None where it depends on them, or on more than what masks pick and the batch."""
        symbols = sorted(question.free_symbols, key=str)
        unknown = {symbol for symbol in symbols if str(symbol).startswith("u")}
        if not unknown <= self._counts or len(symbols) > len(_SIZES[0]):
            return None
        first, second = (question.subs(dict(zip(symbols, sizes, strict=False))) for sizes in _SIZES)
        return first if first == second and str(first) in ("True", "False") else None


def _holds_tensor(index: Any) -> bool:
    return isinstance(index, torch.Tensor) or (isinstance(index, tuple | list) and any(map(_holds_tensor, index)))


def _symbols(values: Any) -> set[Any]:
    """The symbols in sizes of tensors, and in numbers."""
    if isinstance(values, tuple | list):
        return set().union(*map(_symbols, values))
    if isinstance(values, slice):
        return _symbols((values.start, values.stop, values.step))
    if isinstance(values, torch.Tensor):
        return _symbols(tuple(values.shape))
    return set(values.node.expr.free_symbols) if isinstance(values, torch.SymInt) else set()


def _key(value: Any) -> Any:
    """What tells arguments apart."""
    if isinstance(value, torch.Tensor):
        return "tensor", id(value), value._version
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return "symbol", str(value.node.expr)
    if isinstance(value, slice):
        return "slice", _key(value.start), _key(value.stop), _key(value.step)
    if isinstance(value, tuple | list):
        return tuple(_key(each) for each in value)
    return type(value).__name__, str(value)


def _is_branch(frame: FrameType) -> bool:
    """Whether what a frame is at decides where it goes on, as `if`, `assert` and `while` do."""
    return opname[frame.f_code.co_code[frame.f_lasti]].startswith(("POP_JUMP", "TO_BOOL"))
