"""Optimizer steps: one op with effects per trained parameter, its state declared beside it."""

from collections.abc import Callable, Mapping

from htrain.errors import ModelError
from htrain.net import Attr, Init, Net, Op, Parameter
from htrain.ops.builder import NetBuilder
from htrain.options import Options


def add_optimizers(net: Net, gradients: Mapping[str, str], options: Options) -> Net:
    """Append an optimizer step for every trained parameter.

    Requires: `gradients` as `add_gradients` gave them.
    Ensures:  every trained parameter has one step.
    Raises ModelError for a parameter that the loss does not reach: it would silently never train.
    """
    builder = NetBuilder.of(net)
    for parameter in list(net.parameters.values()):
        if parameter.kind == "table":
            _sparse_step(builder, net, parameter, gradients, options)
        elif parameter.kind == "weight" and parameter.trained:
            _dense_step(builder, net, parameter, gradients, options)
    return builder.build(net.outputs)


def _dense_step(
    builder: NetBuilder, net: Net, weight: Parameter, gradients: Mapping[str, str], options: Options
) -> None:
    gradient = gradients.get(weight.name)
    if gradient is None:
        raise ModelError(
            f"weight '{weight.name}' would never train: the loss does not depend on it; freeze it (requires_grad=False) or drop it"
        )
    type, state, attrs = _DENSE_STEPS[options.dense_optimizer](weight, options)
    names = [builder.parameter(s) for s in state]
    builder.add(type, (weight.name, *names, gradient), attrs=attrs, module=_module_of(net, weight.name))


def _sparse_step(
    builder: NetBuilder, net: Net, table: Parameter, gradients: Mapping[str, str], options: Options
) -> None:
    lookup = next(op for op in net.ops if op.type == "Lookup" and op.inputs[0] == table.name)
    if not table.trained:
        return
    state: tuple[Parameter, ...] = ()
    if options.sparse_optimizer != "sgd":
        shape = table.shape if options.sparse_optimizer == "adagrad" else table.shape[:1]
        state = (_state(table, "accumulator", shape, 0.0),)
    names = [builder.parameter(s) for s in state]
    type = {"sgd": "SparseSgd", "adagrad": "SparseAdagrad", "rowwise_adagrad": "SparseRowWiseAdagrad"}[
        options.sparse_optimizer
    ]
    attrs: dict[str, Attr] = {"lr": options.sparse_lr, "first_row": 0}
    if state:
        attrs["eps"] = options.eps
    rows = lookup.outputs[0]
    if rows not in gradients:
        raise ModelError(
            f"table '{table.name}' would never train: the loss does not depend on its rows; freeze it or drop it"
        )
    builder.add(type, (table.name, *names, lookup.inputs[1], gradients[rows]), attrs=attrs, module=table.name)


def _state(parameter: Parameter, what: str, shape: tuple[int, ...], value: float) -> Parameter:
    return Parameter(
        f"{parameter.name}:{what}", shape, "float32", "state", Init("constant", (value,)), of=parameter.name
    )


Step = tuple[str, tuple[Parameter, ...], dict[str, Attr]]


def _sgd(weight: Parameter, options: Options) -> Step:
    return "Sgd", (), {"lr": options.dense_lr}


def _adagrad(weight: Parameter, options: Options) -> Step:
    return "Adagrad", (_state(weight, "accumulator", weight.shape, 0.0),), {"lr": options.dense_lr, "eps": options.eps}


def _adam(weight: Parameter, options: Options) -> Step:
    moments = tuple(_state(weight, what, weight.shape, 0.0) for what in ("mean", "square"))
    attrs: dict[str, Attr] = {
        "lr": options.dense_lr,
        "beta1": options.beta1,
        "beta2": options.beta2,
        "eps": options.adam_eps,
    }
    return "Adam", (*moments, _state(weight, "step", (1,), 0.0)), attrs


def _module_of(net: Net, weight: str) -> str:
    readers: list[Op] = [op for op in net.ops if weight in op.inputs]
    return readers[0].module


_DENSE_STEPS: Mapping[str, Callable[[Parameter, Options], Step]] = {"sgd": _sgd, "adagrad": _adagrad, "adam": _adam}
