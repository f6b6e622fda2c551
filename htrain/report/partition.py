"""A partition as text: what its batches fetch beside samples and rows anywhere, from whom, and which rows most."""

import numpy as np

from htrain.data.partition_file import Facts, PartitionFile

_MOST_WORKERS = 16  # of whom the matrix is drawn


def partition_text(made: PartitionFile) -> str:
    """Several lines."""
    facts = made.facts
    rows = sum(facts.table_rows)
    parts = [
        f"{facts.uri}: {facts.num_examples:,} examples, {facts.num_edges:,} uses of {facts.num_seen:,} rows, of {rows:,} in "
        f"{len(facts.tables)} tables; {facts.num_workers} workers, batches of {facts.batch_size:,}; begun by {facts.begun}",
        "",
        _summary(made),
    ]
    if facts.num_workers <= _MOST_WORKERS:
        parts += ["", _matrix(facts)]
    used = ", ".join(f"{row.place} by {row.examples:,} on {row.owner}" for row in facts.most_used)
    return "\n".join([*parts, "", f"most used: {used}"])


def _summary(made: PartitionFile) -> str:
    facts, k = made.facts, made.facts.num_workers
    lines = [f"{'fetched from other workers':<32}{'here':>12}{'anywhere':>12}{'saved':>10}"]
    for name, here, anywhere in (
        ("distinct rows of a batch, F_B", facts.rows_per_batch, facts.scattered_rows),
        ("uses of a sample, F1", facts.uses_per_sample, facts.scattered_uses),
    ):
        saved = f"{1 - here / anywhere:.1%}" if anywhere else "-"
        lines.append(f"{name:<32}{here:>12,.2f}{anywhere:>12,.2f}{saved:>10}")
    for name, workers in (("examples", made.samples), ("rows", made.owners)):
        counts = np.bincount(workers, minlength=k)
        lines.append(
            f"{name + ' of a worker':<32}{counts.min():>12,} to {counts.max():,}, {counts.max() * k / len(workers):.3f} times the even share at most"
        )
    held = [len(rows) for rows in made.secondaries]
    if any(held):
        lines.append(f"{'replicas on a worker':<32}{min(held):>12,} to {max(held):,}")
    return "\n".join(lines)


def _matrix(facts: Facts) -> str:
    """Distinct rows of a batch by worker (line) and owner (column), replicas taken off."""
    rows = np.array(facts.rows) - np.array(facts.replicated)
    even = facts.scattered_rows / max(1, facts.num_workers - 1)
    heads = "".join(f"{worker:>9}" for worker in range(facts.num_workers))
    lines = [
        f"rows that a batch of a worker (line) needs of another (column); {even:,.1f} of each where all are anywhere",
        f"{'':<6}{heads}",
    ]
    for worker, row in enumerate(rows):
        cells = "".join(f"{'own' if owner == worker else f'{value:,.1f}':>9}" for owner, value in enumerate(row))
        lines.append(f"{worker:<6}{cells}")
    return "\n".join(lines)
