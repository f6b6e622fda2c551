"""How groups keep their dense replicas alike: the table of these strategies, as users name them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from htrain.errors import ClusterError
from htrain.spec.fields import Count, Section, about

if TYPE_CHECKING:
    from htrain.spec.cluster import Cluster
    from htrain.spec.options import Options


ALONE = "one group has nothing to synchronise with: it wants --groups 2 or more"


@dataclass(frozen=True)
class DenseSync(Section):
    """A way to keep dense replicas alike. With `lockstep`, all trainers step together; with `centred`, dense PSs hold what groups are drawn to."""

    lockstep: ClassVar[bool] = False
    centred: ClassVar[bool] = False

    @property
    def round_steps(self) -> int:
        """Steps of a group between two rounds in the background; 1 where there are none."""
        return 1

    def require(self, cluster: "Cluster", options: "Options") -> None:
        if self.has_rounds(cluster) and not cluster.dense_ps:
            raise ClusterError(f"{cluster.groups} groups are synchronised through dense PSs: dense_ps must be at least 1")

    def idle(self, field: str, cluster: "Cluster") -> str:
        return ALONE if self.centred and cluster.groups == 1 else ""

    def has_rounds(self, cluster: "Cluster") -> bool:
        """Whether groups and dense PSs exchange weights in the background."""
        return self.centred and cluster.groups > 1


@dataclass(frozen=True)
class Easgd(DenseSync):
    """Elastic averaging with a centre on the dense PSs, in the background (HT 3.1.2, ShadowSync)."""

    kind = "easgd"
    home = "easgd"
    centred = True
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
    home = "allreduce"
    lockstep = True
    bucket_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=2**40)], about("Gradients are averaged in buckets of about as many bytes.", flag="bucket-bytes")
    ] = 1 << 20

    def require(self, cluster: "Cluster", options: "Options") -> None:
        if cluster.trainers > 1 or cluster.group_ps:
            raise ClusterError(
                f"dense sync allreduce keeps all dense weights on every trainer: set groups: {cluster.groups * cluster.trainers}, trainers: 1, group_ps: 0 "
                f"(now {cluster.groups} groups of {cluster.trainers} trainers and {cluster.group_ps} group PSs)"
            )


@dataclass(frozen=True)
class ParameterServer(DenseSync):
    """The trainers of one group fetch the weights from its group PSs for every step, and send gradients without waiting for each other."""

    kind = "ps"
    home = "parameter_server"

    def require(self, cluster: "Cluster", options: "Options") -> None:
        if cluster.groups > 1 or not cluster.group_ps:
            trainers = cluster.groups * cluster.trainers
            raise ClusterError(
                f"dense sync ps keeps the dense weights on the group PSs of one group: set groups: 1, trainers: {trainers}, group_ps: 1 or more"
            )


DENSE_SYNCS: dict[str, type[DenseSync]] = {kind.kind: kind for kind in (Easgd, AllReduce, ParameterServer)}
