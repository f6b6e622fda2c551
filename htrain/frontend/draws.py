"""Random numbers that forward() draws: by which ops, and whether it draws them in evaluation, too."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from torch import fx, nn

from htrain.errors import ModelError

_NORMAL = ("randn.default", "randn_like.default", "normal_functional.default", "normal.float_float")
_UNIFORM = ("rand.default", "rand_like.default", "uniform.default")
BETWEEN = ("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype")
_WHOLE = (*BETWEEN, "randperm.default", "multinomial.default")
_BY_UNIFORM = ("exponential.default", "bernoulli.default", "bernoulli.p", *_WHOLE)  # made of uniform numbers
NORMAL, UNIFORM, BY_UNIFORM = (tuple(f"aten.{name}" for name in names) for names in (_NORMAL, _UNIFORM, _BY_UNIFORM))


def draws_of(nodes: Collection[fx.Node]) -> int:
    """How many of these nodes draw random numbers that htrain can draw again."""
    return sum(str(node.target) in (*NORMAL, *UNIFORM, *BY_UNIFORM) for node in nodes)


def draws_always(model: nn.Module, draws: int, count: Callable[[], int]) -> bool:
    """Whether a model that draws so often while it trains does so in evaluation, too; `count` says how often, of the model as it is then.

    Raises ModelError for one that draws fewer then, but some.
    """
    if not any(module.training for module in model.modules()):
        return True
    with in_evaluation(model):
        evaluated = count()
    if evaluated not in (0, draws):
        raise ModelError(
            f"forward() draws random numbers {draws} times while it trains, and {evaluated} times in evaluation (model.eval()): draw all of them in both, or "
            "in training alone"
        )
    return evaluated > 0


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Within, `model` is in evaluation mode; after it, each of its modules is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False  # train() of a model may do something else besides
        yield
    finally:
        for module, training in modes:
            module.training = training
