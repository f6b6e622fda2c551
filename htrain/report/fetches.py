"""What batches fetch from other workers by a partition: figures for text and page, and the matrices that the page draws."""

from dataclasses import dataclass

import numpy as np

from htrain.data.partition_file import Facts, PartitionFile
from htrain.report.heat import Heats, Panel, heats


@dataclass(frozen=True)
class Figure:
    """What a batch or a sample fetches from other workers, and what it would with samples and rows anywhere. One that `is_part` is of those before it."""

    name: str
    here: float
    anywhere: float
    is_part: bool = False

    @property
    def saved(self) -> str:
        """The share that the partition saves; "-" where nothing would be fetched."""
        return f"{1 - self.here / self.anywhere:.1%}" if self.anywhere else "-"


@dataclass(frozen=True)
class Balance:
    """What a worker has, of the one with the least and of that with the most, and how many times the even share the latter has."""

    name: str
    least: int
    most: int
    times: float


@dataclass(frozen=True)
class Fetches:
    """What the page shows. `problem` says in a sentence why there is no partition, though a plan names one; then only what was measured may be there."""

    made: PartitionFile | None
    problem: str
    heats: Heats | None

    @property
    def figures(self) -> tuple[Figure, ...]:
        """None without a partition."""
        return figures_of(self.made.facts) if self.made else ()

    @property
    def balances(self) -> tuple[Balance, ...]:
        """None without a partition."""
        return balances_of(self.made) if self.made else ()

    @property
    def replicas(self) -> tuple[int, int]:
        """None without a partition."""
        return replicas_of(self.made) if self.made else (0, 0)


def figures_of(facts: Facts) -> tuple[Figure, ...]:
    """F_B, where its rows are if workers stand on several hosts, and F1."""
    return (
        Figure("distinct rows of a batch, F_B", facts.rows_per_batch, facts.scattered_rows),
        *_by_links(facts),
        Figure("uses of a sample, F1", facts.uses_per_sample, facts.scattered_uses),
    )


def _by_links(facts: Facts) -> tuple[Figure, ...]:
    """F_B by where its rows are, and with those of other hosts taken for as many as they cost."""
    if len(facts.hosts) < 2:
        return ()
    between, anywhere = facts.rows_between_hosts, facts.scattered_between_hosts
    inside, anywhere_inside = facts.rows_per_batch - between, facts.scattered_rows - anywhere
    cost = facts.link_cost
    return (
        Figure("of other hosts", between, anywhere, is_part=True),
        Figure("of the same host", inside, anywhere_inside, is_part=True),
        Figure(
            f"other hosts' taken {cost:g} times",
            cost * between + inside,
            cost * anywhere + anywhere_inside,
            is_part=True,
        ),
    )


def balances_of(made: PartitionFile) -> tuple[Balance, ...]:
    """Of examples, and of rows."""
    k = made.facts.num_workers
    found = []
    for name, workers in (("examples", made.samples), ("rows", made.owners)):
        counts = np.bincount(workers, minlength=k)
        times = counts.max() * k / len(workers) if len(workers) else 1.0
        found.append(Balance(f"{name} of a worker", int(counts.min()), int(counts.max()), float(times)))
    return tuple(found)


def replicas_of(made: PartitionFile) -> tuple[int, int]:
    """The fewest and the most that a worker holds."""
    held = [len(rows) for rows in made.secondaries]
    return min(held), max(held)


def fetches_of(made: PartitionFile) -> Fetches:
    """What the page of a partition shows."""
    return Fetches(made, "", heats(panels_of(made.facts), made.facts.hosts))


def panels_of(facts: Facts) -> list[Panel]:
    """What batches fetch, and what they would."""
    rows = np.array(facts.rows) - np.array(facts.replicated)
    anywhere = np.full_like(rows, facts.scattered_rows / max(1, facts.num_workers - 1))
    return [
        Panel("By the partition", "rows fetched", rows),
        Panel("Samples and rows anywhere", "rows fetched", anywhere),
    ]
