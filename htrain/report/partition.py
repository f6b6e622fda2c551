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
    if facts.known_rows:
        parts += [f"of {facts.known_rows:,} rows that the old partition had seen, {facts.moved_rows:,} have moved"]
    if facts.num_workers <= _MOST_WORKERS:
        parts += ["", _matrix(facts)]
    used = ", ".join(f"{row.place} by {row.examples:,} on {row.owner}" for row in facts.most_used)
    return "\n".join([*parts, "", f"most used: {used}"])


def _summary(made: PartitionFile) -> str:
    facts, k = made.facts, made.facts.num_workers
    lines = [f"{'fetched from other workers':<32}{'here':>12}{'anywhere':>12}{'saved':>10}"]
    for name, here, anywhere in (
        ("distinct rows of a batch, F_B", facts.rows_per_batch, facts.scattered_rows),
        *_by_links(facts),
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


def _by_links(facts: Facts) -> list[tuple[str, float, float]]:
    """F_B by where its rows are, where workers stand on several hosts, and with those of other hosts taken for as many as they cost."""
    if len(facts.hosts) < 2:
        return []
    between, anywhere = facts.rows_between_hosts, facts.scattered_between_hosts
    inside, anywhere_inside = facts.rows_per_batch - between, facts.scattered_rows - anywhere
    cost = facts.link_cost
    return [
        ("  of other hosts", between, anywhere),
        ("  of the same host", inside, anywhere_inside),
        (f"  other hosts' taken {cost:g} times", cost * between + inside, cost * anywhere + anywhere_inside),
    ]


def _matrix(facts: Facts) -> str:
    """Distinct rows of a batch by worker (line) and owner (column), replicas taken off; a bar and an empty line stand between hosts."""
    rows = np.array(facts.rows) - np.array(facts.replicated)
    even = facts.scattered_rows / max(1, facts.num_workers - 1)
    firsts = set(np.cumsum(facts.hosts[:-1]).tolist())
    lines = [
        f"rows that a batch of a worker (line) needs of another (column); {even:,.1f} of each where all are anywhere",
        f"{'':<6}{_cells(list(map(str, range(facts.num_workers))), firsts)}",
    ]
    for worker, row in enumerate(rows):
        cells = ["own" if owner == worker else f"{value:,.1f}" for owner, value in enumerate(row)]
        lines += [""] * (worker in firsts) + [f"{worker:<6}{_cells(cells, firsts)}"]
    return "\n".join(lines)


def _cells(texts: list[str], firsts: set[int]) -> str:
    """Texts in columns, with a bar before the first of each further host."""
    return "".join(f"{' |' if number in firsts else ''}{text:>9}" for number, text in enumerate(texts))
