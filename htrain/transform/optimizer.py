"""Optimizer steps: one op with effects per trained parameter, its state declared beside it."""

from collections.abc import Mapping

from htrain.errors import ModelError
from htrain.net.net import Attr, Init, Net, Parameter
from htrain.net.slices import readers
from htrain.ops.builder import NetBuilder
from htrain.spec.fields import fields_of
from htrain.spec.optimizers import Optimizer
from htrain.spec.options import Options


def add_optimizers(net: Net, gradients: Mapping[str, str], options: Options) -> Net:
    """Append an optimizer step for every trained parameter.

    Requires: `gradients` as `add_gradients` gave them.
    Ensures:  every trained parameter has one step.
    Raises ModelError for a parameter that the loss does not reach: it would silently never train.
    """
    builder, read_by = NetBuilder.of(net), readers(net.ops)
    for parameter in list(net.parameters.values()):
        if parameter.kind == "table":
            _sparse_step(builder, net, parameter, gradients, options)
        elif parameter.kind == "weight" and parameter.trained:
            _dense_step(builder, parameter, gradients, options, module=net.ops[read_by[parameter.name][0]].module)
    return builder.build(net.outputs)


def _dense_step(
    builder: NetBuilder, weight: Parameter, gradients: Mapping[str, str], options: Options, *, module: str
) -> None:
    gradient = gradients.get(weight.name)
    if gradient is None:
        raise ModelError(
            f"weight '{weight.name}' would never train: the loss does not depend on it; freeze it (requires_grad=False) or drop it"
        )
    optimizer = options.dense_optimizer
    state = [
        builder.parameter(_state(weight, what, shape or weight.shape))
        for what, shape in _DENSE_STATE[optimizer.kind].items()
    ]
    builder.add(
        _DENSE_STEPS[optimizer.kind],
        (weight.name, *state, gradient),
        attrs=_numbers(optimizer),
        module=module,
    )


def _sparse_step(
    builder: NetBuilder, net: Net, table: Parameter, gradients: Mapping[str, str], options: Options
) -> None:
    lookup = next(op for op in net.ops if op.type == "Lookup" and op.inputs[0] == table.name)
    if not table.trained:
        return
    optimizer = options.sparse_optimizer
    rows = lookup.outputs[0]
    if rows not in gradients:
        raise ModelError(
            f"table '{table.name}' would never train: the loss does not depend on its rows; freeze it or drop it"
        )
    shapes = {"sgd": (), "adagrad": (table.shape,), "rowwise_adagrad": (table.shape[:1],)}[optimizer.kind]
    state = [builder.parameter(_state(table, "accumulator", shape)) for shape in shapes]
    attrs: dict[str, Attr] = {"lr": optimizer.lr, "first_row": 0} | _numbers(optimizer)
    builder.add(
        _SPARSE_STEPS[optimizer.kind],
        (table.name, *state, lookup.inputs[1], gradients[rows]),
        attrs=attrs,
        module=table.name,
    )


def _state(parameter: Parameter, what: str, shape: tuple[int, ...]) -> Parameter:
    return Parameter(f"{parameter.name}:{what}", shape, "float32", "state", Init("constant", (0.0,)), of=parameter.name)


def _numbers(optimizer: Optimizer) -> dict[str, Attr]:
    """What an optimizer's step is made with, in its section's own names."""
    return {name: getattr(optimizer, name) for name in fields_of(type(optimizer))}


_DENSE_STEPS = {"sgd": "Sgd", "adagrad": "Adagrad", "adam": "Adam"}
_SPARSE_STEPS = {"sgd": "SparseSgd", "adagrad": "SparseAdagrad", "rowwise_adagrad": "SparseRowWiseAdagrad"}
# What each keeps beside a weight; None is the weight's own shape.
_DENSE_STATE: Mapping[str, Mapping[str, tuple[int, ...] | None]] = {
    "sgd": {}, "adagrad": {"accumulator": None}, "adam": {"mean": None, "square": None, "step": (1,)},
}  # fmt: skip
