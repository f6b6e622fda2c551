"""FCs cut into parts that group PSs can share (HT 4.1): vertically, horizontally, or two consecutive FCs together.

    vertical       w[N,K] by rows:    y = Concat(x @ w_i.T + b_i)                        each part makes some of the outputs
    horizontal     w[N,K] by columns: y = Sum(x_i @ w_i.T) + b                           each part reads some of the inputs
    co-partition   the first vertically, the second horizontally: y = Sum(act(x @ v_i.T + c_i) @ w_i.T) + b
                   what is between them never leaves its part

Every part is a module of its own, `module/0`, `module/1`, ..., and so are the parts of its parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from htrain.errors import ModelError
from htrain.net.net import Attr, Net, Op, Parameter
from htrain.net.placement import Split
from htrain.net.slices import readers
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder

ReadBy = Mapping[str, Sequence[int]]  # of each blob or parameter, the positions of the ops that read it
_FCS = ("FC", "FCBfloat16", "FCInt8")


@dataclass(frozen=True)
class Layer:
    """An FC that can be cut: its module, N and K, the activations that nobody but the next one reads, and the FC that follows them
    with no other reader between, if it can be cut, too."""

    module: str
    fc: Op
    outputs: int
    inputs: int
    activations: tuple[Op, ...]
    following: str


def layers_of(net: Net) -> dict[str, Layer]:
    """The FCs of a forward net that can be cut, by module: those whose weights nobody else reads."""
    read_by = readers(net.ops)
    fcs = {op.outputs[0]: op for op in net.ops if op.type in _FCS and _own_weights(net, op, read_by)}
    modules = [op.module for op in fcs.values()]
    return {
        op.module: _layer(net, op, read_by, {o.inputs[0]: o for o in fcs.values()})
        for op in fcs.values()
        if modules.count(op.module) == 1
    }


def _own_weights(net: Net, op: Op, read_by: ReadBy) -> bool:
    return all(name in net.parameters and len(read_by[name]) == 1 for name in op.inputs[1:])


def _layer(net: Net, op: Op, read_by: ReadBy, fc_on: Mapping[str, Op]) -> Layer:
    activations: list[Op] = []
    end = op.outputs[0]
    while (reader := _only_reader(net, end, read_by)) and _is_activation(reader):
        activations.append(reader)
        end = reader.outputs[0]
    following = fc_on[end].module if reader and end in fc_on else ""
    n, k = net.parameters[op.inputs[1]].shape
    return Layer(op.module, op, n, inputs=k, activations=tuple(activations), following=following)


def _only_reader(net: Net, name: str, read_by: ReadBy) -> Op | None:
    """The one op that reads a blob which is no output; None where that is not so."""
    return net.ops[read_by[name][0]] if name not in net.outputs and len(read_by[name]) == 1 else None


def _is_activation(op: Op) -> bool:
    """Whether a part of the op's input gives the same part of its output."""
    return OPS[op.type].elementwise and len(op.inputs) == 1


def split_fcs(net: Net, splits: Mapping[str, Split]) -> Net:
    """Cut the FCs that `splits` names by module; a co-partition is named by its first FC.

    Requires: a forward net with modules.
    Ensures:  the same outputs up to the order of sums; a part of a parameter has the values of that part of the whole.
    Raises ModelError naming an FC that cannot be cut so.
    """
    layers = layers_of(net)
    cuts = {module: _checked(layers, module, split, splits) for module, split in splits.items()}
    seconds = {layers[module].following for module in cuts if splits[module].kind == "co-partition"}
    cut_parameters = {name for module in (*cuts, *seconds) for name in layers[module].fc.inputs[1:]}
    builder = NetBuilder.beside(net, (p for name, p in net.parameters.items() if name not in cut_parameters))
    writers = {_end(layers, module, splits[module]): module for module in cuts}
    inside = {o for module in cuts for o in _written(layers, module, splits[module])}
    for op in net.ops:
        module = writers.get(op.outputs[0], "") if op.outputs else ""
        if module:
            _Parts(builder, net, layers, splits[module], cuts[module]).write(module, op.outputs[0])
        elif not (op.outputs and op.outputs[0] in inside):
            builder.copy(op)
    return builder.build(net.outputs)


def _end(layers: Mapping[str, Layer], module: str, split: Split) -> str:
    """The blob that the parts of a split make together."""
    return _written(layers, module, split)[-1]


def _written(layers: Mapping[str, Layer], module: str, split: Split) -> list[str]:
    """The blobs of the uncut net that a split makes in another way, in order."""
    layer = layers[module]
    if split.kind == "horizontal":
        return [layer.fc.outputs[0]]
    blobs = [layer.fc.outputs[0], *(op.outputs[0] for op in layer.activations)]
    return [*blobs, layers[layer.following].fc.outputs[0]] if split.kind == "co-partition" else blobs


def _checked(
    layers: Mapping[str, Layer], module: str, split: Split, splits: Mapping[str, Split]
) -> tuple[tuple[int, int], ...]:
    """The ranges of the dimension that is cut, nearly equal. Raises ModelError."""
    layer = layers.get(module)
    if layer is None:
        raise ModelError(
            f"'{module}' cannot be split: it is not an FC with weights of its own; those are {', '.join(layers) or 'none'}"
        )
    if split.kind == "co-partition" and not layer.following:
        raise ModelError(
            f"'{module}' has no FC that alone follows it: a co-partition takes two consecutive FCs with only activations between"
        )
    if split.kind == "co-partition" and layer.following in splits:
        raise ModelError(f"'{layer.following}' is split on its own and with '{module}': drop one of the splits")
    size = layer.inputs if split.kind == "horizontal" else layer.outputs
    if not 2 <= split.parts <= size:
        raise ModelError(f"'{module}' cannot be split into {split.parts} parts: it has 2 to {size}")
    bounds = [size * k // split.parts for k in range(split.parts + 1)]
    return tuple(pairwise(bounds))


class _Parts:
    """Writes the parts of one split."""

    def __init__(
        self,
        builder: NetBuilder,
        net: Net,
        layers: Mapping[str, Layer],
        split: Split,
        ranges: Sequence[tuple[int, int]],
    ) -> None:
        self.builder, self.net, self.layers, self.split, self.ranges = builder, net, layers, split, ranges

    def write(self, module: str, result: str) -> None:
        layer = self.layers[module]
        x = layer.fc.inputs[0]
        if self.split.kind == "horizontal":
            widths = tuple(end - start for start, end in self.ranges)
            outputs = [f"{x}/{module}/{k}" for k in range(len(widths))]
            cut: dict[str, Attr] = {"axis": -1, "split": widths}
            pieces = self.builder.add("Split", (x,), attrs=cut, module=f"{module}/split", outputs=outputs)
            parts = [self._columns(layer, piece, k, module) for k, piece in enumerate(pieces)]
        else:
            parts = [self._rows(layer, x, k, module) for k in range(len(self.ranges))]
        if self.split.kind == "co-partition":
            second = self.layers[layer.following]
            parts = [self._columns(second, part, k, module) for k, part in enumerate(parts)]
        type, attrs = ("Concat", {"axis": -1}) if self.split.kind == "vertical" else ("Sum", {})
        self.builder.add(type, parts, attrs=attrs, module=f"{module}/{type.lower()}", outputs=(result,))

    def _rows(self, layer: Layer, x: str, k: int, module: str) -> str:
        """Part k of an FC that is cut by its outputs, with its activations."""
        start, end = self.ranges[k]
        weights = [self._part(self.net.parameters[name], k, rows=(start, end)) for name in layer.fc.inputs[1:]]
        y = self._add(layer.fc, (x, *weights), k, module)
        for op in layer.activations:
            y = self._add(op, (y,), k, module)
        return y

    def _columns(self, layer: Layer, x: str, k: int, module: str) -> str:
        """Part k of an FC that is cut by its inputs; the first part adds the bias."""
        weight, *bias = (self.net.parameters[name] for name in layer.fc.inputs[1:])
        names = [self._part(weight, k, columns=self.ranges[k])]
        if bias and k == 0:
            names.append(self.builder.parameter(bias[0]))
        return self._add(layer.fc, (x, *names), k, module)

    def _part(
        self, parameter: Parameter, k: int, *, rows: tuple[int, int] = (0, 0), columns: tuple[int, int] = (0, 0)
    ) -> str:
        shape = list(parameter.shape)
        for axis, (start, end) in enumerate((rows, columns)):
            if end:
                shape[axis] = end - start
        return self.builder.parameter(
            replace(
                parameter,
                name=f"{parameter.name}/{k}",
                shape=tuple(shape),
                of=parameter.name,
                first_row=rows[0],
                first_column=columns[0],
            )
        )

    def _add(self, op: Op, inputs: Sequence[str], k: int, module: str) -> str:
        return self.builder.add(
            op.type, inputs, attrs=op.attrs, module=f"{module}/{k}", outputs=(f"{op.outputs[0]}/{k}",)
        )[0]
