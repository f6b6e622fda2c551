"""How groups keep their dense replicas alike: the table of these strategies, as users name them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from htrain.errors import ClusterError
from htrain.spec.fields import Count, Rate, Section, about

if TYPE_CHECKING:
    from htrain.spec.cluster import Cluster
    from htrain.spec.options import Options


ALONE = "one group has nothing to synchronise with: it wants --groups 2 or more"


@dataclass(frozen=True)
class DenseSync(Section):
    """A way to keep dense replicas alike. With `lockstep`, all trainers step together; with `centred`, groups exchange weights with centres, in rounds."""

    lockstep: ClassVar[bool] = False
    centred: ClassVar[bool] = False
    centre_copies: ClassVar[int] = 1  # of each weight, that a centre keeps

    @property
    def travels_as(self) -> tuple[str, float]:
        """The dtype of weights in rounds, and the share of them that travels."""
        return "float32", 1.0

    @property
    def encodes(self) -> bool:
        """Whether weights travel shorter than they are: what the other side knows is kept then, at a centre for each group."""
        return self.travels_as != ("float32", 1.0)

    @property
    def round_steps(self) -> int:
        """Steps of a group between two rounds; 1 where there are none."""
        return 1

    @property
    def holds_writes(self) -> bool:
        """Whether steps wait with their writes while a round is under way."""
        return False

    @property
    def uses_dense_ps(self) -> bool:
        """Whether centres are on dense PSs."""
        return self.centred

    def require(self, cluster: "Cluster", options: "Options") -> None:
        """Raises ClusterError where rounds go through dense PSs and there are none."""
        if self.has_rounds(cluster) and self.uses_dense_ps and not cluster.dense_ps:
            raise ClusterError(
                f"{cluster.groups} groups are synchronised through dense PSs: dense_ps must be at least 1"
            )

    def idle(self, field: str, cluster: "Cluster") -> str:
        """No field of rounds changes anything with one group."""
        return ALONE if self.centred and cluster.groups == 1 else ""

    def has_rounds(self, cluster: "Cluster") -> bool:
        """Whether groups and centres exchange weights."""
        return self.centred and cluster.groups > 1


@dataclass(frozen=True, kw_only=True)
class InRounds(DenseSync):
    """What all ways have in common that exchange weights in rounds (HT 3.1.2, ShadowSync)."""

    centred = True
    period: Annotated[Count, about("Steps of a group between two rounds.")] = 8
    mode: Annotated[
        Literal["background", "fixed_rate"],
        about("Rounds go on beside steps, or steps wait with their writes until a round has ended."),
    ] = "background"
    through: Annotated[
        Literal["dense_ps", "groups"],
        about(
            "Centres are on dense PSs, or each group has a share of them and groups exchange weights with each other."
        ),
    ] = "dense_ps"
    dtype: Annotated[
        Literal["float32", "bfloat16", "int8"],
        about(
            "As what weights travel: shorter, each way says how far they have moved since it was last told; what is left out goes with the next round."
        ),
    ] = "float32"
    top_k: Annotated[
        Annotated[float, Meta(gt=0, le=1)],
        about("Share of these differences that travels, the largest in magnitude first; 1 sends all."),
    ] = 1.0

    @property
    def uses_dense_ps(self) -> bool:
        """Whether centres are on dense PSs, as `through` says."""
        return self.through == "dense_ps"

    @property
    def travels_as(self) -> tuple[str, float]:
        """See `DenseSync`: `dtype` and `top_k`."""
        return self.dtype, self.top_k

    def require(self, cluster: "Cluster", options: "Options") -> None:
        """Raises ClusterError as `DenseSync` does, and for two encodings at once."""
        super().require(cluster, options)
        if self.dtype != "float32" and self.top_k < 1:
            short = f"as {self.dtype} or as the top {self.top_k:g} of their differences"
            raise ClusterError(f"weights travel {short}, not both: leave out --sync-dtype or --sync-top-k")

    @property
    def round_steps(self) -> int:
        """The steps of `period`."""
        return self.period

    @property
    def holds_writes(self) -> bool:
        """Whether `mode` is fixed_rate."""
        return self.mode == "fixed_rate"


@dataclass(frozen=True)
class Easgd(InRounds):
    """Elastic averaging with a centre, which groups come to one by one (HT 3.1.2, ShadowSync)."""

    kind = "easgd"
    home = "easgd"
    alpha: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | Literal["auto"],
        about("How far a replica and the centre move to each other in a round; auto is 0.5, halfway."),
    ] = "auto"


@dataclass(frozen=True)
class ModelAveraging(InRounds):
    """All groups meet at the mean of their weights (ShadowSync)."""

    kind = "model_averaging"
    home = "model_averaging"
    centre_copies = 2
    alpha: Annotated[Annotated[float, Meta(gt=0, le=1)], about("How far a replica moves to the mean in a round.")] = 1.0


@dataclass(frozen=True)
class Bmuf(InRounds):
    """Blockwise model-update filtering: what all groups have learned in the mean moves a centre, with momentum (Chen and Huo 2016; ShadowSync)."""

    kind = "bmuf"
    home = "bmuf"
    centre_copies = 3
    alpha: Annotated[Annotated[float, Meta(gt=0, le=1)], about("How far a replica moves to the centre in a round.")] = (
        1.0
    )
    momentum: Annotated[
        Annotated[float, Meta(ge=0, lt=1)] | Literal["auto"],
        about("How much of the centre's last step goes into the next; auto is 1 - 1/groups, at most 0.5."),
    ] = "auto"
    lr: Annotated[Rate, about("How much of what groups have learned goes into a step of the centre.")] = 1.0
    nesterov: Annotated[bool, about("Groups begin where the momentum will have taken the centre (Nesterov).")] = True


@dataclass(frozen=True)
class AllReduce(DenseSync):
    """All trainers average their gradients in every step; each trainer has all dense weights (HET 3)."""

    kind = "allreduce"
    home = "allreduce"
    lockstep = True
    bucket_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=2**40)],
        about("Gradients are averaged in buckets of about as many bytes.", flag="bucket-bytes"),
    ] = 1 << 20

    def require(self, cluster: "Cluster", options: "Options") -> None:
        """Raises ClusterError unless every group is one trainer without a group PS."""
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
        """Raises ClusterError unless there is one group with group PSs."""
        if cluster.groups > 1 or not cluster.group_ps:
            trainers = cluster.groups * cluster.trainers
            raise ClusterError(
                f"dense sync ps keeps the dense weights on the group PSs of one group: set groups: 1, trainers: {trainers}, group_ps: 1 or more"
            )


DENSE_SYNCS: dict[str, type[DenseSync]] = {
    kind.kind: kind for kind in (Easgd, ModelAveraging, Bmuf, AllReduce, ParameterServer)
}
