"""ATen ops that draw whole numbers, as negatives are drawn in forward(): made of uniform numbers, which a net draws again by a hash."""

import torch
from torch import fx

from htrain.frontend.aten_forms import Call, Handler, refuse
from htrain.frontend.aten_training import exponential_step, require_always, uniform_step
from htrain.frontend.draws import BETWEEN
from htrain.frontend.translation import Translation, dtype_name

_GRAINS = 1 << 24  # a float32 between 0 and 1 is one of so many


def _between(t: Translation, call: Call) -> None:
    """Whole numbers from `low` up to `high` - 1: of 48 random bits what is left modulo their count, so that large tables have all of their rows drawn."""
    require_always(t, call)
    call.told_by_shape()
    names = [argument.name for argument in call.arguments]
    low, high = (call.argument(name) if name in names else 0 for name in ("low", "high"))
    first, second = (_grains(t, call) for _ in range(2))
    bits = t.step(call.node, "Add", (t.step(call.node, "Mul", (first, _number(t, call, _GRAINS))), second))
    count = _number(t, call, high)
    count = t.step(call.node, "Sub", (count, _number(t, call, low))) if low != 0 else count
    drawn = t.step(call.node, "Mod", (bits, count))
    drawn = t.step(call.node, "Add", (drawn, _number(t, call, low))) if low != 0 else drawn
    dtype = dtype_name(call.meta["val"].dtype)
    t.names[call.node] = drawn if dtype == "int64" else t.step(call.node, "Cast", (drawn,), {"to": dtype})


def _grains(t: Translation, call: Call) -> str:
    """24 random bits, int64, for each number of the result."""
    scaled = t.step(call.node, "Mul", (uniform_step(t, call), _number(t, call, float(_GRAINS))))
    return t.step(call.node, "Cast", (scaled,), {"to": "int64"})


def _number(t: Translation, call: Call, number: float | fx.Node) -> str:
    """A number, which may be one of the batch's size."""
    if isinstance(number, fx.Node):
        return t.blob(number, like=torch.empty(0, dtype=torch.int64))
    return t.constant(torch.tensor(number), module=t.module_of(call.node))


def _permutation(t: Translation, call: Call) -> None:
    """The places of uniform numbers in ascending order."""
    require_always(t, call)
    call.told_by_shape()
    t.names[call.node] = t.step(call.node, "ArgSort", (uniform_step(t, call),), {"dim": 0, "descending": False})
    t.mixing.setdefault(f"a random order in {t.where(call.node)}")


def _by_weights(t: Translation, call: Call) -> None:
    """By one list of weights, or by one for each example or element that was picked."""
    require_always(t, call)
    count = call.argument("num_samples")
    if call.argument("replacement"):
        _again(t, call)
    elif isinstance(count, int):
        _once(t, call, count)
    else:
        raise refuse(
            t,
            call,
            "how many it draws, none of them twice, depends on the batch: give it a number, or replacement=True",
        )
    call.told_by_shape()


def _again(t: Translation, call: Call) -> None:
    """In which weight's part of the sum of all a uniform share of it lies."""
    source, (*rows, count) = call.args[0], call.args[0].meta["val"].shape
    if not isinstance(count, int):
        raise refuse(t, call, "how many weights there are depends on the batch")
    sums = t.step(call.node, "CumSum", (t.blob(source),), {"axis": len(rows)})
    total = t.step(call.node, "Slice", (sums,), {"axis": len(rows), "start": count - 1, "end": count, "step": 1})
    dtype = dtype_name(source.meta["val"].dtype)
    drawn = uniform_step(t, call)
    drawn = drawn if dtype == "float32" else t.step(call.node, "Cast", (drawn,), {"to": dtype})
    parts = t.step(
        call.node, "SearchSorted", (sums, t.step(call.node, "Mul", (drawn, total))), {"out_int32": False, "right": True}
    )
    t.names[call.node] = t.step(
        call.node, "Min", (parts, _number(t, call, count - 1))
    )  # a share may be rounded up to the whole


def _once(t: Translation, call: Call, count: int) -> None:
    """None twice: the first that come, of weights that each wait for a time of exponential distribution (Efraimidis and Spirakis 2006)."""
    source = call.args[0]
    assert isinstance(source, fx.Node)
    waits = exponential_step(t, call, source)
    dtype = dtype_name(source.meta["val"].dtype)
    waits = waits if dtype == "float32" else t.step(call.node, "Cast", (waits,), {"to": dtype})
    attrs = {"k": count, "dim": -1, "largest": True, "sorted": True}
    early = t.step(call.node, "Div", (t.blob(source), waits))
    t.names[call.node] = t.builder.add("LargestK", (early,), attrs=attrs, module=t.module_of(call.node))[1]


WHOLE_DRAWS: dict[str, Handler] = {
    **dict.fromkeys(BETWEEN, _between),
    "randperm.default": _permutation,
    "multinomial.default": _by_weights,
}
