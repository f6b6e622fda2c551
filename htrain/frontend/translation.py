"""The state of one capture: which blob, constant or parameter each node of the exported graph has become."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx

from htrain.errors import ModelError
from htrain.frontend.draws import Drawn
from htrain.frontend.symbolic_numbers import Numbers
from htrain.net.blobs import BATCH_KEY
from htrain.net.net import Attr, BatchDim, Blob, Dim, Init, Net, Parameter
from htrain.ops.base import constant_of
from htrain.ops.builder import NO_ATTRS, NetBuilder


class PickedShapeError(ModelError):
    """A shape depends on how many elements a mask picks where an op makes what it has not been given."""


_PROBES = (1009, 2003)  # as infer_by_kernel's: primes, which no model's own dimensions are multiples of


class Translation:
    """The state of a capture from PyTorch; handlers of ATen ops write to `builder` through it.

    `names` has the blob of each node, `parts` the blobs of a node with several outputs, `static` the value of a node
    that depends on no input, `buffers` the names of those that are buffers of the model. `values` are those of parameters that ops have made.
    `drawn` says when what is drawn at random is.
    """

    def __init__(self, name: str, batch: Any, bags: Mapping[Any, int]) -> None:
        self.builder = NetBuilder(name)
        self.names: dict[fx.Node, str] = {}
        self.parts: dict[fx.Node, Sequence[str]] = {}  # nodes with several outputs
        self.static: dict[fx.Node, Any] = {}  # nodes that depend on no input: their values
        self.mixing: dict[str, None] = {}  # ops over the examples of a batch, as notes name them
        self.buffers: dict[fx.Node, str] = {}
        self.values: dict[str, torch.Tensor] = {}
        self.tables: set[str] = set()
        self.drawn = Drawn()
        self.when_read: dict[
            fx.Node, Callable[[], str]
        ] = {}  # nodes that become a blob if an op reads them, or are refused
        self.complex: set[fx.Node] = set()  # nodes whose blobs have their parts as a last dimension
        self._batch = batch
        self._bags = bags
        self.places: dict[fx.Node, str] = {}  # of masks that depend on the batch: where they are true
        self._counts: dict[Any, Dim] = {}  # of what masks pick
        self._picked: dict[Any, str] = {}  # of those that depend on the batch: a blob that is as long
        self._constants: dict[fx.Node, str] = {}

    def declare_input(self, node: fx.Node) -> None:
        """Make a node an input of the net. Raises ModelError for one that has a parameter's name."""
        if str(node.target) in self.builder.parameters:
            raise ModelError(
                f"forward() takes an argument '{node.target}', and the model has a parameter of that name: rename one of the two"
            )
        self.names[node] = self.builder.input(
            Blob(str(node.target), self.shape(node), dtype_name(node.meta["val"].dtype))
        )

    def parameter(self, node: fx.Node, parameter: Parameter) -> None:
        """Make a node a parameter of the net."""
        self.names[node] = self.builder.parameter(parameter)

    def statistic(self, node: fx.Node) -> str:
        """Make a node, a buffer with a value, a running statistic of the net; its name. Raises ModelError for what is none."""
        if node not in self.names:
            name, value = self.buffers.get(node, ""), self.static.get(node)
            if value is None or not name:
                raise ModelError(f"'{node}' is not a buffer that holds a statistic")
            first = float(value.flatten()[0])
            same = bool((value == first).all())
            init = Init("constant", (first,)) if same else Init("file")
            self.parameter(
                node, Parameter(name, tuple(value.shape), dtype_name(value.dtype), "statistic", init, trained=False)
            )
            self.values.update({} if same else {name: value.detach()})
        return self.names[node]

    def batch_key(self) -> str:
        """The input that tells batches apart, of ops that draw random numbers."""
        return BATCH_KEY.name if BATCH_KEY.name in self.builder.inputs else self.builder.input(BATCH_KEY)

    def make_table(self, name: str) -> None:
        """The parameter `name` is an embedding table."""
        self.builder.parameters[name] = replace(self.builder.parameters[name], kind="table")

    def blob(self, value: Any, *, like: torch.Tensor | None = None) -> str:
        """The blob of a node, of a constant tensor or of a number. A number takes the dtype that torch would give it
        beside `like`.

        Raises ModelError for what is none of these.
        """
        if isinstance(value, fx.Node) and value in self.names:
            return self.names[value]
        if isinstance(value, fx.Node) and value in self.static:
            if value not in self._constants:
                held = self.static[value]
                if isinstance(held, torch.Tensor) and held.is_complex():
                    held = torch.view_as_real(held.resolve_conj())
                    self.complex.add(value)
                self._constants[value] = self.constant(held, module=self.module_of(value))
            return self._constants[value]
        if isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.SymInt | torch.SymFloat):
            return self._number(value, like)
        if isinstance(value, fx.Node) and value in self.when_read:
            self.names[value] = self.when_read[value]()
            return self.names[value]
        if isinstance(value, bool | int | float):
            return self.constant(torch.tensor(value, dtype=_scalar_dtype(value, like)), module="")
        raise ModelError(f"'{value}' is not a tensor that the net computes")

    def constant(self, value: torch.Tensor, *, module: str) -> str:
        """A new Constant blob with the tensor's shape and dtype."""
        return self.builder.add("Constant", (), attrs={"value": constant_of(value)}, module=module)[0]

    def _number(self, node: fx.Node, like: torch.Tensor | None) -> str:
        """A number that torch left symbolic, in the dtype that torch would give it beside `like`."""
        value = node.meta["val"]
        numbers = Numbers(partial(self.step, node), partial(self._symbol, node), self._exactly)
        name = numbers.write(value.node.expr)
        dtype = dtype_name(_scalar_dtype(1.0 if isinstance(value, torch.SymFloat) else 1, like))
        return name if self.builder.blob(name).dtype == dtype else self.step(node, "Cast", (name,), {"to": dtype})

    def _exactly(self, number: float) -> str:
        dtype = torch.int64 if isinstance(number, int) else torch.float64
        return self.constant(torch.tensor(number, dtype=dtype), module="")

    def _symbol(self, node: fx.Node, symbol: Any) -> str:
        """How many examples a batch has, or numbers its lists: so many ones, summed; or the number that item() takes out of a tensor, without its gradient.

        Raises ModelError for what is none of these.
        """
        made = next((other for other in node.graph.nodes if _stands_for(other, symbol)), None)
        if symbol == self._batch:
            ones = self.step(node, "Fill", (), {"shape": (-1,), "value": 1.0, "dtype": "int64"})
        elif symbol in self._bags or symbol in self._picked:
            ones = self.step(node, "Cast", (self._whole(node, symbol),), {"to": "int64"})
        elif made is not None and made.op == "call_function":
            taken = self.step(node, "Detach", (self.blob(made.args[0]),))
            exact = "float64" if isinstance(made.meta["val"], torch.SymFloat) else "int64"
            return self.step(node, "Cast", (self.step(node, "Reshape", (taken,), {"shape": ()}),), {"to": exact})
        else:
            raise ModelError(f"{node.target} in {self.where(node)}: '{symbol}' depends on the values of a batch")
        return self.step(node, "ReduceSum", (ones,), {"axes": (0,), "keepdims": False})

    def _whole(self, node: fx.Node, symbol: Any) -> str:
        """bool[n], true in as many places as the lists of a batch hold, or a mask picks. Raises ModelError for another symbol."""
        if not (symbol in self._picked or symbol in self._bags):
            raise ModelError(f"{node.target} in {self.where(node)}: '{symbol}' depends on the values of a batch")
        made = (self.blob(other) for other in node.graph.nodes if _stands_for(other, symbol))
        name = self._picked.get(symbol) or next(made)
        same = self.step(node, "Equal", (name, name))
        is_whole = self.builder.blob(name).dtype.startswith("int")  # else nan is no equal of its own
        return same if is_whole else self.step(node, "Or", (same, self.step(node, "Not", (same,))))

    def length(self, node: fx.Node, size: Any) -> str:
        """int64[]: a size of a tensor, as torch has it, in each batch."""
        if isinstance(size, int):
            return self._exactly(size)
        return Numbers(partial(self.step, node), partial(self._symbol, node), self._exactly).write(size.node.expr)

    def _as_many(self, node: fx.Node, size: Any, most: BatchDim) -> str:
        """bool[n], true in as many places as a size, which is at most `most`."""
        symbol = size.node.expr
        if symbol in self._picked or symbol in self._bags:
            return self._whole(node, symbol)
        ones = self.step(node, "Fill", (), {"shape": (-most.per_example,), "value": 1.0, "dtype": "int64"})
        count = self.step(node, "CumSum", (ones,), {"axis": 0})
        places = self.step(node, "FlatNonZero", (self.step(node, "LessOrEqual", (count, self.length(node, size))),))
        self._picked[symbol] = places
        return self.step(node, "Equal", (places, places))

    def filled(self, node: fx.Node, value: float, dtype: str) -> str:
        """A number in each place of a node's shape."""
        shape = self.shape(node)
        if not any(map(_is_bound, shape)):
            return self.step(node, "Fill", (), {"shape": self.batch_shape(shape), "value": value, "dtype": dtype})
        number = self.constant(torch.tensor(value, dtype=getattr(torch, dtype)), module=self.module_of(node))
        return self.spread(node, number)

    def spread(self, node: fx.Node, name: str) -> str:
        """A blob in the shape of a node, which it fits."""
        shape = self.shape(node)
        before = (None,) * (len(shape) - len(self.builder.blob(name).shape))
        own = (*before, *self.builder.blob(name).shape)
        for place, (size, d) in enumerate(zip(node.meta["val"].shape, shape, strict=True)):
            if isinstance(d, BatchDim) and d.bound and own[place] != d:
                along = tuple(-1 if other == place else 1 for other in range(len(shape)))
                everywhere = self.step(node, "Reshape", (self._as_many(node, size, d),), {"shape": along})
                name = self.step(node, "Where", (everywhere, name, name))
        return self.broadcast(node, name, shape)

    def places_along(self, node: fx.Node, like: fx.Node, axis: int) -> str:
        """0, 1, ... along a dimension of `like` that is as long as what a mask picks."""
        size = like.meta["val"].shape[axis]
        most = self.dim(size, like)
        assert isinstance(most, BatchDim)
        ones = self.step(node, "Cast", (self._as_many(node, size, most),), {"to": "int64"})
        return self.step(node, "Sub", (self.step(node, "CumSum", (ones,), {"axis": 0}), self.blob(1)))

    def broadcast(self, node: fx.Node, name: str, shape: Sequence[Dim]) -> str:
        """A blob in a shape that it fits; what a mask has picked is as long as it is."""
        if self.builder.blob(name).shape == tuple(shape):
            return name
        own = self.builder.blob(name).shape
        before = (None,) * (len(shape) - len(own))
        wanted = tuple(
            0 if _is_bound(d) and d == given else self.batch_shape((d,))[0]
            for d, given in zip(shape, (*before, *own), strict=True)
        )
        return self.step(node, "BroadcastTo", (name,), {"shape": wanted})

    def add(self, node: fx.Node, type: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = NO_ATTRS) -> str:
        """Append an op that computes `node`; it is named after it."""
        name = self.builder.add(
            type, inputs, attrs=attrs, module=self.module_of(node), outputs=(self.builder.fresh(node.name),)
        )[0]
        self.names[node] = name
        return name

    def step(self, node: fx.Node, type: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = NO_ATTRS) -> str:
        """Append an op that `node`'s own ops will read; the name of its output."""
        return self.builder.add(type, inputs, attrs=attrs, module=self.module_of(node))[0]

    def alias(self, node: fx.Node, source: Any) -> None:
        """Have `node` be the same blob as `source`."""
        self.names[node] = self.blob(source)

    def shape(self, node: fx.Node) -> tuple[Dim, ...]:
        """The shape of a node's value; sizes that torch left symbolic are multiples of the batch."""
        return tuple(self.dim(size, node) for size in node.meta["val"].shape)

    def dim(self, size: Any, node: fx.Node) -> Dim:
        """A size that torch left symbolic as a multiple of the batch. Raises ModelError when it is none."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression in self._bags:
            return BatchDim(self._bags[expression], bound=True)
        counts = {symbol: self._counts[symbol] for symbol in expression.free_symbols if symbol in self._counts}
        exact = {symbol: self._in_symbols(count) for symbol, count in counts.items() if not _is_bound(count)}
        most = {symbol: self._in_symbols(count) for symbol, count in counts.items() if _is_bound(count)}
        told = _at_most(expression.subs(exact), most)
        if told is not None and told.is_number and not most:
            return int(told)
        if told is not None and told.free_symbols == {self._batch}:
            small, large = (int(told.subs(self._batch, probe)) for probe in _PROBES)
            if small % _PROBES[0] == 0 and small // _PROBES[0] * _PROBES[1] == large:
                return BatchDim(small // _PROBES[0], bool(most))
        raise ModelError(
            f"{node.target} in {self.where(node)}: a dimension of {self._in_words(expression)} is not a multiple of the batch size B: what is joined to "
            "a batch must be as much for each example; compute both apart, and join what comes of them along another dimension"
        )

    def _in_words(self, expression: Any) -> str:
        """A size as messages have it: B is the batch size."""
        return str(expression).replace(str(self._batch), "B")

    def learn(self, size: Any, known: Dim) -> None:
        """That a size which torch could not tell, as it depends on the values of a mask, is `known`. Others stay as they are."""
        if not isinstance(size, int) and not self.is_of_batch(size):
            self._counts[size.node.expr] = known

    def pick(self, size: Any, places: str) -> None:
        """That a size is how many places there are in the blob `places`."""
        self.learn(size, self.builder.blob(places).shape[0])
        self._picked.setdefault(size.node.expr, places)

    def is_of_batch(self, size: Any) -> bool:
        """Whether a size that torch left symbolic depends on how large a batch is, or on how long its lists are."""
        return bool(size.node.expr.free_symbols & {self._batch, *self._bags})

    def _in_symbols(self, count: Dim) -> Any:
        return count if isinstance(count, int) else count.per_example * self._batch

    def open_shape(self, node: fx.Node) -> tuple[int, ...]:
        """A node's shape for Reshape: the batch-dependent entry is -1. Raises ModelError when there are two."""
        shape = self.shape(node)
        if sum(isinstance(d, BatchDim) for d in shape) > 1:
            raise ModelError(
                f"{node.target} in {self.where(node)}: two dimensions of {list(map(str, shape))} depend on the batch"
            )
        return tuple(d if isinstance(d, int) else -1 for d in shape)

    def batch_shape(self, shape: Sequence[Dim]) -> tuple[int, ...]:
        """A shape for BroadcastTo and Fill: -k stands for k * B. Raises PickedShapeError for one that depends on what a mask picks."""
        if any(map(_is_bound, shape)):
            sizes = ", ".join(map(str, shape))
            raise PickedShapeError(f"the shape [{sizes}] depends on how many elements a mask picks, or lists hold")
        return tuple(d if isinstance(d, int) else -d.per_example for d in shape)

    def where(self, node: fx.Node) -> str:
        """How messages say where a node comes from."""
        module = self.module_of(node)
        return f"module '{module}'" if module else f"forward() of {self.builder.name}"

    def module_of(self, node: fx.Node) -> str:
        """The dotted path of the innermost module that a node comes from; "" for the model itself."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        return str(stack[-1][0]) if stack else ""

    def build(self, *outputs: str) -> Net:
        """The net that has been written, with these blobs as its outputs."""
        return self.builder.build(outputs)


def dtype_name(dtype: torch.dtype) -> str:
    """A torch dtype as blobs name it: `float32`."""
    return str(dtype).removeprefix("torch.")


def _stands_for(node: fx.Node, symbol: Any) -> bool:
    """Whether a node is the number of a symbol, or an input of which it is the length."""
    value = node.meta.get("val")
    if node.op == "placeholder" and isinstance(value, torch.Tensor) and value.dim():
        value = value.shape[0]
    elif str(node.target) not in ("aten._local_scalar_dense.default", "aten.item.default"):
        return False
    return isinstance(value, torch.SymInt | torch.SymFloat) and value.node.expr == symbol


def _is_bound(size: Dim | None) -> bool:
    return isinstance(size, BatchDim) and size.bound


def _at_most(size: Any, most: Mapping[Any, Any]) -> Any:
    """The largest that a size can be where each of some symbols is between 0 and so many; None where a larger one of these may give less or more.

    What is taken away may be nothing.
    """
    if not size.free_symbols & most.keys():
        return size
    kind = type(size).__name__
    if size.is_Symbol:
        return most[size]
    if kind == "Mul" and any(part.is_number and part.is_negative for part in size.args):
        return 0 * size
    if kind not in ("Add", "Mul", "Max", "Min") and not (kind == "FloorDiv" and size.args[1].is_number):
        return None
    parts = [_at_most(part, most) for part in size.args]
    return None if any(part is None for part in parts) else size.func(*parts)


def _scalar_dtype(value: float, like: torch.Tensor | None) -> torch.dtype:
    if like is None:
        return torch.float32 if isinstance(value, float) else torch.int64
    if isinstance(value, float) and not like.dtype.is_floating_point:
        return torch.float32
    return torch.int64 if like.dtype is torch.bool and not isinstance(value, bool) else like.dtype


def static_value(translation: Translation, node: fx.Node) -> Any:
    """The value of a node that depends on no input and no parameter, computed now; None for other nodes.

    Raises ModelError where it cannot be computed.
    """
    args, kwargs = node.args, node.kwargs
    inputs = node.all_input_nodes
    if any(source not in translation.static for source in inputs) or _is_symbolic(translation, node):
        return None
    if isinstance(node.meta["val"], torch.Tensor) and not inputs and node.meta["val"].numel() > 1 << 22:
        return None
    args, kwargs = fx.node.map_arg((args, kwargs), lambda source: translation.static[source])
    if "device" in kwargs:
        kwargs = {**kwargs, "device": "cpu"}
    try:
        value = node.target(*args, **kwargs)  # type: ignore[operator]
    except (RuntimeError, ValueError, TypeError, IndexError, ZeroDivisionError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{node.target} in {translation.where(node)} cannot be computed: {reason}") from error
    _learn_sizes(translation, node.meta["val"], value)
    return value


def _learn_sizes(translation: Translation, expected: Any, value: Any) -> None:
    """How many places a constant mask has, and the like."""
    for told, known in zip(_tensors(expected), _tensors(value), strict=True):
        for size, count in zip(told.shape, known.shape, strict=True):
            translation.learn(size, count)


def _tensors(values: Any) -> list[torch.Tensor]:
    found = values if isinstance(values, tuple | list) else (values,)
    return [value for value in found if isinstance(value, torch.Tensor)]


def _is_symbolic(translation: Translation, node: fx.Node) -> bool:
    sizes = [size for tensor in _tensors(node.meta["val"]) for size in tensor.shape]
    return any(not isinstance(size, int) and translation.is_of_batch(size) for size in sizes)
