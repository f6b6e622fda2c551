"""Writing a packed file (htrain.data.formats.packed): blocks, their index and the seal."""

from collections.abc import Mapping
from typing import BinaryIO

import pyarrow as pa

from htrain.data.formats.packed import BLOCKS, SEAL, header_bytes
from htrain.data.seal import BLANK, Block, digest_of, seal_of, to_index


class PackedWriter:
    """Record batches of `columns` to `file`, which is whole when `finish` has been called."""

    def __init__(self, file: BinaryIO, columns: pa.Schema) -> None:
        self.blocks: list[Block] = []
        self._file, self._columns = file, columns
        self._recorder = _Recorder(file)
        self._writer = pa.ipc.new_file(self._recorder, columns)
        self._head = b""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write one more block."""
        self._writer.write_batch(batch)
        data = self._recorder.take()
        if not self.blocks:  # Arrow writes the schema with the first batch
            begin = header_bytes(data)
            self._head, data = data[:begin], data[begin:]
        offset = self.blocks[-1].offset + self.blocks[-1].length if self.blocks else len(self._head)
        self.blocks.append(Block(offset, len(data), batch.num_rows, digest_of(data)))

    def finish(self, metadata: Mapping[bytes, bytes]) -> None:
        """Write what ends the file: an empty batch with `metadata`, the index of blocks, and the seal over all that is
        no block.

        Requires: at least one block has been written.
        """
        last = pa.RecordBatch.from_pylist([], schema=self._columns)
        self._writer.write_batch(last, custom_metadata={**metadata, BLOCKS: to_index(self.blocks), SEAL: BLANK})
        self._writer.close()
        tail = self._recorder.take()
        assert tail.count(BLANK) == 1, "the place of the seal"
        self._file.seek(self.blocks[-1].offset + self.blocks[-1].length + tail.index(BLANK))
        self._file.write(seal_of(self._head, tail))


class _Recorder:
    """The file, as Arrow writes to it; `take` gives what was written since it was last called."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._written: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._written.append(bytes(data))
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self._file.tell()

    def take(self) -> bytes:
        data, self._written = b"".join(self._written), []
        return data
