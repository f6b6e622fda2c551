"""How groups keep their dense replicas alike: the table of these strategies, as users name them."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from htrain.spec.fields import Count, Kinds, Section, about


@dataclass(frozen=True)
class DenseSync(Section):
    """A way to keep dense replicas alike. With `lockstep`, all trainers step together."""

    lockstep: ClassVar[bool] = False

    @property
    def round_steps(self) -> int:
        """Steps of a group between two rounds in the background; 1 where there are none."""
        return 1


@dataclass(frozen=True)
class Easgd(DenseSync):
    """Elastic averaging with a centre on the dense PSs, in the background (HT 3.1.2, ShadowSync)."""

    kind = "easgd"
    alpha: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | Literal["auto"], about("How far a replica and the centre move to each other in a round; auto is 0.9 / groups.")
    ] = "auto"
    period: Annotated[Count, about("Steps of a group between two rounds.")] = 8

    @property
    def round_steps(self) -> int:
        return self.period


@dataclass(frozen=True)
class AllReduce(DenseSync):
    """All trainers average their gradients in every step; each trainer has all dense weights (HET 3)."""

    kind = "allreduce"
    lockstep = True
    bucket_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=2**40)], about("Gradients are averaged in buckets of about as many bytes.", flag="bucket-bytes")
    ] = 1 << 20


@dataclass(frozen=True)
class ParameterServer(DenseSync):
    """The trainers of one group fetch the weights from its group PSs for every step, and send gradients without waiting for each other."""

    kind = "ps"


DENSE_SYNCS: Kinds = {kind.kind: kind for kind in (Easgd, AllReduce, ParameterServer)}
