"""NetBuilder: how frontends and passes write ops: names stay unique, shapes are inferred as each op is added."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from htrain.errors import ModelError
from htrain.net.check import check
from htrain.net.net import Attr, Blob, Net, Op, Parameter
from htrain.ops import OPS

NO_ATTRS: Mapping[str, Attr] = MappingProxyType({})


class NetBuilder:
    """A net in the making: append ops, then `build` it once.

    `NetBuilder.of(net)` starts from all of a net, `NetBuilder.beside(net)` from its inputs and parameters.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.ops: list[Op] = []
        self.inputs: list[str] = []
        self.blobs: dict[str, Blob] = {}
        self.parameters: dict[str, Parameter] = {}
        self._used: dict[str, int] = {}
        self._reserved: frozenset[str] = frozenset()

    @classmethod
    def of(cls, net: Net) -> "NetBuilder":
        """A builder that has all of `net`, for a pass that appends ops."""
        builder = cls(net.name)
        builder.ops, builder.inputs = list(net.ops), list(net.inputs)
        builder.blobs, builder.parameters = dict(net.blobs), dict(net.parameters)
        return builder

    @classmethod
    def beside(cls, net: Net, parameters: Iterable[Parameter] | None = None) -> "NetBuilder":
        """The inputs of `net`, and its parameters or those that take their place, for a pass that writes its ops anew."""
        builder = cls(net.name)
        for name in net.inputs:
            builder.input(net.blobs[name])
        for parameter in net.parameters.values() if parameters is None else parameters:
            builder.parameter(parameter)
        return builder

    def reserve(self, names: Iterable[str]) -> None:
        """Blobs that are still to come have these names: no fresh one is among them."""
        self._reserved = frozenset(names)

    def input(self, blob: Blob) -> str:
        """Declare an input of the net; returns its name. Raises ModelError for a name that is taken."""
        self._claim(blob.name)
        self.blobs[blob.name] = blob
        self.inputs.append(blob.name)
        return blob.name

    def parameter(self, parameter: Parameter) -> str:
        """Declare a parameter of the net; returns its name. Raises ModelError for a name that is taken."""
        self._claim(parameter.name)
        self.parameters[parameter.name] = parameter
        return parameter.name

    def add(
        self,
        type: str,
        inputs: Iterable[str],
        *,
        attrs: Mapping[str, Attr] = NO_ATTRS,
        module: str = "",
        outputs: Sequence[str] = (),
        node_name: str = "",
    ) -> tuple[str, ...]:
        """Append an op; return its outputs' names, as given or made from the op's type.

        Raises ModelError naming the op and its module when the type is unknown or does not take these inputs.
        """
        definition = OPS.get(type)
        if definition is None:
            raise ModelError(f"op {type} of module '{module}' is not one that htrain runs")
        op = Op(type, tuple(inputs), tuple(outputs), dict(attrs), node_name=node_name, module=module)
        signatures = definition.infer(definition, op, [self.blob(name) for name in op.inputs])
        names = tuple(outputs) or self._fresh_names(type.lower(), len(signatures))
        if len(names) != len(signatures):
            raise ModelError(f"{op.label}: gives {len(signatures)} outputs, {len(names)} are named")
        for name, (shape, dtype) in zip(names, signatures, strict=True):
            self._claim(name)
            self.blobs[name] = Blob(name, shape, dtype)
        self.ops.append(Op(type, op.inputs, names, op.attrs, node_name=node_name, module=module))
        return names

    def copy(self, op: Op, inputs: Iterable[str] | None = None) -> tuple[str, ...]:
        """Append an op of another net as it is there, or with other inputs."""
        inputs = op.inputs if inputs is None else inputs
        return self.add(op.type, inputs, attrs=op.attrs, module=op.module, outputs=op.outputs, node_name=op.node_name)

    def blob(self, name: str) -> Blob:
        """The blob or parameter called `name`."""
        parameter = self.parameters.get(name)
        return parameter.blob if parameter else self.blobs[name]

    def gradient_name(self, blob: str) -> str:
        """A fresh name for a gradient of `blob`."""
        return self.fresh(blob + "_grad")

    def fresh(self, stem: str) -> str:
        """`stem`, or `stem_1`, `stem_2`, ...: the first that no blob has."""
        name = stem
        while name in self.blobs or name in self.parameters or name in self._reserved:
            self._used[stem] = self._used.get(stem, 0) + 1
            name = f"{stem}_{self._used[stem]}"
        return name

    def _fresh_names(self, stem: str, count: int) -> tuple[str, ...]:
        return tuple(self.fresh(stem if count == 1 else f"{stem}_out{i}") for i in range(count))

    def build(self, outputs: Sequence[str]) -> Net:
        """The net with these outputs. Raises ModelError where its names do not hold together."""
        return check(
            Net(
                self.name,
                tuple(self.ops),
                tuple(self.inputs),
                outputs=tuple(outputs),
                blobs=dict(self.blobs),
                parameters=dict(self.parameters),
            )
        )

    def _claim(self, name: str) -> None:
        if name in self.blobs or name in self.parameters:
            raise ModelError(f"net '{self.name}': the name '{name}' is taken twice")
