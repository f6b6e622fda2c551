"""A partition of data on a disk: which worker trains each example, and which owns each row (docs/decisions/bigraph.md).

A safetensors file, whose metadata holds `htrain.partition`, the Facts as JSON, and whose tensors are

| tensor           | dtype, shape         | holds                                                                                        |
|------------------|----------------------|----------------------------------------------------------------------------------------------|
| `samples`        | uint8 or 16 [n]      | the worker of each example, in the order of one reader of the data                             |
| `seen`           | uint64[ceil(R/64)]   | a bit for each row of all tables, one after another, that is set where the data uses the row   |
| `owners`         | uint64[ceil(m/64),b] | the worker of each row that is seen, in b bits: bit i of word [w, j] is bit j of row 64 w + i's |
| `updates`        | float16[m]           | of each row that is seen, how many updates a step brings: on how many workers a batch uses it  |
| `secondaries.I`  | int32[s]             | the seen rows, by their numbers from 0 to m - 1, of which worker I holds a replica besides     |

The facts have a digest of each tensor, and their `digest` is of the facts, so that no bit of the file can change unseen, and one tensor can be read without the
others.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from htrain.data.identity import DataIdentity
from htrain.data.numbering_loops import from_planes, to_planes
from htrain.data.schema import Input
from htrain.decoding import from_json
from htrain.errors import DataError
from htrain.files import place_to_write, require_regular, write_file

KEY = "htrain.partition"
VERSION = 2
_PIECE = 1 << 21  # numbers of a tensor that are read at once
_HEAD_BYTES = 1 << 24
Array = np.ndarray


class UsedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the rows that most examples use: as TABLE[ROW], by how many, and its owner."""

    place: str
    examples: int
    owner: int


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What was partitioned and how, and what its batches fetch. `inputs` are those of the data's schema, whose ids look up the rows of `tables`.

    rows[i][j] are the distinct rows of worker j that a batch of worker i needs in the mean, and of those replicated[i][j] are read from a replica.
    uses[i][j] are the uses of worker j's rows by the samples of worker i, over all samples. `scattered_rows` and `scattered_uses` are what a batch and
    a sample fetch where samples and rows are anywhere. hosts[g] workers stand on host g, in order of their numbers, and a row of another host costs as much as
    `link_cost` of the own; where `hosts` is empty, all are on one.

    `known_rows` had been seen by an older partition from which this one began; of them, `moved_rows` have another owner now.
    """

    version: int
    uri: str
    data: DataIdentity
    inputs: tuple[Input, ...]
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
    digests: dict[str, str]
    hosts: tuple[int, ...] = ()
    link_cost: float = 1.0
    known_rows: int = 0
    moved_rows: int = 0
    digest: str = ""

    @property
    def rows_per_batch(self) -> float:
        """F_B, with what replicas save."""
        return _remote(self.rows) - _remote(self.replicated)

    @property
    def rows_between_hosts(self) -> float:
        """Those of F_B that are of other hosts."""
        host_of = [host for host, size in enumerate(self.hosts) for _ in range(size)]
        found = zip(self.rows, self.replicated, strict=True)
        return (
            sum(
                rows[j] - held[j]
                for i, (rows, held) in enumerate(found)
                for j in range(self.num_workers)
                if self.hosts and host_of[i] != host_of[j]
            )
            / self.num_workers
        )

    @property
    def scattered_between_hosts(self) -> float:
        """Those of `scattered_rows` that are of other hosts."""
        k = self.num_workers
        apart = k * k - sum(size * size for size in self.hosts or (k,))
        return self.scattered_rows * apart / max(1, k * k - k)

    @property
    def uses_per_sample(self) -> float:
        """F1."""
        return _remote(self.uses) * self.num_workers / max(1, self.num_examples)


def _remote(matrix: tuple[tuple[float, ...], ...]) -> float:
    """The mean over workers of what comes from others."""
    return sum(sum(row) - row[i] for i, row in enumerate(matrix)) / len(matrix)


@dataclass(frozen=True)
class PartitionFile:
    """The facts, and the arrays of the table above; owners[m] are numbers here."""

    facts: Facts
    samples: Array
    seen: Array
    owners: Array
    updates: Array
    secondaries: tuple[Array, ...]

    def tensors(self) -> dict[str, Array]:
        """The tensors of the file by name."""
        planes = np.zeros((-(-len(self.owners) // 64), bits_of(self.facts.num_workers)), np.uint64)
        to_planes(self.owners, planes)
        return {"samples": self.samples, "seen": self.seen, "owners": planes, "updates": self.updates} | {
            f"secondaries.{worker}": rows for worker, rows in enumerate(self.secondaries)
        }


def bits_of(num_workers: int) -> int:
    """Bits of a worker's number."""
    return max(1, (num_workers - 1).bit_length())


def small(workers: Array) -> Array:
    """Numbers of workers in as few bytes as they take."""
    return workers.astype(np.uint8 if workers.max(initial=0) < 256 else np.uint16)


def sealed(partition: PartitionFile) -> PartitionFile:
    """The partition with the digests of its tensors and of its facts."""
    digests = {name: _digest(array) for name, array in partition.tensors().items()}
    facts = msgspec.structs.replace(partition.facts, digests=digests)
    return replace(partition, facts=msgspec.structs.replace(facts, digest=_digest_of_facts(facts)))


def _digest_of_facts(facts: Facts) -> str:
    return blake2b(msgspec.json.encode(msgspec.structs.replace(facts, digest="")), digest_size=16).hexdigest()


def _digest(array: Array) -> str:
    """Most CPUs have instructions for SHA-256."""
    digest = sha256(np.ascontiguousarray(array).data)
    digest.update(_kind(array.dtype, array.shape))
    return digest.hexdigest()


def _kind(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    return f"{dtype} {shape}".encode()


def write_partition(path: Path, partition: PartitionFile) -> None:
    """Write a partition, whole or not at all, over nothing but another. Raises DataError for a place that cannot be written."""
    data = save(partition.tensors(), {KEY: msgspec.json.encode(partition.facts).decode()})
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
    facts = read_facts(path)
    arrays = {name: np.concatenate([*read_tensor(path, facts, name)]) for name in facts.digests}
    owners = small(np.full(facts.num_seen, facts.num_workers - 1))
    from_planes(arrays["owners"], owners)
    secondaries = tuple(arrays[f"secondaries.{worker}"] for worker in range(facts.num_workers))
    return PartitionFile(
        facts, arrays["samples"], arrays["seen"], owners=owners, updates=arrays["updates"], secondaries=secondaries
    )


def read_facts(path: Path) -> Facts:
    """The facts of a partition. Raises DataError as `read_partition` does."""
    with _reading(path) as file:
        facts = _facts(path, (file.metadata() or {}).get(KEY))
        if _digest_of_facts(facts) != facts.digest:
            raise _damaged(path)
        if set(file.keys()) != set(facts.digests) or not _names(facts) <= set(facts.digests):
            raise DataError(f"{path}: is damaged: arrays are missing; make it again")
        planes = [-(-facts.num_seen // 64), bits_of(facts.num_workers)]
        shapes = {"samples": [facts.num_examples], "seen": [-(-sum(facts.table_rows) // 64)], "owners": planes}
        if any(file.get_slice(name).get_shape() != shape for name, shape in shapes.items()):
            raise _damaged(path)
    return facts


def read_tensor(path: Path, facts: Facts, name: str) -> Iterator[Array]:
    """A tensor of the partition with these facts, by pieces of its first axis. Raises DataError, behind the last piece, where it is not what was written."""
    digest = sha256()
    with _reading(path) as file:
        stored = file.get_slice(name)
        shape = tuple(stored.get_shape())
        whole = math.prod(shape) <= _PIECE
        rows = max(1, _PIECE * shape[0] // max(1, math.prod(shape)))
        for begin in range(0, max(1, shape[0]), max(1, rows)):
            piece = file.get_tensor(name) if whole else stored[begin : min(shape[0], begin + rows)]
            digest.update(piece.data)
            yield piece
    digest.update(_kind(piece.dtype, shape))
    if digest.hexdigest() != facts.digests[name]:
        raise _damaged(path)


def _names(facts: Facts) -> set[str]:
    return {"samples", "seen", "owners", "updates", *(f"secondaries.{worker}" for worker in range(facts.num_workers))}


def _damaged(path: Path) -> DataError:
    return DataError(f"{path}: is damaged: its digest is another than when it was written; make it again")


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    try:
        require_regular(path)
        with safe_open(path, "numpy") as file:
            yield file
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise DataError(
            f"{path}: is no partition of htrain's; make one with: htrain partition DATA --out FILE"
        ) from error


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
        version = from_json(text, _Version).version
        if version != VERSION:
            raise DataError(f"{path}: is a partition of version {version}, this htrain reads {VERSION}; make it again")
        return from_json(text, Facts)
    except msgspec.DecodeError as error:
        raise DataError(f"{path}: is damaged: {error}; make it again") from error


class _Version(msgspec.Struct):
    version: int
