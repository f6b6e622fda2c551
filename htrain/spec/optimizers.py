"""Optimizers of dense weights and of the rows of tables."""

from dataclasses import dataclass
from typing import Annotated

from htrain.spec.fields import Kinds, Rate, Section, Share, about


@dataclass(frozen=True)
class Optimizer(Section):
    """How a parameter steps along its gradient; `lr` is the learning rate."""

    lr: Annotated[Rate, about("Learning rate.")]


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Stochastic gradient descent, without momentum."""

    kind = "sgd"


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad, with an accumulator for each number."""

    kind = "adagrad"
    eps: Annotated[Rate, about("What Adagrad adds to the root of its accumulators.")] = 1e-10


@dataclass(frozen=True)
class RowwiseAdagrad(Optimizer):
    """Adagrad with one accumulator for each row of a table: the mean of the squares of its gradient."""

    kind = "rowwise_adagrad"
    eps: Annotated[Rate, about("What Adagrad adds to the root of its accumulators.")] = 1e-10


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam with bias correction."""

    kind = "adam"
    beta1: Annotated[Share, about("Decay of Adam's first moments.", flag="beta1")] = 0.9
    beta2: Annotated[Share, about("Decay of Adam's second moments.", flag="beta2")] = 0.999
    eps: Annotated[Rate, about("What Adam adds to the root of its second moments.")] = 1e-8


DENSE_OPTIMIZERS: Kinds = {kind.kind: kind for kind in (Sgd, Adagrad, Adam)}
SPARSE_OPTIMIZERS: Kinds = {kind.kind: kind for kind in (Sgd, Adagrad, RowwiseAdagrad)}
