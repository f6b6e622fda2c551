"""What stands between a trainer and the tables, whatever it is: what others must know of it."""

from dataclasses import dataclass
from typing import ClassVar

from htrain.spec.fields import Section


@dataclass(frozen=True)
class RowHolder(Section):
    """What stands between a trainer and the tables.

    With `holds_rows`, rows stay on the trainers, which then have one net replica. With `averages_rows`, a trainer's own rows take its own gradient, and
    replicas of a row are averaged. `by_partition` says that rows and examples are where a partition of the data has them, `is_joined` that workers from
    outside may hold rows as trainers do.
    """

    holds_rows: ClassVar[bool] = False
    averages_rows: ClassVar[bool] = False
    by_partition: ClassVar[bool] = False
    is_joined: ClassVar[bool] = False
    server_row_bytes: ClassVar[int] = 0  # what a sparse PS keeps beside each row
    batch_copies: ClassVar[int] = (
        1  # times the bytes of a batch that is open: the batch, and what the cache keeps of its ids
    )
    hits_as_given: ClassVar[bool] = False  # the cost model takes its hits from the cluster's `cache_hit_percent`

    @property
    def words(self) -> str:
        """What sentences call it."""
        return f"the {self.kind} cache"

    @property
    def reads_ahead(self) -> int:
        """The most batches that a trainer reads ahead of the present one."""
        return 1

    @property
    def no_prefetch(self) -> str:
        """Why rows of the next batch cannot be asked for before a step has ended; "" where they can."""
        return ""

    @property
    def whole(self) -> bool:
        """Whether all tables are behind the cache."""
        return False
