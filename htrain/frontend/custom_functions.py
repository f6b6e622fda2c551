"""An autograd.Function of the user's while a model is captured: what its backward() says becomes part of the graph.

torch.export keeps what a Function computes, y = f(x), and not its backward(), which makes dx = A dy of the gradient of y, by an A that may depend on what
forward() has saved. Here f(x) is computed without a gradient, and s - s.detach() is added, where s = A^T x: it is 0, and its gradient by x is A dy. A^T is
what autograd makes of backward(), which it differentiates by dy.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.autograd import function

from htrain.errors import ModelError

ARRIVING = "htrain.arriving_gradient.default"  # stands for dy, whose numbers nothing of the forward pass may need


class _Context:
    """What a Function's forward() saves for its backward()."""

    def __init__(self, name: str, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[torch.Tensor | None, ...] = ()
        self.without_gradient: tuple[torch.Tensor, ...] = ()
        self.name = name

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_non_differentiable(self, *outputs: torch.Tensor) -> None:
        self.without_gradient = outputs

    def set_materialize_grads(self, value: bool) -> None:
        """Each output's gradient is a tensor here."""

    def mark_dirty(self, *inputs: torch.Tensor) -> None:
        raise ModelError(
            f"forward() uses the {self.name}, which changes its input in place (mark_dirty): give a tensor of its own"
        )


@contextmanager
def traced_functions() -> Iterator[None]:
    """Within, an `autograd.Function` of the user's has the gradient of its backward() in what is captured.

    It stands behind every way to call one, `apply` methods that were taken earlier among them: `Function.apply` ends in its base class.
    Raises ModelError for a backward() that no net can follow.
    """
    base: Any = function._SingleLevelFunction
    own = base.__dict__.get("apply")

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls.__qualname__ == "CheckpointFunction":
            raise ModelError(
                "forward() uses a checkpoint that is reentrant, which hides gradients: give it use_reentrant=False"
            )
        if cls.__module__.startswith("torch."):
            return super(base, cls).apply(*args, **kwargs)
        return _applied(cls, args)

    _library()
    base.apply = classmethod(apply)
    try:
        yield
    finally:
        if own is None:
            del base.apply
        else:
            base.apply = own


def _applied(cls: Any, args: Sequence[Any]) -> Any:
    """What `cls` gives for `args`, with the gradient that its backward() has."""
    name = f"autograd.Function {cls.__module__}.{cls.__qualname__}"
    trained = tuple(isinstance(x, torch.Tensor) and x.requires_grad and torch.is_grad_enabled() for x in args)
    context = _Context(name, trained)
    # Copies: a forward() may change its input in place without a word of it. What reads that input afterwards is found by the self-check.
    taken = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in args]
    if cls.setup_context is function._SingleLevelFunction.setup_context:
        given = cls.forward(context, *taken)
    else:
        given = cls.forward(*taken)
        cls.setup_context(context, tuple(taken), given)
    outputs = given if isinstance(given, tuple) else (given,)
    detached = [y.detach() if isinstance(y, torch.Tensor) else y for y in outputs]
    followed = [_has_gradient(y) and not any(y is other for other in context.without_gradient) for y in outputs]
    if any(trained) and any(followed):
        detached = _with_gradients(cls, context, args, detached, followed)
    return tuple(detached) if isinstance(given, tuple) else detached[0]


def _has_gradient(y: Any) -> bool:
    return isinstance(y, torch.Tensor) and y.is_floating_point()


def _with_gradients(
    cls: Any, context: Any, args: Sequence[Any], outputs: Sequence[Any], followed: Sequence[bool]
) -> list[Any]:
    """`outputs`, those that are `followed` with the gradient by `args` that backward() has."""
    name = context.name
    arriving = {
        place: torch.ops.htrain.arriving_gradient(y, name).requires_grad_()
        for place, y in enumerate(outputs)
        if followed[place]
    }
    backward = cls.backward if cls.vjp is function.Function.vjp else cls.vjp
    made = _differentiable(backward)(
        context,
        *(arriving[place].clone() if place in arriving else _zeros(y) for place, y in enumerate(outputs)),
    )
    gradients = made if isinstance(made, tuple) else (made,)
    pairs = [
        (dx, x.to(dx.dtype).expand(dx.shape))
        for x, dx, needed in zip(args, gradients, context.needs_input_grad, strict=False)
        if needed and dx is not None
    ]
    for dx, _ in pairs:
        if not dx.requires_grad:
            raise ModelError(
                f"forward() uses the {name}, whose backward() gives a gradient that does not come of the one it takes: compute it of that, "
                f"and not under torch.no_grad(); for none, return None"
            )
    found = _transposed(pairs, list(arriving.values()), name) if pairs else [None] * len(arriving)
    added = dict(zip(arriving, found, strict=True))
    return [y if added.get(place) is None else y + _nothing(added[place]) for place, y in enumerate(outputs)]


def _transposed(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], arriving: Sequence[torch.Tensor], name: str
) -> Sequence[torch.Tensor | None]:
    """A^T x of each output, of pairs (A dy, x). Raises ModelError where autograd cannot differentiate what backward() does."""
    gradients, taken = zip(*pairs, strict=True)
    try:
        return torch.autograd.grad(gradients, arriving, taken, create_graph=True, allow_unused=True)
    except RuntimeError as error:
        raise ModelError(
            f"forward() uses the {name}, whose backward() autograd cannot differentiate ({str(error).splitlines()[0][:80]}): have it make new tensors"
        ) from error


def _nothing(s: Any) -> torch.Tensor:
    """0, with the gradient of `s`: also where that is no number, as where a division by 0 is masked afterwards."""
    return torch.nan_to_num(s - s.detach(), 0.0, 0.0, 0.0)


def _zeros(y: Any) -> Any:
    return torch.zeros_like(y) if isinstance(y, torch.Tensor) else None


def _differentiable(backward: Any) -> Any:
    """`backward` without torch's own `once_differentiable`, which hides what it does from autograd."""
    while hasattr(backward, "__wrapped__") and inspect.getsourcefile(backward.__code__) == function.__file__:
        backward = backward.__wrapped__
    return backward


@cache
def _library() -> torch.library.Library:
    """The op that stands for the gradient that comes to a Function's output."""
    library = torch.library.Library("htrain", "FRAGMENT")
    library.define("arriving_gradient(Tensor like, str function) -> Tensor")
    for key in ("Meta", "CPU"):
        library.impl("arriving_gradient", lambda like, function: torch.zeros_like(like), key)
    return library
