"""Random numbers that forward() draws: by which ops; and evaluation, in which it may draw none."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import fx, nn

_NORMAL = ("randn.default", "randn_like.default", "normal_functional.default", "normal.float_float")
_UNIFORM = ("rand.default", "rand_like.default", "uniform.default")
BETWEEN = ("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype")
_WHOLE = (*BETWEEN, "randperm.default", "multinomial.default")
_BY_UNIFORM = ("exponential.default", "bernoulli.default", "bernoulli.p", *_WHOLE)  # made of uniform numbers
NORMAL, UNIFORM, BY_UNIFORM = (tuple(f"aten.{name}" for name in names) for names in (_NORMAL, _UNIFORM, _BY_UNIFORM))


@dataclass(frozen=True)
class Drawn:
    """What is drawn at random: in evaluation, too (`always`); for a loss alone, nothing that is scored being made of it (`for_loss`); in training alone, and
    evaluation has a net of its own (`apart`)."""

    always: bool = False
    for_loss: bool = False
    apart: bool = False


def draws_of(nodes: Collection[fx.Node]) -> int:
    """How many of these nodes draw random numbers that htrain can draw again."""
    return sum(str(node.target) in (*NORMAL, *UNIFORM, *BY_UNIFORM) for node in nodes)


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
