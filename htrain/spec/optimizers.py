"""Optimizers of dense weights and of the rows of tables."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from htrain.spec.fields import Kinds, Rate, Section, Share, about

Amount = Annotated[float, Meta(ge=0)]
_LAZY = "Times the rows that a batch asks for, added to their gradient (L2); other rows stay."


@dataclass(frozen=True)
class Optimizer(Section):
    """How a parameter steps along its gradient; `lr` is the learning rate."""

    lr: Annotated[Rate, about("Learning rate.")]


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Stochastic gradient descent. Tables have no momentum, and no weight decay but a lazy one: these would change rows that no example asks for."""

    kind = "sgd"
    momentum: Annotated[Share, about("Share of the last update that the next one keeps.")] = 0.0
    dampening: Annotated[Share, about("Share of a gradient that the momentum leaves out.")] = 0.0
    nesterov: Annotated[bool, about("Nesterov's momentum: a step looks one update ahead.")] = False
    weight_decay: Annotated[Amount, about("Times the weight, added to its gradient (L2).")] = 0.0
    lazy_weight_decay: Annotated[Amount, about(_LAZY)] = 0.0


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad, with an accumulator for each number."""

    kind = "adagrad"
    eps: Annotated[Rate, about("What Adagrad adds to the root of its accumulators.")] = 1e-10
    initial_accumulator: Annotated[Amount, about("What Adagrad's accumulators begin with.")] = 0.0
    weight_decay: Annotated[Amount, about("Times the weight, added to its gradient (L2).")] = 0.0
    lazy_weight_decay: Annotated[Amount, about(_LAZY)] = 0.0


@dataclass(frozen=True)
class RowwiseAdagrad(Optimizer):
    """Adagrad with one accumulator for each row of a table: the mean of the squares of its gradient."""

    kind = "rowwise_adagrad"
    eps: Annotated[Rate, about("What Adagrad adds to the root of its accumulators.")] = 1e-10
    initial_accumulator: Annotated[Amount, about("What Adagrad's accumulators begin with.")] = 0.0
    lazy_weight_decay: Annotated[Amount, about(_LAZY)] = 0.0


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam with bias correction."""

    kind = "adam"
    beta1: Annotated[Share, about("Decay of Adam's first moments.", flag="beta1")] = 0.9
    beta2: Annotated[Share, about("Decay of Adam's second moments.", flag="beta2")] = 0.999
    eps: Annotated[Rate, about("What Adam adds to the root of its second moments.")] = 1e-8
    weight_decay: Annotated[Amount, about("Times the weight, added to its gradient (L2).")] = 0.0


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam whose weight decay is apart from the gradient: a step first shortens the weight by rate x `weight_decay`."""

    kind = "adamw"
    beta1: Annotated[Share, about("Decay of Adam's first moments.", flag="beta1")] = 0.9
    beta2: Annotated[Share, about("Decay of Adam's second moments.", flag="beta2")] = 0.999
    eps: Annotated[Rate, about("What Adam adds to the root of its second moments.")] = 1e-8
    weight_decay: Annotated[Amount, about("Share of the weight that a step at rate 1 takes off it.")] = 0.01


@dataclass(frozen=True)
class SparseAdam(Optimizer):
    """Adam of the rows of a table, as torch.optim.SparseAdam: a batch moves the moments of the rows that it asks for, and of no other."""

    kind = "sparse_adam"
    beta1: Annotated[Share, about("Decay of Adam's first moments.", flag="sparse-beta1")] = 0.9
    beta2: Annotated[Share, about("Decay of Adam's second moments.", flag="sparse-beta2")] = 0.999
    eps: Annotated[Rate, about("What Adam adds to the root of its second moments.")] = 1e-8


@dataclass(frozen=True)
class RowwiseAdam(Optimizer):
    """Adam of the rows of a table with one second moment for each row, the mean over its numbers, as fbgemm's PARTIAL_ROWWISE_ADAM; lazy as `sparse_adam`."""

    kind = "rowwise_adam"
    beta1: Annotated[Share, about("Decay of Adam's first moments.", flag="sparse-beta1")] = 0.9
    beta2: Annotated[Share, about("Decay of Adam's second moments.", flag="sparse-beta2")] = 0.999
    eps: Annotated[Rate, about("What Adam adds to the root of its second moments.")] = 1e-8


@dataclass(frozen=True)
class LazyMomentum(Optimizer):
    """SGD with momentum of the rows that a batch asks for: other rows stay, and their momentum waits for the next batch that asks for them."""

    kind = "lazy_momentum"
    lazy_momentum: Annotated[Share, about("Share of a row's last update that its next one keeps.")] = 0.9


@dataclass(frozen=True)
class Ftrl(Optimizer):
    """FTRL-Proximal, in which a weight that its gradients do not want far enough from 0 is exactly 0 (McMahan et al. 2013); `lr` is the paper's alpha."""

    kind = "ftrl"
    beta: Annotated[Rate, about("What FTRL adds to the root of the sum of the squares of a weight's gradients.")] = 1.0
    l1: Annotated[Amount, about("FTRL's L1: how large sums of gradients may be that leave a weight 0.")] = 0.0
    l2: Annotated[Amount, about("FTRL's L2: what holds weights to 0, half of it times their square.")] = 0.0


DENSE_OPTIMIZERS: Kinds = {kind.kind: kind for kind in (Sgd, Adagrad, Adam, AdamW, Ftrl)}
_OF_TABLES = (Sgd, Adagrad, RowwiseAdagrad, SparseAdam, RowwiseAdam, LazyMomentum, Ftrl)
SPARSE_OPTIMIZERS: Kinds = {kind.kind: kind for kind in _OF_TABLES}
OF_DENSE = ("momentum", "dampening", "nesterov", "weight_decay")  # of kinds that tables have too, dense weights alone
OF_ROWS = ("lazy_weight_decay",)  # of kinds that dense weights have too, tables alone
