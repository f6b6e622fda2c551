"""The state of one ONNX capture: which blob, parameter or known value each value of the graph has become."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from htrain.errors import ModelError
from htrain.frontend.onnx_operator import Operator
from htrain.frontend.onnx_weights import DTYPES, Stored
from htrain.net.net import Attr, BatchDim, Blob, Dim, Init, Parameter, Shape
from htrain.ops.base import constant_of
from htrain.ops.builder import NO_ATTRS, NetBuilder

Node: TypeAlias = "ir.Node | Operator"
PROBES = (1009, 2003)  # as infer_by_kernel's: primes, which no model's own dimensions are multiples of
GROWING = frozenset({"ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Tile"})  # a few numbers in, many out
_CONSTANT_BYTES = 1 << 20  # a larger tensor is a parameter with a file: plans hold constants in their nets
_ENTRIES = 1e8  # no shape or mask has as many
_RANK = 16  # a longer list of numbers is data, not a shape


@dataclass(frozen=True)
class Known:
    """A value that no example changes: its arrays at the two probe batch sizes. Shapes, masks, constants."""

    arrays: tuple[NDArray[Any], NDArray[Any]]

    @property
    def constant(self) -> bool:
        """Whether the batch size does not change it either."""
        small, large = self.arrays
        return small.shape == large.shape and small.tobytes() == large.tobytes()


class Graph:
    """Handlers of ONNX ops write to `builder` through this. `fixed_batch` is the batch size that the file fixes, or 0."""

    def __init__(self, name: str, opsets: Mapping[str, int], *, stored: Mapping[str, Stored], fixed_batch: int) -> None:
        self.builder = NetBuilder(name)
        self.builder.reserve(
            stored
        )  # they are declared where they are first read, behind ops that have made names of their own
        self.opsets = opsets
        self.stored = stored
        self.fixed_batch = fixed_batch
        self.known: dict[str, Known] = {}
        self.names: dict[str, str] = {}  # ONNX value -> blob or parameter
        self.values: dict[str, torch.Tensor] = {}
        self.done: set[ir.Node] = set()  # nodes that another one's handler has translated along with its own

    @property
    def opset(self) -> int:
        """The version of ONNX's own ops that the file asks for."""
        return self.opsets.get("", self.opsets.get("ai.onnx", 0))

    # -- operands ----------------------------------------------------------------------------------------------------

    def operand(self, node: Operator, index: int) -> ir.Value | None:
        """An input of a node, None where it is left out."""
        return node.take(index)

    def blob(self, node: Operator, index: int) -> str:
        """The blob or parameter that input `index` of `node` is. Raises ModelError when it is left out."""
        value = self.operand(node, index)
        if value is None:
            raise self.refusal(node, f"has no input {index}")
        return self.blob_of(node, value)

    def blobs(self, node: Operator) -> list[str]:
        """The blobs of a node's inputs, without those that are left out."""
        values = [self.operand(node, index) for index in range(len(node.inputs))]
        return [self.blob_of(node, value) for value in values if value is not None]

    def blob_of(self, node: Node, value: ir.Value) -> str:
        """The blob or parameter that a value of the graph is, made when it is first wanted. Raises ModelError for a
        value that the net cannot hold.
        """
        name = str(value.name)
        if name not in self.names:
            known = self.known.get(name)
            self.names[name] = self._constant(node, name, known) if known else self._parameter(name, self.stored[name])
        return self.names[name]

    def constant(self, node: Node, array: NDArray[Any] | np.generic) -> str:
        """A new Constant blob with the array's shape and dtype."""
        value = constant_of(torch.from_numpy(np.ascontiguousarray(array).reshape(np.shape(array)).copy()))
        return self.builder.add("Constant", (), attrs={"value": value}, module=self.module_of(node))[0]

    def scalar(self, node: Node, value: float, like: str) -> str:
        """A constant with the dtype of the blob `like`."""
        tensor = torch.tensor(value, dtype=getattr(torch, self.builder.blob(like).dtype))
        return self.builder.add("Constant", (), attrs={"value": constant_of(tensor)}, module=self.module_of(node))[0]

    def array(self, node: Operator, index: int) -> NDArray[Any] | None:
        """The constant that an input is; None where it is left out. Raises ModelError when examples or the batch change it."""
        value = self.operand(node, index)
        if value is None:
            return None
        known = self.known.get(str(value.name))
        if known is None or not known.constant:
            raise self.refusal(node, f"input {index} ('{value.name}') must be a constant")
        return known.arrays[0]

    def ints(self, node: Operator, index: int, attribute: str) -> tuple[int, ...] | None:
        """A list of ints that newer opsets give as an input and older ones as an attribute; None where it is left out."""
        if attribute in node.attributes:
            return tuple(int(v) for v in node.attributes[attribute].as_ints())
        array = self.array(node, index)
        return None if array is None else tuple(int(v) for v in np.ravel(array))

    def shape(self, name: str) -> Shape:
        """The shape of a blob or parameter."""
        return self.builder.blob(name).shape

    def rank(self, name: str) -> int:
        """The number of dimensions of a blob or parameter."""
        return len(self.builder.blob(name).shape)

    # -- results -----------------------------------------------------------------------------------------------------

    def emit(self, node: Node, type: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = NO_ATTRS) -> None:
        """Append the op that computes `node`'s outputs."""
        names = [self.builder.fresh(str(value.name)) for value in node.outputs]
        self.builder.add(type, inputs, attrs=attrs, module=self.module_of(node), outputs=names)
        self.names.update({str(value.name): name for value, name in zip(node.outputs, names, strict=True)})

    def step(self, node: Node, type: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = NO_ATTRS) -> str:
        """Append an op that `node`'s own ops will read; the name of its output."""
        return self.builder.add(type, inputs, attrs=attrs, module=self.module_of(node))[0]

    def alias(self, node: Node, blob: str) -> None:
        """Have `blob` be the output of `node`."""
        self.names[str(node.outputs[0].name)] = blob

    def reshape(self, node: Node, blob: str, shape: Shape) -> str:
        """`blob` in another shape. Raises ModelError when two of its dimensions depend on the batch."""
        if shape == self.shape(blob):
            return blob
        if sum(isinstance(d, BatchDim) for d in shape) > 1:
            raise self.refusal(node, f"two dimensions of [{', '.join(map(str, shape))}] depend on the batch")
        return self.step(node, "Reshape", (blob,), {"shape": tuple(d if isinstance(d, int) else -1 for d in shape)})

    def refusal(self, node: Node, what: str) -> ModelError:
        """The error for a node that htrain cannot compile."""
        return ModelError(f"op {node.op_type} '{label(node)}': {what}")

    def module_of(self, node: Node) -> str:
        """The unit that a node belongs to: that of the weight it reads, the exporter's scope, or the path in its name."""
        for value in node.inputs:
            if value is not None and value.name in self.stored:
                return scope_of(str(value.name)) or str(value.name)
        scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes", "")
        if scopes:
            return scopes.strip("[]").split(", ")[-2:][0].strip("'\"")
        return str(node.name or "").rpartition("/")[0].strip("/")

    # -- values that no example changes ------------------------------------------------------------------------------

    def evaluate(self, node: ir.Node) -> bool:
        """Compute `node` now if its value is the same for all examples; returns whether it is."""
        if node.op_type in ("Shape", "Size") and node.domain == "" and node.inputs[0] is not None:
            name = self.names.get(str(node.inputs[0].name))
            if name is not None:
                self._know(node, lambda probe: [np.broadcast_to(np.float32(0), concrete(self.shape(name), probe))])
                return True
        names = [str(value.name) for value in node.inputs if value is not None]
        if node.domain != "" or node.op_type.startswith("Random") or any(name not in self.known for name in names):
            return False
        if any(
            attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
            for attribute in node.attributes.values()
        ):
            return False  # what its body reads from outside is no input of it
        if node.op_type in GROWING:
            self._refuse_growth(node)
        by_probe = {probe: [self.known[name].arrays[i] for name in names] for i, probe in enumerate(PROBES)}
        self._know(node, lambda probe: by_probe[probe])
        return True

    def _refuse_growth(self, node: ir.Node) -> None:
        """Raises ModelError before a few numbers of a damaged file are made an array that is larger than memory."""
        numbers = [
            np.abs(np.ravel(self.known[str(v.name)].arrays[1]).astype(np.float64)) for v in node.inputs if v is not None
        ]
        if node.op_type == "Range":
            entries = float((numbers[0] + numbers[1]).sum() / max(numbers[2].sum(), 1e-300))
        else:
            entries = float(
                np.prod([np.prod(n[n > 1]) for n in numbers if n.size <= _RANK]) * max(n.size for n in numbers)
            )
        if not entries < _ENTRIES:
            raise self.refusal(node, "would hold more than 10^8 entries")

    def _know(self, node: ir.Node, inputs: Callable[[int], Sequence[NDArray[Any]]]) -> None:
        names = [str(value.name) for value in node.inputs if value is not None]
        try:
            evaluator = ReferenceEvaluator(ir.to_proto(node), opsets={"": self.opset})
            results = [evaluator.run(None, dict(zip(names, inputs(probe), strict=True))) for probe in PROBES]
        except Exception as error:  # the evaluator of a foreign file's node may raise anything
            raise self.refusal(
                node, f"cannot be computed: {str(error).splitlines()[0] if str(error) else error!r}"
            ) from error
        for value, small, large in zip(node.outputs, *results, strict=True):
            self.known[str(value.name)] = Known((np.asarray(small), np.asarray(large)))

    def _constant(self, node: Node, name: str, known: Known) -> str:
        small = known.arrays[0]
        if str(small.dtype) not in DTYPES.values():
            raise self.refusal(node, f"constant '{name}' has dtype {small.dtype}, which htrain does not know")
        if not known.constant:
            return self._filled(node, name, known)
        if small.nbytes <= _CONSTANT_BYTES:
            return self.constant(node, small)
        fresh = self.builder.fresh(name)
        self.values[fresh] = torch.from_numpy(np.array(small))
        parameter = Parameter(fresh, small.shape, str(small.dtype), "weight", Init("file"), trained=False)
        return self.builder.parameter(parameter)

    def _filled(self, node: Node, name: str, known: Known) -> str:
        small, large = known.arrays
        first = small.flat[0] if small.size else 0
        if small.ndim == 0 or small.ndim != large.ndim or not (np.all(small == first) and np.all(large == first)):
            raise self.refusal(node, f"reads '{name}', whose values depend on the batch size")
        shape = tuple(d if isinstance(d, int) else -d.per_example for d in self.dims(node, small.shape, large.shape))
        if small.dtype == bool:
            filled = self.step(node, "Fill", (), {"shape": shape, "value": float(first), "dtype": "int64"})
            return self.step(node, "Cast", (filled,), {"to": "bool"})
        return self.step(node, "Fill", (), {"shape": shape, "value": float(first), "dtype": str(small.dtype)})

    def _parameter(self, name: str, stored: Stored) -> str:
        if stored.values is not None:
            self.values[name] = stored.values
        return self.builder.parameter(stored.parameter)

    # -- dimensions --------------------------------------------------------------------------------------------------

    def dims(self, node: Node, small: Sequence[int], large: Sequence[int]) -> Shape:
        """Sizes at the two probe batch sizes as dimensions. Raises ModelError for one that is no multiple of the batch
        size.
        """
        return tuple(self._dim(node, int(a), int(b)) for a, b in zip(small, large, strict=True))

    def _dim(self, node: Node, small: int, large: int) -> Dim:
        if small == large:
            return small
        per_example, rest = divmod(small, PROBES[0])
        if rest or per_example * PROBES[1] != large:
            raise self.refusal(node, "gives a size that is not a multiple of the batch size")
        return BatchDim(per_example)

    def declare_input(self, value: ir.Value, shape: Shape, dtype: str) -> None:
        """Make a value of the graph an input of the net."""
        self.names[str(value.name)] = self.builder.input(Blob(str(value.name), shape, dtype))


def concrete(shape: Shape, batch_size: int) -> tuple[int, ...]:
    """A shape at a batch size, in numbers."""
    return tuple(d if isinstance(d, int) else d.at(batch_size) for d in shape)


def label(node: Node) -> str:
    """How messages name a node of the file."""
    return str(node.name or next((o.name for o in node.outputs if o.name), ""))


def scope_of(name: str) -> str:
    """The path of a weight's name: 'mlp.0' of 'mlp.0.weight', 'model/dense' of 'model/dense/kernel:0'."""
    return name.rpartition("/")[0] if "/" in name else name.rpartition(".")[0]
