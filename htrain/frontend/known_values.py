"""Values that are known while a model is captured: of buffers that nothing trains, of tensors of attributes, and what is computed of these and of numbers.

torch.export takes the values of all tensors for those of a batch, so that `range(int(self.num_layers))`, `if self.use_bn:` and
`for n in self.field_dims.tolist()` have no answer there. Here each tensor that depends on no batch and on no parameter has its value beside it.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes

from htrain.errors import ModelError
from htrain.frontend.assertions import answer_that_goes_on
from htrain.frontend.blame import asking, users_line
from htrain.frontend.packed_sequences import Listed

MOST_BYTES = (
    1 << 20
)  # of a constant, which a plan holds in its nets: a larger buffer is a parameter with a file, as a checkpoint may have another
_ASKING = frozenset(
    {"item", "tolist", "numpy", "is_nonzero", "equal", "allclose", "__bool__", "__int__", "__float__", "__complex__", "__index__", "__array__",
     "__format__", "__contains__"}
)  # fmt: skip  # whose answer is no tensor
_TRUTH = frozenset({"__bool__", "is_nonzero", "item"})  # what an `if` asks for
_FINDING = frozenset(
    {
        "nonzero",
        "argwhere",
        "masked_select",
        "unique",
        "unique_consecutive",
        "repeat_interleave",
        "combinations",
        "bincount",
    }
)  # whose result is as long as the values say
_MAKING = frozenset({"zeros", "ones", "full", "arange", "linspace", "eye"})
_SIZED = frozenset(
    {"view", "reshape", "expand", "repeat", "tile", "topk", "kthvalue", "narrow", "select", "split", "chunk", "unfold", "roll", "unflatten", "one_hot",
     "new_zeros", "new_ones", "new_full"}
)  # fmt: skip  # which take tensors of one number in the place of numbers, behind their first argument
_LOOKS = frozenset({"size", "stride", "dim", "numel", "storage_offset", "element_size", "is_inference", "is_conj", "is_neg", "is_floating_point", "is_complex",
                    "is_contiguous", "_is_view", "untyped_storage", "__len__"})  # fmt: skip  # at what a tensor is, and not at its values
_PARTS = frozenset({"T", "mT", "H", "mH", "data", "grad", "real", "imag", "_base"})  # attributes that are tensors
_UNTOLD = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "set_", "resize_", "register_hook", "backward", "__set__"})  # fmt: skip
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool, torch.Generator)
_UNKNOWN = object()
_CURE = "a net goes one way for all batches; for what stays as it is write self.register_buffer, else torch.where, or weights of 0 and 1"


@dataclass(frozen=True)
class _Known:
    """A tensor of a capture, its value, and the names of the buffers that it was made of."""

    tensor: torch.Tensor
    value: torch.Tensor
    buffers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Slot:
    """Where a module keeps a parameter or a buffer."""

    space: dict[str, Any]
    key: str
    name: str

    @property
    def held(self) -> Any:
        """The tensor that is there now: torch puts another there while it traces. A space of torch.jit has no get()."""
        return next((self.space[key] for key in (self.key,) if key in self.space), None)


class KnownValues(TorchFunctionMode):
    """Within, what asks for the value of a tensor that is known has it.

    What is done in place to such a tensor is done to its value, too. What is not known and decides whether an error is raised has the other answer, and
    `asserted` the line. Raises ModelError where the value of a parameter says how to go on.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.asserted: dict[str, None] = {}
        self._asked: dict[str, str] = {}  # buffers whose values have decided what was captured: the lines that asked
        self._known: dict[int, _Known] = {}
        self._trained: dict[int, tuple[torch.Tensor, str]] = {}  # made of parameters, and of what is known: of which
        self._lost: set[int] = set()  # memory of values that were known until a batch was written there
        modules = dict(model.named_modules(remove_duplicate=False))
        slots = [slot for path, module in modules.items() for slot in _slots(path, module)]
        self._parameters = [slot for slot in slots if _is_weight(slot.held)]
        self._buffers = [slot for slot in slots if not _is_weight(slot.held)]
        self._values = {slot.name: _copied(slot.held) for slot in self._buffers if _is_small(slot.held)}

    def require_unchanged(self, changed: Iterable[str]) -> None:
        """Raises ModelError for a buffer whose value was asked for and is among those that forward() changes, such as a norm's count of batches."""
        for name in sorted(self._asked.keys() & set(changed)):
            raise ModelError(
                f"forward() asks for the value of buffer '{name}', which every batch changes{self._asked[name]}: {_CURE}"
            )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name in _LOOKS or (name == "__get__" and func.__self__.__name__ not in _PARTS):
            return func(*args, **given)
        with torch._C.DisableTorchFunction():  # what is asked here is nothing of the model's
            for tensor in _tensors((args, given)):
                self._meet(tensor)
        if name in ("__getitem__", "__setitem__"):
            index = self._in_numbers(args[1])
            args = (args[0], self._in_places(index) if name == "__getitem__" else index, *args[2:])
        elif name in _SIZED or name in _MAKING:
            first = 0 if name in _MAKING else 1
            args = (*args[:first], *map(self._in_numbers, args[first:]))
        elif name == "tensor_split":
            args = (args[0], *map(self._in_list, args[1:]))
        if name == "repeat_interleave" and (repeated := self._repeated(*args, **given)) is not None:
            return repeated
        if name in _ASKING or name in _FINDING:
            return self._answered(func, args, given)
        return self._run(func, args, given)

    def _meet(self, tensor: torch.Tensor) -> None:
        """Learn what a tensor is, if that was not known: all buffers at once, before the first is changed."""
        if id(tensor) in self._known or id(tensor) in self._trained:
            return
        if not isinstance(tensor, FakeTensor):
            if type(tensor) in (torch.Tensor, nn.Parameter) and _is_small(tensor):
                self._known[id(tensor)] = _Known(tensor, _copied(tensor))
            return
        for slot in self._parameters:
            if slot.held is tensor:
                self._trained[id(tensor)] = tensor, slot.name
        if any(slot.held is tensor for slot in self._buffers):
            for slot in self._buffers:
                self._declare(slot.held, slot.name)

    def _declare(self, buffer: Any, name: str) -> None:
        """Once each: what forward() sets a buffer to has come from a function."""
        value = self._values.pop(name, None)
        if value is None or not isinstance(buffer, FakeTensor):
            return
        before = self._known.get(id(buffer), _Known(buffer, value))
        self._known[id(buffer)] = _Known(buffer, before.value, before.buffers | {name})

    def _is_known(self, tensor: torch.Tensor) -> bool:
        known = self._known.get(id(tensor))
        return known is not None and _memory(known.value) not in self._lost

    def _run(self, func: Any, args: Any, given: Any) -> Any:
        """What a function gives, and the value of that where it is known."""
        tensors = list(_tensors((args, given)))
        with torch._C.DisableTorchFunction():
            versions = {id(tensor): tensor._version for tensor in tensors if self._is_known(tensor)}
        try:
            result = func(*args, **given)
        except ModelError:
            raise
        except Exception:
            value = self._computed(func, args, given) if tensors else _UNKNOWN
            if value is _UNKNOWN:
                raise
            return self._taken(value, tensors)
        with torch._C.DisableTorchFunction():
            return self._noted(func, args, given, result=result, tensors=tensors, versions=versions)

    def _noted(
        self, func: Any, args: Any, given: Any, *, result: Any, tensors: list[torch.Tensor], versions: Mapping[int, int]
    ) -> Any:
        """A result, or its value in its place; what is known of it, and what is not known any more of the `tensors` that it was made of."""
        made = list(_tensors(result))
        changed = [tensor for tensor in tensors if versions.get(id(tensor), tensor._version) != tensor._version]
        value = self._computed(func, args, given) if (made or changed) and all(map(_is_small, made)) else _UNKNOWN
        if value is not _UNKNOWN:
            return self._learned(result, value, tensors)
        self._lost.update(_memory(self._known[id(tensor)].value) for tensor in changed)
        names = [self._trained[id(tensor)][1] for tensor in tensors if id(tensor) in self._trained]
        if names and all(id(tensor) in self._trained or self._is_known(tensor) for tensor in tensors):
            self._trained.update({id(each): (each, names[0]) for each in made})
        return result

    def _answered(self, func: Any, args: Any, given: Any) -> Any:
        """What a function of known values finds. Raises ModelError for those of a parameter where torch has no answer, as for an `if`."""
        tensors = list(_tensors((args, given)))
        value = self._computed(func, args, given) if tensors else _UNKNOWN
        if value is not _UNKNOWN:
            return self._taken(value, tensors)
        if func.__name__ in _TRUTH and (going_on := answer_that_goes_on(asking()[0])) is not None:
            self.asserted[users_line(sys._getframe(1)).strip(" ()")] = None
            return going_on
        trained = [self._trained[id(tensor)][1] for tensor in tensors if id(tensor) in self._trained]
        if func is torch.Tensor.numpy and not trained and not isinstance(args[0].numel(), int):
            return Listed(args[0], "numpy")
        if not trained:
            return func(*args, **given)
        try:
            return func(*args, **given)
        except Exception as error:
            line = users_line(sys._getframe(1))
            raise ModelError(
                f"forward() asks for the value of parameter '{trained[0]}'{line}, which training or a checkpoint changes: {_CURE}"
            ) from error

    def _computed(self, func: Any, args: Any, given: Any) -> Any:
        """What a function gives of known values; _UNKNOWN for one that fails or draws random numbers, and where a value is not known."""
        leaves = _pytree.tree_leaves((args, given))
        unknown = any(isinstance(leaf, torch.Tensor) and not self._is_known(leaf) for leaf in leaves)
        if unknown or getattr(func, "__name__", "") in _UNTOLD or any(isinstance(leaf, _SYMBOLS) for leaf in leaves):
            return _UNKNOWN
        args, given = _pytree.tree_map_only(torch.Tensor, lambda tensor: self._known[id(tensor)].value, (args, given))
        with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
            before, value = torch.get_rng_state(), _UNKNOWN
            with suppress(Exception):  # which torch raises again, of the tensors that it was given
                value = func(*args, **given)
            if torch.equal(before, torch.get_rng_state()):
                return value
            torch.set_rng_state(before)
            return _UNKNOWN

    def _taken(self, value: Any, tensors: Iterable[torch.Tensor]) -> Any:
        """A value that goes into what is captured: tensors of it are constants there."""
        names = self._ask(tensors)
        for made in _tensors(value):
            self._known[id(made)] = _Known(made, _copied(made), names)
        return value

    def _learned(self, result: Any, value: Any, tensors: Iterable[torch.Tensor]) -> Any:
        """What torch has made of known values, or their value where torch does not know how long it is."""
        pairs = list(zip(_tensors(result), _tensors(value), strict=False))
        if any(tuple(made.shape) != tuple(held.shape) for made, held in pairs):
            return self._taken(value, tensors)
        names = frozenset().union(*(self._known[id(tensor)].buffers for tensor in tensors))
        for made, held in pairs:
            self._known.setdefault(id(made), _Known(made, held, names))
        return result

    def _ask(self, tensors: Iterable[torch.Tensor]) -> frozenset[str]:
        """Note the buffers that known tensors are made of; their names."""
        names = frozenset().union(*(self._known[id(tensor)].buffers for tensor in tensors))
        for name in names - self._asked.keys():
            self._asked[name] = users_line(sys._getframe(1))
        return names

    def _in_numbers(self, value: Any) -> Any:
        """Arguments with the numbers that known tensors of one whole number are."""
        if isinstance(value, slice):
            return slice(*map(self._in_numbers, (value.start, value.stop, value.step)))
        if type(value) in (tuple, list):
            return type(value)(map(self._in_numbers, value))
        whole = isinstance(value, torch.Tensor) and not value.dim() and _is_whole(value) and self._is_known(value)
        return self._in_list(value) if whole else value

    def _in_places(self, index: Any) -> Any:
        """An index with the places of what a known mask of one dimension picks."""
        if type(index) is tuple:
            return tuple(map(self._in_places, index))
        if not isinstance(index, torch.Tensor) or index.dtype != torch.bool or index.dim() != 1:
            return index
        found = self._computed(torch.Tensor.nonzero, (index,), {})
        return index if found is _UNKNOWN else self._taken(found, [index])[:, 0]

    def _in_list(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not self._is_known(value):
            return value
        self._ask([value])
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return self._known[id(value)].value.tolist()

    def _repeated(
        self, input: Any, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None
    ) -> torch.Tensor | None:
        """The elements of an unknown tensor, each as often as a known one says; None for other arguments."""
        if not isinstance(repeats, torch.Tensor) or not self._is_known(repeats) or self._is_known(input):
            return None
        source, along = (input.flatten(), 0) if dim is None else (input, dim)
        counts, size = self._in_list(repeats), source.shape[along]
        if not isinstance(counts, list) or len(counts) == 1:
            return torch.repeat_interleave(source, counts[0] if isinstance(counts, list) else counts, along)
        if len(counts) != size:
            return None
        places = [place for place, count in enumerate(counts) for _ in range(count)]
        return source.index_select(along, torch.tensor(places, dtype=torch.int64))


def _slots(path: str, module: nn.Module) -> Iterator[_Slot]:
    """Where a module keeps each of its tensors, and the name of it in the model."""
    spaces: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
    for space in spaces:
        for key, tensor in space.items():
            if tensor is not None:
                yield _Slot(space, key, f"{path}.{key}" if path else key)


def _is_weight(tensor: Any) -> bool:
    """Whether a tensor is trained, or is one that a checkpoint may hold otherwise: a parameter that holds no whole numbers."""
    return isinstance(tensor, nn.Parameter) and (tensor.is_floating_point() or tensor.is_complex())


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in _pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor))


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        return tensor.detach().clone()


def _is_whole(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _is_small(tensor: torch.Tensor) -> bool:
    """Whether a value of this shape is kept: not one as long as a batch, and none of a tensor without memory."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_inference():
        return False
    return isinstance(tensor.numel(), int) and tensor.numel() * tensor.element_size() <= MOST_BYTES


def _memory(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)
