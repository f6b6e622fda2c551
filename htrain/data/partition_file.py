"""A partition of data on a disk: which worker trains each example, and which owns each row (docs/decisions/bigraph.md).

A safetensors file, whose metadata holds `htrain.partition`, the Facts as JSON, and whose tensors are

| tensor           | dtype, shape       | holds                                                                                          |
|------------------|--------------------|------------------------------------------------------------------------------------------------|
| `samples`        | uint8 or 16 [n]    | the worker of each example, in the order of one reader of the data                               |
| `seen`           | uint64[ceil(R/64)] | a bit for each row of all tables, one after another, that is set where the data uses the row     |
| `owners`         | uint8 or 16 [m]    | the worker of each row that is seen, in order                                                    |
| `secondaries.I`  | int32[b]           | the seen rows, by their numbers from 0 to m - 1, of which worker I holds a replica besides       |

Their `digest` is of the facts and of all tensors, so that no bit of them can change unseen.
"""

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from htrain.data.identity import DataIdentity
from htrain.errors import DataError
from htrain.files import place_to_write, require_regular, write_file

KEY = "htrain.partition"
VERSION = 1
_HEAD_BYTES = 1 << 24
Array = np.ndarray


class UsedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the rows that most examples use: as TABLE[ROW], by how many, and its owner."""

    place: str
    examples: int
    owner: int


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was partitioned and how, and what its batches fetch.

    rows[i][j] are the distinct rows of worker j that a batch of worker i needs in the mean, and of those replicated[i][j] are read from a replica.
    uses[i][j] are the uses of worker j's rows by the samples of worker i, over all samples. `scattered_rows` and `scattered_uses` are what a batch and
    a sample fetch where samples and rows are anywhere.
    """

    version: int
    uri: str
    data: DataIdentity
    tables: tuple[str, ...]
    table_rows: tuple[int, ...]
    num_examples: int
    num_seen: int
    num_edges: int
    num_workers: int
    batch_size: int
    seed: int
    begun: str
    rows: tuple[tuple[float, ...], ...]
    replicated: tuple[tuple[float, ...], ...]
    uses: tuple[tuple[float, ...], ...]
    scattered_rows: float
    scattered_uses: float
    most_used: tuple[UsedRow, ...]
    digest: str

    @property
    def rows_per_batch(self) -> float:
        """F_B, with what replicas save."""
        return _remote(self.rows) - _remote(self.replicated)

    @property
    def uses_per_sample(self) -> float:
        """F1."""
        return _remote(self.uses) * self.num_workers / max(1, self.num_examples)


def _remote(matrix: tuple[tuple[float, ...], ...]) -> float:
    """The mean over workers of what comes from others."""
    return sum(sum(row) - row[i] for i, row in enumerate(matrix)) / len(matrix)


@dataclass(frozen=True)
class PartitionFile:
    """The facts, and the arrays of the table above."""

    facts: Facts
    samples: Array
    seen: Array
    owners: Array
    secondaries: tuple[Array, ...]


def small(workers: Array) -> Array:
    """Numbers of workers in as few bytes as they take."""
    return workers.astype(np.uint8 if workers.max(initial=0) < 256 else np.uint16)


def sealed(facts: Facts, arrays: dict[str, Array]) -> Facts:
    """The facts with the digest of themselves and of named arrays."""
    digest = blake2b(msgspec.json.encode(msgspec.structs.replace(facts, digest="")), digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return msgspec.structs.replace(facts, digest=digest.hexdigest())


def arrays_of(samples: Array, seen: Array, owners: Array, secondaries: tuple[Array, ...]) -> dict[str, Array]:
    """The tensors of a file by name."""
    return {"samples": samples, "seen": seen, "owners": owners} | {
        f"secondaries.{worker}": rows for worker, rows in enumerate(secondaries)
    }


def write_partition(path: Path, partition: PartitionFile) -> None:
    """Write a partition, whole or not at all, over nothing but another. Raises DataError for a place that cannot be written."""
    arrays = arrays_of(partition.samples, partition.seen, partition.owners, partition.secondaries)
    data = save(arrays, {KEY: msgspec.json.encode(partition.facts).decode()})
    try:
        write_file(path, data, _is_partition)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error


def require_writable(path: Path) -> None:
    """Raises DataError where `write_partition` would, before the work is done."""
    try:
        place_to_write(path, _is_partition)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error


def _is_partition(path: Path) -> bool:
    with path.open("rb") as file:
        return f'"{KEY}"'.encode() in file.read(_HEAD_BYTES)


def read_partition(path: Path) -> PartitionFile:
    """A partition. Raises DataError for what is none, is of another version, or was damaged."""
    try:
        require_regular(path)
        with safe_open(path, "numpy") as file:
            facts = _facts(path, (file.metadata() or {}).get(KEY))
            arrays: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise DataError(
            f"{path}: is no partition of htrain's; make one with: htrain partition DATA --out FILE"
        ) from error
    secondaries = tuple(arrays.get(f"secondaries.{worker}") for worker in range(facts.num_workers))
    if {"samples", "seen", "owners"} - arrays.keys() or any(rows is None for rows in secondaries):
        raise DataError(f"{path}: is damaged: arrays are missing; make it again")
    if sealed(facts, arrays) != facts:
        raise DataError(f"{path}: is damaged: its digest is another than when it was written; make it again")
    return PartitionFile(facts, arrays["samples"], arrays["seen"], arrays["owners"], secondaries)  # type: ignore[arg-type]


def is_partition(path: Path) -> bool:
    """Whether a file looks like a partition."""
    try:
        require_regular(path)
        return _is_partition(path)
    except OSError:
        return False


def _facts(path: Path, text: str | None) -> Facts:
    if text is None:
        raise DataError(f"{path}: is no partition of htrain's; make one with: htrain partition DATA --out FILE")
    try:
        version = msgspec.json.decode(text, type=_Version).version
        if version != VERSION:
            raise DataError(f"{path}: is a partition of version {version}, this htrain reads {VERSION}; make it again")
        return msgspec.json.decode(text, type=Facts)
    except msgspec.DecodeError as error:
        raise DataError(f"{path}: is damaged: {error}; make it again") from error


class _Version(msgspec.Struct):
    version: int
