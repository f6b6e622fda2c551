"""A batch of examples, and where in its data a reader stands."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from htrain.errors import CheckpointError


@dataclass(frozen=True)
class Position:
    """The next unread row: its epoch, the chunk of the file (of all chunks, not of one shard's), and the row in the chunk."""

    epoch: int
    chunk: int
    row: int

    @property
    def key(self) -> int:
        """A number of 63 bits, another for each batch that ends here or elsewhere, but for the last of an epoch: these are one for all shards."""
        place = f"{self.epoch} {self.chunk} {self.row}".encode()
        return int.from_bytes(hashlib.blake2b(place, digest_size=8).digest(), "big") >> 1

    def to_dict(self) -> dict[str, int]:
        """The position as JSON has it, for `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> "Position":
        """The position that `to_dict` wrote. Raises CheckpointError for anything but three counts."""
        names = ("epoch", "chunk", "row")
        if (
            not isinstance(values, dict)
            or set(values) != set(names)
            or not all(type(values[n]) is int and values[n] >= 0 for n in names)
        ):
            raise CheckpointError(f"a reader's position must hold epoch, chunk and row, got {values!r}")
        return cls(**values)


START = Position(0, 0, 0)


@dataclass(frozen=True)
class Batch:
    """`num_examples` examples: the columns of the schema and `label`, as numpy arrays. `position` is where the reader stands after it."""

    columns: dict[str, np.ndarray]
    num_examples: int
    position: Position
