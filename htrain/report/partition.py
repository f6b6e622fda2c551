"""A partition as text: what its batches fetch beside samples and rows anywhere, from whom, and which rows most."""

import numpy as np

from htrain.data.partition_file import Facts, PartitionFile
from htrain.report.fetches import balances_of, figures_of, replicas_of

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
    else:
        parts += ["", "rows by pairs of workers are drawn by: htrain show FILE --html PAGE"]
    used = ", ".join(f"{row.place} by {row.examples:,} on {row.owner}" for row in facts.most_used)
    return "\n".join([*parts, "", f"most used: {used}"])


def _summary(made: PartitionFile) -> str:
    lines = [f"{'fetched from other workers':<32}{'here':>12}{'anywhere':>12}{'saved':>10}"]
    for figure in figures_of(made.facts):
        name = "  " * figure.is_part + figure.name
        lines.append(f"{name:<32}{figure.here:>12,.2f}{figure.anywhere:>12,.2f}{figure.saved:>10}")
    for balance in balances_of(made):
        lines.append(
            f"{balance.name:<32}{balance.least:>12,} to {balance.most:,}, {balance.times:.3f} times the even share at most"
        )
    fewest, most = replicas_of(made)
    if most:
        lines.append(f"{'replicas on a worker':<32}{fewest:>12,} to {most:,}")
    return "\n".join(lines)


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
