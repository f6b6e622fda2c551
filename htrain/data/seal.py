"""What a packed file says about its own bytes, so that no bit of it can change unseen.

Every block has a digest of its bytes in an index; index, header and all else that is no block have one together, the seal. Digests are checked
when bytes are read, and cost a tenth of reading them: 64-bit words are added up by columns, and the sums are hashed. A bit that flips changes
one sum. A column's words lie `_COLUMNS` apart, a prime number, so that pages which change places do not fall into the same columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

_COLUMNS = 1021
_RECORD = np.dtype([("offset", "<u8"), ("length", "<u8"), ("rows", "<u8"), ("digest", "S8")])
BLANK = b"\xff\xfe" * 8  # stands where the seal will be, while what it seals is digested; in no text


@dataclass(frozen=True)
class Block:
    """The bytes of one record batch in the file, the rows in it, and the digest of the bytes."""

    offset: int
    length: int
    rows: int
    digest: bytes


def digest_of(data: bytes | memoryview) -> bytes:
    """8 bytes that change with any bit of `data`."""
    size = len(data) // (8 * _COLUMNS) * _COLUMNS
    words = np.frombuffer(data, "<u8", size).reshape(-1, _COLUMNS)
    found = blake2b(np.add.reduce(words, axis=0).tobytes(), digest_size=8)
    found.update(memoryview(data)[8 * size :])
    found.update(len(data).to_bytes(8, "little"))
    return found.digest()


def to_index(blocks: Sequence[Block]) -> bytes:
    """The blocks as bytes, for `from_index`."""
    return np.array([(b.offset, b.length, b.rows, b.digest) for b in blocks], _RECORD).tobytes()


def from_index(index: bytes) -> list[Block]:
    """The blocks that `to_index` wrote. Raises ValueError for what is no index."""
    records = np.frombuffer(index, _RECORD)
    digests = np.frombuffer(index, np.uint8).reshape(-1, _RECORD.itemsize)[
        :, -8:
    ]  # numpy takes the zeros off the end of a text
    numbers = zip(
        records["offset"].tolist(), records["length"].tolist(), records["rows"].tolist(), digests, strict=True
    )
    return [Block(offset, length, rows, digest.tobytes()) for offset, length, rows, digest in numbers]


def seal_of(head: bytes, tail: bytes) -> bytes:
    """16 characters that change with any bit before the blocks or behind them; in `tail` the seal itself is `BLANK`."""
    return digest_of(head + tail).hex().encode()
