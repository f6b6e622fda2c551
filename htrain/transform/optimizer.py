"""Optimizer steps: one op with effects per trained parameter, its state declared beside it."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from htrain.errors import ModelError
from htrain.net.net import Attr, Init, Net, Parameter
from htrain.net.slices import readers
from htrain.ops.builder import NetBuilder
from htrain.spec.clipping import Clip, ClipNorm, ClipValue
from htrain.spec.fields import fields_of
from htrain.spec.optimizers import OF_DENSE, OF_ROWS, Optimizer
from htrain.spec.options import Options
from htrain.spec.schedules import ConstantRate, Schedule, StepDecay


def add_optimizers(
    net: Net, gradients: Mapping[str, str], options: Options, shares: Mapping[str, float] = MappingProxyType({})
) -> Net:
    """Append an optimizer step for every trained parameter. Those in `shares` step with such a share of the optimizer's rate.

    Requires: `gradients` as `add_gradients` gave them.
    Ensures:  every trained parameter has one step.
    Raises ModelError for a parameter that the loss does not reach: it would silently never train.
    """
    builder, read_by = NetBuilder.of(net), readers(net.ops)
    for parameter in list(net.parameters.values()):
        if parameter.kind == "table":
            optimizer = _at(options.sparse_optimizer, shares.get(parameter.name, 1.0))
            _sparse_step(builder, net, parameter, gradients, replace(options, sparse_optimizer=optimizer))
        elif parameter.kind == "weight" and parameter.trained:
            optimizer = _at(options.dense_optimizer, shares.get(parameter.whole, 1.0))
            module = net.ops[read_by[parameter.name][0]].module
            _dense_step(builder, parameter, gradients, replace(options, dense_optimizer=optimizer), module=module)
    return builder.build(net.outputs)


def _at(optimizer: Optimizer, share: float) -> Optimizer:
    return replace(optimizer, lr=optimizer.lr * share)


def _dense_step(
    builder: NetBuilder, weight: Parameter, gradients: Mapping[str, str], options: Options, *, module: str
) -> None:
    gradient = gradients.get(weight.name)
    if gradient is None:
        raise ModelError(
            f"weight '{weight.name}' would never train: the loss does not depend on it; freeze it (requires_grad=False) or drop it"
        )
    optimizer = options.dense_optimizer
    type, states, attrs = dense_op(optimizer, options.dense_schedule, options.dense_clip)
    state = [builder.parameter(_state(weight, what, optimizer)) for what in states]
    builder.add(type, (weight.name, *state, gradient), attrs=attrs, module=module)


def dense_op(optimizer: Optimizer, schedule: Schedule, clip: Clip) -> tuple[str, tuple[str, ...], dict[str, Attr]]:
    """The op of a dense weight's step, the states that it keeps, and its attributes: it counts its updates only where it has to."""
    numbers = _numbers(optimizer)
    said = {name: numbers.pop(name) for name in OF_DENSE if name in numbers}
    changed = {name: value for name, value in said.items() if value} | _rates(schedule) | _clips(clip)
    states = _STATES[optimizer.kind]
    if optimizer.kind in _DENSE_STEPS and not changed:
        return _DENSE_STEPS[optimizer.kind], states, numbers
    if "momentum" in changed:
        states = ("momentum", *states)
    return "CountedStep", (*states, "updates"), {"optimizer": optimizer.kind, **numbers, **changed}


def row_op(optimizer: Optimizer, schedule: Schedule) -> tuple[str, tuple[str, ...], dict[str, Attr]]:
    """The op of a step on rows of a table, the states that it keeps, and its attributes; as `dense_op`."""
    numbers = {name: value for name, value in _numbers(optimizer).items() if name not in OF_DENSE}
    attrs, changed, states = {"first_row": 0, **numbers}, _rates(schedule), _ROW_STATES[optimizer.kind]
    if optimizer.kind in _SPARSE_STEPS and not changed:
        return _SPARSE_STEPS[optimizer.kind], states, attrs
    return "CountedRowStep", (*states, "updates"), {"optimizer": optimizer.kind, **attrs, **changed}


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
    type, states, attrs = row_op(optimizer, options.sparse_schedule)
    state = [builder.parameter(_state(table, what, optimizer)) for what in states]
    builder.add(type, (table.name, *state, lookup.inputs[1], gradients[rows]), attrs=attrs, module=table.name)


def _state(parameter: Parameter, what: str, optimizer: Optimizer) -> Parameter:
    first = getattr(optimizer, "initial_accumulator", 0.0) if what == "accumulator" else 0.0
    shape = _COUNTS.get(what, parameter.shape)
    if (optimizer.kind, what) in _OF_ROWS:
        shape = shape[:1]
    if what == "ftrl":
        shape = (shape[0], 2 * shape[1])
    own = parameter.dtype if parameter.kind == "weight" else "float32"  # as torch has it
    dtype = "int64" if what == "updates" else own
    return Parameter(f"{parameter.name}:{what}", shape, dtype, "state", Init("constant", (first,)), of=parameter.name)


def _numbers(optimizer: Optimizer) -> dict[str, Attr]:
    """What an optimizer's step is made with, in its section's own names. Accumulators have begun before it, and rows have decayed."""
    apart = ("initial_accumulator", *OF_ROWS)
    return {name: getattr(optimizer, name) for name in fields_of(type(optimizer)) if name not in apart}


def _rates(schedule: Schedule) -> dict[str, Attr]:
    """How a rate changes, as attributes; none where it stays."""
    if schedule == ConstantRate():
        return {}
    said = {name: getattr(schedule, name) for name in fields_of(type(schedule))}
    if isinstance(schedule, StepDecay):
        said["milestones"] = tuple(map(int, schedule.milestones.split(",")))
    return {"schedule": schedule.kind, **said}


def _clips(clip: Clip) -> dict[str, Attr]:
    """What bounds a gradient, as attributes."""
    if isinstance(clip, ClipValue):
        return {"clip_value": clip.max_value}
    return {"clip_norm": clip.max_norm} if isinstance(clip, ClipNorm) else {}


_DENSE_STEPS = {"sgd": "Sgd", "adagrad": "Adagrad", "adam": "Adam"}
_SPARSE_STEPS = {
    "sgd": "SparseSgd",
    "adagrad": "SparseAdagrad",
    "rowwise_adagrad": "SparseRowWiseAdagrad",
    "ftrl": "SparseFtrl",
}
_ACCUMULATOR, _MOMENTS = ("accumulator",), ("mean", "square")
_STATES: Mapping[str, tuple[str, ...]] = {
    "sgd": (), "adagrad": _ACCUMULATOR, "adam": (*_MOMENTS, "step"), "adamw": (*_MOMENTS, "step"), "ftrl": ("z", "n"),
}  # fmt: skip
_ROW_STATES: Mapping[str, tuple[str, ...]] = {
    "sgd": (), "adagrad": _ACCUMULATOR, "rowwise_adagrad": _ACCUMULATOR, "sparse_adam": _MOMENTS, "rowwise_adam": _MOMENTS,
    "lazy_momentum": ("momentum",), "ftrl": ("ftrl",),
}  # fmt: skip
_OF_ROWS = frozenset(
    {("rowwise_adagrad", "accumulator"), ("rowwise_adam", "square")}
)  # states with a number for each row
_COUNTS: Mapping[str, tuple[int, ...]] = {"step": (1,), "updates": ()}  # Adam's is as it has always been
