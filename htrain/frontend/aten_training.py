"""ATen ops of what a module does while it trains alone: dropout, noise, and batch norms that move their running statistics."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import fx

from htrain.frontend.aten_forms import Call, Handler, argument, mixes_batch, refuse
from htrain.frontend.draws import NORMAL, UNIFORM
from htrain.frontend.translation import Translation, dtype_name
from htrain.net.net import Attr, BatchDim


def dropped(t: Translation, call: Call, x: str, p: float) -> str:
    """`x` with a share `p` of its values dropped, others in each batch."""
    attrs: dict[str, Attr] = {"p": p, "seed": 0}
    return t.builder.add("Dropout", (x, t.batch_key()), attrs=attrs, module=t.module_of(call.node))[0]


def _batch_norm(t: Translation, call: Call) -> None:
    """While training: (y, mean, 1 / deviation, and the running statistics, which the op changes by itself)."""
    *given, training, momentum, epsilon = call.args
    if not training:
        raise refuse(t, call, "a batch norm whose statistics are not those of the model: give it running statistics")
    _moving(t, call, given, momentum, epsilon)


def _whole_batch_norm(t: Translation, call: Call) -> None:
    """As it is in a program that was not traced anew (htrain.frontend.writes)."""
    *given, training, momentum, epsilon, _ = call.args
    if training:
        _moving(t, call, [*given[:3], *(node for node in given[3:] if node is not None)], momentum, epsilon)
    else:
        _frozen(t, call, given, epsilon)
    t.names[call.node] = t.parts[call.node][0]


def _moving(t: Translation, call: Call, given: Sequence[fx.Node], momentum: float, epsilon: float) -> None:
    source, scale, bias, *statistics = given
    held = _held(t, call, statistics)
    inputs = (t.blob(source), *_affine(t, call, scale, bias), *held)
    attrs: dict[str, Attr] = {"eps": float(epsilon), "momentum": float(momentum)}
    outputs = t.builder.add("BatchNorm", inputs, attrs=attrs, module=t.module_of(call.node))
    t.parts[call.node] = (*outputs, *held)
    mixes_batch(t, call, (0,), "a batch norm")


def _ghost_batch_norm(t: Translation, call: Call) -> None:
    """A batch norm of each chunk of `size` examples (htrain.frontend.ghost_batches)."""
    source, scale, bias, mean, variance, size, momentum, epsilon = call.args
    held = _held(t, call, [node for node in (mean, variance) if node is not None])
    inputs = (t.blob(source), *_affine(t, call, scale, bias), t.blob(size), *held)
    t.add(call.node, "GhostBatchNorm", inputs, {"eps": float(epsilon), "momentum": float(momentum)})
    mixes_batch(t, call, (0,), "a batch norm of chunks")


def _held(t: Translation, call: Call, statistics: Sequence[fx.Node]) -> list[str]:
    """The running statistics of a norm. Raises ModelError for those that something else reads, too."""
    if any(set(node.users) - {call.node} and not _only_kept(node, call.node) for node in statistics):
        raise refuse(t, call, "its running statistics are read elsewhere, too")
    return [t.statistic(node) for node in statistics]


def _affine(t: Translation, call: Call, scale: fx.Node | None, bias: fx.Node | None) -> list[str]:
    """The scale and bias of a norm: ones and zeros where it has none."""
    x = call.tensor
    return [
        t.constant(fill((x.shape[1],), dtype=x.dtype), module=t.module_of(call.node))
        if given is None
        else t.blob(given)
        for given, fill in ((scale, torch.ones), (bias, torch.zeros))
    ]


def _frozen_batch_norm(t: Translation, call: Call) -> None:
    """By the running statistics, which stay: of a norm that its owner has put in evaluation mode, to tune the rest."""
    *given, _, epsilon = call.args
    _frozen(t, call, given, epsilon)


def _frozen(t: Translation, call: Call, given: Sequence[fx.Node], epsilon: float) -> None:
    source, scale, bias, mean, variance = given
    x = source.meta["val"]

    def along(name: str) -> str:
        shape = (x.shape[1], *[1] * (x.dim() - 2))
        return name if x.dim() == 2 else t.step(call.node, "Reshape", (name,), {"shape": shape})

    summed = t.step(call.node, "Add", (t.blob(variance), t.blob(float(epsilon), like=x)))
    deviation = t.step(call.node, "Sqrt", (summed,))
    y = t.step(call.node, "Sub", (t.blob(source), along(t.blob(mean))))
    y = t.step(call.node, "Div", (y, along(deviation)))
    for type, affine in (("Mul", scale), ("Add", bias)):
        y = y if affine is None else t.step(call.node, type, (y, along(t.blob(affine))))
    t.parts[call.node] = (y, t.blob(mean), deviation)


def _only_kept(node: fx.Node, norm: fx.Node) -> bool:
    """Whether a buffer has no reader but a norm and the graph's end, which says what becomes of it."""
    return all(user is norm or user.op == "output" for user in node.users)


def _dropout(t: Translation, call: Call) -> None:
    source, p, training = call.args
    if training and p:
        t.names[call.node] = dropped(t, call, t.blob(source), float(p))
    else:
        t.alias(call.node, source)
    t.parts[call.node] = (t.names[call.node],)


def _random_slopes(t: Translation, call: Call) -> None:
    """nn.RReLU: a slope of its own for each number below 0, and the mean of them in evaluation."""
    source, training = call.args[0], argument(call, 3, "training", False)
    low, high = (float(argument(call, place, name, None)) for place, name in ((1, "lower"), (2, "upper")))
    assert isinstance(source, fx.Node)
    if not training:
        t.add(call.node, "LeakyRelu", (t.blob(source),), {"alpha": (low + high) / 2})
        return
    attrs: dict[str, Attr] = {
        "low": low,
        "high": high,
        "shape": t.batch_shape(t.shape(source)),
        "seed": 0,
        "always": False,
    }
    slopes = _in_dtype_of(t, call, t.step(call.node, "UniformDraw", (t.batch_key(),), attrs))
    t.add(call.node, "PRelu", (t.blob(source), slopes))


def _in_dtype_of(t: Translation, call: Call, drawn: str) -> str:
    """Drawn numbers, float32, in the dtype of the result."""
    dtype = dtype_name(call.meta["val"].dtype)
    return drawn if dtype == "float32" else t.step(call.node, "Cast", (drawn,), {"to": dtype})


def _normal(t: Translation, call: Call) -> None:
    """Numbers of the mean and deviation that are given, or 0 and 1."""
    name, mean, std = str(call.target), 0.0, 1.0
    if "normal." in name:
        mean, std, _ = call.args
    elif "normal_functional" in name:
        mean, std = argument(call, 1, "mean", 0.0), argument(call, 2, "std", 1.0)
    _draw(t, call, "NormalDraw", {"mean": float(mean), "std": float(std)})


def _uniform(t: Translation, call: Call) -> None:
    low, high = (
        (0.0, 1.0) if "rand" in str(call.target) else (argument(call, 1, "from", 0.0), argument(call, 2, "to", 1.0))
    )
    if not _is_compared(call.node):
        require_always(t, call)
    _draw(t, call, "UniformDraw", {"low": float(low), "high": float(high)})


_COMPARISONS = tuple(f"aten.{name}.{form}" for name in ("lt", "le", "gt", "ge") for form in ("Scalar", "Tensor"))
_VIEWS = tuple(
    f"aten.{name}" for name in ("unsqueeze.default", "view.default", "reshape.default", "expand.default", "select.int")
)


def _is_compared(node: fx.Node) -> bool:
    """Whether uniform numbers say by comparison alone what is masked while a module trains. In evaluation they are all the mean of their range, and what the
    comparison mostly gives is what it always gives: nothing is masked. The self-check compares that with the module's own evaluation."""
    return all(
        user.op == "call_function"
        and (str(user.target) in _COMPARISONS or (str(user.target) in _VIEWS and _is_compared(user)))
        for user in node.users
    )


def require_always(t: Translation, call: Call) -> None:
    """Raises ModelError for uniform numbers, or what is made of them, that are drawn in training alone, and scored."""
    if not (t.drawn.always or t.drawn.for_loss or t.drawn.apart):
        raise refuse(
            t, call,
            "uniform numbers that are drawn in training alone, or what is made of them: evaluation has none in their place; for a dropout write "
            "torch.nn.functional.dropout, nn.Dropout or nn.Dropout1d",
        )  # fmt: skip


def _exponential(t: Translation, call: Call) -> None:
    """-log of uniform numbers, of which none is 0 or 1, as F.gumbel_softmax takes the logarithm of what is made of them."""
    require_always(t, call)
    rate = float(argument(call, 1, "lambd", 1.0))
    drawn = exponential_step(t, call, call.node)
    if rate != 1:
        drawn = t.step(call.node, "Mul", (drawn, t.blob(1 / rate)))
    t.names[call.node] = _in_dtype_of(t, call, drawn)


def exponential_step(t: Translation, call: Call, like: fx.Node) -> str:
    """Numbers of exponential distribution, of mean 1, in the shape of a node. None is 0."""
    drawn = t.step(call.node, "Clip", (uniform_step(t, call, like),), {"min": 2.0**-25, "max": 1 - 2.0**-24})
    return t.step(call.node, "Neg", (t.step(call.node, "Log", (drawn,)),))


def _bernoulli(t: Translation, call: Call) -> None:
    """1 where a uniform number is below the probability."""
    require_always(t, call)
    probability = argument(call, 1, "p", None)
    below = t.blob(call.args[0] if probability is None else float(probability))
    ones = t.step(call.node, "Less", (uniform_step(t, call), below))
    t.add(call.node, "Cast", (ones,), {"to": dtype_name(call.meta["val"].dtype)})


def uniform_step(t: Translation, call: Call, like: fx.Node | None = None) -> str:
    """Uniform numbers in [0, 1), in the shape of the result, or of a node."""
    return _drawn(t, call, like or call.node, "UniformDraw", {"low": 0.0, "high": 1.0, "always": not t.drawn.apart})


def _draw(t: Translation, call: Call, type: str, attrs: Mapping[str, Attr]) -> None:
    """The shape is that of the result."""
    t.names[call.node] = _drawn(t, call, call.node, type, {"always": t.drawn.always, **attrs})


def _drawn(t: Translation, call: Call, like: fx.Node, type: str, attrs: Mapping[str, Attr]) -> str:
    """For what a mask picks as many as it may pick are drawn, and the first of them taken."""
    call.args.read.add(0)
    shape = t.shape(like)
    most = tuple(replace(d, bound=False) if isinstance(d, BatchDim) else d for d in shape)
    name = t.step(call.node, type, (t.batch_key(),), {**attrs, "shape": t.batch_shape(most), "seed": 0})
    for axis, (length, all_of) in enumerate(zip(shape, most, strict=True)):
        if length != all_of:
            name = t.step(call.node, "Gather", (name, t.places_along(call.node, like, axis)), {"axis": axis})
    return name


GHOST: dict[str, Handler] = {"htrain.ghost_batch_norm.default": _ghost_batch_norm}
TRAINING: dict[str, Handler] = {
    **{name.removeprefix("aten."): _normal for name in NORMAL},
    **{name.removeprefix("aten."): _uniform for name in UNIFORM},
    **dict.fromkeys(("dropout.default", "native_dropout.default"), _dropout),
    **dict.fromkeys(("bernoulli.default", "bernoulli.p"), _bernoulli),
    "exponential.default": _exponential,
    "rrelu.default": _random_slopes,
    "batch_norm.default": _whole_batch_norm,
    "_native_batch_norm_legit_no_training.default": _frozen_batch_norm,
    **dict.fromkeys(("_native_batch_norm_legit_functional.default", "_native_batch_norm_legit.no_stats"), _batch_norm),
}
