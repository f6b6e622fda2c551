"""Options: how a plan trains. One tree, which a cluster file, plan.yaml, flags and Python say alike."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from htrain.spec.cache import CACHES, Cache, NoCache
from htrain.spec.clipping import CLIPS, Clip, NoClip
from htrain.spec.dense_sync import DENSE_SYNCS, Bmuf, DenseSync
from htrain.spec.fields import Question, about
from htrain.spec.numerics import Compression, Fusions, Numerics
from htrain.spec.optimizers import DENSE_OPTIMIZERS, SPARSE_OPTIMIZERS, Adagrad, Optimizer
from htrain.spec.row_holder import RowHolder
from htrain.spec.schedules import SCHEDULES, ConstantRate, Schedule
from htrain.spec.sparse_sync import SPARSE_SYNCS, SparseSync, TableServers

RateShares = Annotated[
    tuple[tuple[str, Annotated[float, Meta(ge=0)]], ...],
    Meta(extra={"wanted": "patterns and shares of the rate, such as top.*=0.1 or embed.weight=0", "pair": "PATTERN=X"}),
]


@dataclass(frozen=True)
class Options:
    """What a plan fixes besides placement.

    `net_replicas` is the number of concurrent net replicas per trainer (Hogwild). With `prefetch`, a replica asks for the next batch's rows before the
    current step has ended, so those rows may miss that step's update. `bounded_staleness` holds dense staleness within trainers x net replicas
    (HT 3.1.1).
    """

    batch_size: Annotated[Annotated[int, Meta(ge=1, le=1 << 24)], about("Examples of a step of one net replica.")] = 128
    net_replicas: Annotated[
        Annotated[int, Meta(ge=1, le=1000)], about("Steps that a trainer has open at a time (Hogwild).")
    ] = 2
    loss: Annotated[
        Literal["bce", "bce_probability", "mse", "own"],
        about(
            "Binary cross-entropy of a logit, of a probability that the model gives, the mean squared error, or what forward() returns."
        ),
    ] = "bce"
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**63 - 1)],
        about("Seed of first values that did not come with the model, and of what dropouts drop."),
    ] = 0
    prefetch: Annotated[bool, about("Ask for the next batch's rows before a step has ended.")] = True
    bounded_staleness: Annotated[bool, about("Hold dense staleness within trainers x net replicas (HT 3.1.1).")] = True
    dense_optimizer: Annotated[
        Optimizer, Question("The optimizer of dense weights.", DENSE_OPTIMIZERS, "dense", "the dense optimizer")
    ] = Adagrad(lr=0.005)  # noqa: RUF009
    sparse_optimizer: Annotated[
        Optimizer, Question("The optimizer of tables.", SPARSE_OPTIMIZERS, "sparse", "the sparse optimizer")
    ] = Adagrad(lr=0.02)  # noqa: RUF009
    dense_schedule: Annotated[
        Schedule,
        Question("How the learning rate of dense weights changes.", SCHEDULES, "dense-schedule", "the dense schedule"),
    ] = ConstantRate()  # noqa: RUF009
    sparse_schedule: Annotated[
        Schedule,
        Question("How the learning rate of tables changes.", SCHEDULES, "sparse-schedule", "the sparse schedule"),
    ] = ConstantRate()  # noqa: RUF009
    rates: Annotated[
        RateShares,
        about(
            "Share of its optimizer's rate for weights and tables by name or pattern, such as top.*=0.1; 0 freezes.",
            flag="rate",
        ),
    ] = ()
    dense_clip: Annotated[
        Clip,
        Question("What bounds the gradients of dense weights.", CLIPS, "dense-clip", "clipping of dense gradients"),
    ] = NoClip()  # noqa: RUF009
    numerics: Annotated[Numerics, Question("In which precision FCs compute.")] = Numerics()  # noqa: RUF009
    compression: Annotated[Compression, Question("How values travel between trainers and group PSs.")] = Compression()  # noqa: RUF009
    fusions: Annotated[Fusions, Question("Which ops are fused.", prefix="fuse")] = Fusions()  # noqa: RUF009
    dense_sync: Annotated[
        DenseSync, Question("How groups keep their dense replicas alike.", DENSE_SYNCS, "sync", "dense sync")
    ] = Bmuf()  # noqa: RUF009
    sparse_sync: Annotated[SparseSync, Question("Where tables live.", SPARSE_SYNCS, "", "sparse sync")] = TableServers()  # noqa: RUF009
    cache: Annotated[Cache, Question("What stands between a trainer and the tables.", CACHES, "cache", "the cache")] = (
        NoCache()  # noqa: RUF009
    )

    @property
    def lockstep(self) -> bool:
        """Whether all trainers step together."""
        return self.dense_sync.lockstep or self.sparse_sync.lockstep

    @property
    def holder(self) -> RowHolder:
        """What stands between a trainer and the tables: the cache, or where tables live does itself."""
        return self.sparse_sync if isinstance(self.sparse_sync, RowHolder) else self.cache

    @property
    def window(self) -> int:
        """The most batches that a trainer reads ahead of the present one."""
        return self.holder.reads_ahead

    @property
    def looks_ahead(self) -> bool:
        """Whether the next batch's rows are asked for before a step has ended; without staleness there is nothing to ask for ahead."""
        return self.prefetch and not self.holder.no_prefetch
