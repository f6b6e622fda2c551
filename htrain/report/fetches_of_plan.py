"""What batches of a plan fetch from other workers: as its partition predicts, and as a run of it measured."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from htrain.data.partition_file import Facts, PartitionFile, read_partition
from htrain.errors import DataError
from htrain.executor.record.measured import Measured
from htrain.executor.strategies.strategy import cache_of
from htrain.plan.plan import Plan
from htrain.report.fetches import Fetches, panels_of
from htrain.report.heat import Matrix, Panel, heats


def fetches_of_plan(plan: Plan, measured: Measured | None) -> Fetches | None:
    """What the partition of a plan says, and beside it what a run measured; None for a plan without a partition.

    A plan names its partition and knows its digest: one that cannot be read, or is another now, is a `problem`.
    """
    if not plan.options.sparse_sync.partition_file:
        return None
    made, problem = _partition_of(plan)
    facts, seen = made.facts if made else None, _seen(plan, measured)
    panels = [*(panels_of(facts) if facts else ()), *(_beside(plan, facts, seen) if seen is not None else ())]
    return Fetches(made, problem, heats(panels, facts.hosts if facts else ()) if panels else None)


def _partition_of(plan: Plan) -> tuple[PartitionFile | None, str]:
    """The partition, or why it is not there."""
    name, wanted = plan.options.sparse_sync.partition_file, cache_of(plan, plan.cluster.roles[0]).partition
    try:
        made = read_partition(Path(name))
    except DataError as error:
        known = f"The plan knows the partition by this name, as seen from where it was compiled, and by its digest {wanted[:12]}."
        return None, f"{error}. {known}"
    found = made.facts.digest
    if found != wanted:
        other = (
            f"is another partition than the plan was compiled with (digest {found[:12]}, the plan has {wanted[:12]})"
        )
        return None, f"{name}: {other}."
    return made, ""


def _seen(plan: Plan, measured: Measured | None) -> Matrix | None:
    """What a run measured, a line for each worker; None where it did not, or where its record is damaged."""
    rows, k = measured.rows if measured else (), plan.cluster.groups
    if len(rows) != k or any(len(row) != k for row in rows):
        return None
    matrix = np.array(rows)
    return matrix if np.isfinite(matrix).all() and (matrix >= 0).all() else None


def _beside(plan: Plan, facts: Facts | None, seen: Matrix) -> Iterator[Panel]:
    """What batches need, replicas or not, as predicted and as measured."""
    if facts:
        yield Panel("As predicted", "rows needed", np.array(facts.rows))
    is_other = facts is not None and facts.batch_size != plan.options.batch_size
    yield Panel("As measured", "rows needed" + f", by batches of {plan.options.batch_size:,}" * is_other, seen)
