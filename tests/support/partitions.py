"""Partitions of tables, drawn at random: as a file has them, without data behind them."""

from pathlib import Path

import numpy as np

from htrain.data import Input
from htrain.data.identity import DataIdentity
from htrain.data.partition_file import VERSION, Facts, PartitionFile, sealed, small, write_partition


def drawn_partition(
    seed: int,
    table_rows: tuple[int, ...],
    *,
    num_workers: int,
    share: float = 0.3,
    num_examples: int = 0,
    inputs: tuple[Input, ...] = (),
) -> PartitionFile:
    """About a share of the rows of tables t0, t1, ... is seen, and owned by anyone; each worker has replicas of some rows of others."""
    random = np.random.default_rng(seed)
    total = sum(table_rows)
    is_seen = random.random(total) < share
    bits = np.packbits(np.append(is_seen, np.zeros(-total % 64, bool)), bitorder="little").view(np.uint64)
    num_seen = int(is_seen.sum())
    owners = small(random.integers(0, num_workers, num_seen))
    samples = small(random.permutation(np.arange(num_examples) % num_workers))
    secondaries = tuple(
        np.sort(random.permutation(np.flatnonzero(owners != worker))[:5]).astype(np.int32)
        for worker in range(num_workers)
    )
    even = ((1.0,) * num_workers,) * num_workers
    facts = Facts(
        version=VERSION, uri="libfm:drawn", data=DataIdentity(1, "libfm", {}, ()), inputs=inputs, tables=tuple(f"t{i}" for i in range(len(table_rows))),
        table_rows=table_rows, num_examples=num_examples, num_seen=num_seen, num_edges=num_seen, num_workers=num_workers, batch_size=4,
        seed=seed, begun="drawn", rows=even, replicated=even, uses=even, scattered_rows=1.0, scattered_uses=1.0, most_used=(), digests={}, digest="",
    )  # fmt: skip
    updates = (0.5 + random.random(num_seen)).astype(np.float16)
    return sealed(PartitionFile(facts, samples, bits, owners, updates, secondaries))


def written(folder: Path, partition: PartitionFile) -> Path:
    """The partition as a file."""
    path = folder / "drawn.partition"
    write_partition(path, partition)
    return path
