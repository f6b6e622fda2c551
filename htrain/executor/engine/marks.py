"""Which rows of a role's tables have changed, as the steps that change them tell; and all of them as they were at one moment, while steps go on.

An op says which rows it writes to (`OpDef.changes`). Before it runs, these are marked with the number of the present epoch, one byte a row; an epoch ends with
each checkpoint. What has changed since one is then known without a look at the table. A checkpoint that is being written has a snapshot: whoever
is about to step a row that still has to be written keeps it as it was first, a copy on write of rows (docs/decisions/checkpoints.md).
"""

import mmap
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.executor.engine.mark_loops import (
    count_rows,
    gather_rows,
    keep_rows,
    mark_rows,
    restore_rows,
    settle_rows,
)
from htrain.net.net import Net, Op
from htrain.ops import OPS
from htrain.ops.base import RowChange
from htrain.ops.bundle import Bundle
from htrain.spec.footprint import LEAST_MARKED_BYTES

_LEAST_BYTES = 8 << 20  # of the tables of a net: fewer are written whole, beside training, at once
_MOST_ROWS = 1 << 31  # their numbers are of 32 bits
_LAST_EPOCH = 255
_CHUNK_BYTES = 4 << 20  # that are copied at a time
_WORD = 4  # bytes
# Room for all rows is taken where rows are kept, and nowhere else.
_NORESERVE = 0x4000 if sys.platform == "linux" else 0

Bytes = NDArray[np.uint8]
Ids = NDArray[np.int64]


class Cancelled(Exception):
    """Nobody waits for a snapshot any more."""


class Table:
    """A table[R,..] and its states, `tensors` by name, with a mark for each row."""

    def __init__(self, num_rows: int) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.marks = np.zeros(num_rows, np.uint8)


class Marks:
    """Those of one role; `least_bytes` of tables in a net are worth them. Steps mark rows from any thread, at a time when no checkpoint is begun."""

    def __init__(self, least_bytes: int = _LEAST_BYTES) -> None:
        self._least_bytes = least_bytes
        self._tables: dict[str, Table] = {}  # by each of its tensors
        self._stepped: set[str] = set()  # of what something that is no op steps, and says where
        self._untold: set[str] = set()  # of what something writes to that does not say where
        self.epoch = 1
        self._began_with: dict[str, int] = {}  # epochs, by the checkpoints that ended those before
        self.snapshot: Snapshot | None = None  # that is being read

    def hear_of(self, net: Net, parameters: Mapping[str, Any]) -> None:
        """Ops that are to run over these parameters, of which tensors of the host can have marks."""
        if any(parameter.kind == "cache" for parameter in net.parameters.values()):
            self._untold |= net.parameters.keys() - self._stepped  # caches may write to tables by themselves
        still = [RowChange((name,), "") for name, parameter in net.parameters.items() if parameter.kind == "table"]
        changes = [change for op in net.ops for change in OPS[op.type].changes(op)]
        tables = {change.tensors[0]: parameters[change.tensors[0]] for change in (*changes, *still)}
        num_bytes = sum(t.nbytes for t in tables.values() if isinstance(t, torch.Tensor))
        for op in net.ops:
            told = self._stepped.union(*(change.tensors for change in OPS[op.type].changes(op)))
            pushes = OPS[op.type].phase == "push"  # of rows of caches: it says so by that alone
            self._untold |= (set(op.inputs) if pushes else OPS[op.type].written(op)) - told
        is_worth = num_bytes >= self._least_bytes
        for change in (*changes, *still) if is_worth else changes:
            self._mark(change, [parameters[name] for name in change.tensors], is_worth=is_worth)

    def stepping(
        self, tables: Sequence[str], states: Sequence[str], parameters: Mapping[str, Any]
    ) -> Callable[[Ids], None]:
        """For what steps rows of these tables by itself, not by an op: to be told of rows before, by their places in all tables, one behind the other."""
        self._stepped.update(tables, states)
        num_bytes = sum(parameters[name].nbytes for name in tables)
        changes, first = [], 0
        for place, name in enumerate(tables):
            change = RowChange((name, *states[place :: len(tables)]), "", first)
            first += len(parameters[name])
            is_worth = num_bytes >= self._least_bytes
            self._mark(change, [parameters[each] for each in change.tensors], is_worth=is_worth)
            if name in self._tables:
                changes.append((change, self._tables[name], 0))
        touch = _Touch(self, changes)
        return touch.rows if touch.is_needed else lambda rows: None

    def _mark(self, change: RowChange, tensors: Sequence[Any], *, is_worth: bool) -> None:
        """Have marks for these rows, where that is worth it, or another net has found that it is. Else they change without a word."""
        known = next((self._tables[name] for name in change.tensors if name in self._tables), None)
        if not is_worth and not known:
            self._untold.update(change.tensors)
            return
        num_rows = len(tensors[0])
        fits = num_rows < _MOST_ROWS and tensors[0].nbytes >= LEAST_MARKED_BYTES
        if not fits or not all(_has_rows(tensor, num_rows) for tensor in tensors):
            self._untold.update(change.tensors)
            return
        table = known or Table(num_rows)
        for name, tensor in zip(change.tensors, tensors, strict=True):
            table.tensors[name] = tensor
            self._tables[name] = table

    def told(self) -> dict[str, torch.Tensor]:
        """The tensors of which every change is marked."""
        tables = {id(table): table for table in self._tables.values()}.values()
        whole = (table.tensors for table in tables if self._untold.isdisjoint(table.tensors))
        return {name: tensor for tensors in whole for name, tensor in tensors.items()}

    def touching(self, op: Op, *, is_bundled: bool) -> tuple[tuple[str, ...], Callable[..., None]] | None:
        """The blobs of ids of the rows that an op changes, and what marks these before it runs: of tensors, or of the one bundle that they are. None where no
        row has a mark."""
        told = OPS[op.type].changes(op)
        names = tuple(dict.fromkeys(change.ids for change in told))
        if is_bundled and told:  # where lists that are alike may come twice
            names = next(each for each in OPS[op.type].bundles(op) if set(names) <= set(each))
        touch = _Touch(
            self,
            [
                (change, self._tables[change.tensors[0]], names.index(change.ids))
                for change in told
                if change.tensors[0] in self._tables
            ],
        )
        if not touch.is_needed:
            return None
        return names, touch.bundle if is_bundled else touch.tensors

    def cut(self, checkpoint: str, base: str = "") -> "Snapshot":
        """All rows that have marks as they are now, or those alone that have changed since the checkpoint `base`; the changes since this one are known by its
        name from now on. Requires: no step runs, and the snapshot before has been closed. Raises OSError where there is no room for it.
        """
        assert self.snapshot is None
        if self.epoch == _LAST_EPOCH:
            for table in self._tables.values():
                table.marks[:] = 0
            self._began_with.clear()
            self.epoch = 1
        oldest = self._began_with.get(base, 0)
        snapshot = Snapshot(self, self.told(), self._tables, self.epoch + 1, oldest)
        self.epoch += 1
        self._began_with[checkpoint] = self.epoch
        self.snapshot = snapshot
        return snapshot

    def warm_up(self) -> None:
        """Compile what finds changed rows, so that the first checkpoint that has these alone does not stand still for it."""
        marks, words = np.zeros(1, np.uint8), np.zeros((1, 1), np.uint32)
        rows, none = np.zeros(1, np.int32), np.full(1, -1, np.int32)
        count_rows(marks, 1)
        gather_rows(marks, 0, 1, epoch=1, oldest=1, source=words, rows=rows, target=words)
        settle_rows(marks, 1, rows, target=words, count=0, kept_rows=rows, kept=words, nexts=none, place=none[0])

    def ended(self, snapshot: "Snapshot") -> None:
        """Nobody reads this one any more."""
        if self.snapshot is snapshot:
            self.snapshot = None


def _has_rows(tensor: Any, num_rows: int) -> bool:
    """Whether it is a tensor of the host with so many rows of whole words."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.device.type == "cpu"
        and tensor.dtype == torch.float32
        and tensor.dim() > 0
        and len(tensor) == num_rows
        and tensor.numel() > 0
        and tensor.is_contiguous()
    )


class _Touch:
    """Rows of several tables that an op is about to change: of each, the change, the table, and the place of its ids among those that are given."""

    def __init__(self, marks: Marks, changes: Sequence[tuple[RowChange, Table, int]]) -> None:
        self._marks = marks
        self._changes = changes
        self.is_needed = bool(changes)
        self._forms = np.array(
            [(_address(table.marks), table.marks.size, change.first_row) for change, table, _ in changes], np.int64
        )
        self._places = np.array([place for _, _, place in changes], np.int64)
        self._strides = np.ones(len(changes), np.int64)

    def bundle(self, ids: Bundle) -> None:
        """The same where lists of ids come as one bundle."""
        if set(ids.kinds.dtypes) != {"int64"} or set(ids.kinds.ranks) != {1}:
            return  # the op refuses them
        if self._marks.snapshot:
            self.tensors(*ids.values())
            return
        mark_rows(self._forms, ids.pointers[self._places], ids.dims[self._places], self._strides, self._marks.epoch)

    def tensors(self, *ids: torch.Tensor) -> None:
        """Mark the rows of these ids; while there is a snapshot, keep them as they were first."""
        self._lists([_ids_of(ids[place], change.column) for change, _, place in self._changes])

    def rows(self, ids: Ids) -> None:
        """The same where all tables have one list of ids."""
        self._lists([ids] * len(self._changes))

    def _lists(self, lists: Sequence[Ids]) -> None:
        snapshot = self._marks.snapshot
        if snapshot and all(self._keep(snapshot, place, each) for place, each in enumerate(lists)):
            return
        addresses = np.array([each.__array_interface__["data"][0] for each in lists], np.int64)
        counts = np.array([each.size for each in lists], np.int64)
        strides = np.array([each.strides[0] // each.itemsize for each in lists], np.int64)
        mark_rows(self._forms, addresses, counts, strides, self._marks.epoch)

    def _keep(self, snapshot: "Snapshot", place: int, ids: Ids) -> bool:
        change, table, _ = self._changes[place]
        return snapshot.keep(table, np.ascontiguousarray(ids), change.first_row)


def _ids_of(ids: torch.Tensor, column: int | None) -> Ids:
    """Ids[..], or a column of ids[B,C], as int64[n]."""
    flat = ids.reshape(-1) if column is None else ids[:, column]
    return flat.long().numpy()


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


class Kept:
    """Rows of a table as they were at the cut, in the order in which they were first stepped since; those of a chunk of the table are a list."""

    def __init__(self, table: Table) -> None:
        """Raises OSError where there is no room."""
        num_rows = table.marks.size
        self.table = table
        self.words = np.array([_row_bytes(each) // _WORD for each in table.tensors.values()], np.int64)
        self.shift = max(0, int(_CHUNK_BYTES // (_WORD * self.words.max())).bit_length() - 1)
        self.rows, self.nexts = _room(num_rows * _WORD).view(np.int32), _room(num_rows * _WORD).view(np.int32)
        self.heads = np.full((num_rows >> self.shift) + 1, -1, np.int32)
        self.values = [_room(num_rows * _WORD * int(words)) for words in self.words]
        self.used = 0
        self._sources = np.array([each.data_ptr() for each in table.tensors.values()], np.int64)
        self._places = np.array([_address(each) for each in self.values], np.int64)

    def keep(self, ids: Ids, first_row: int, epoch: int, oldest: int) -> None:
        """Mark the rows of these ids, and keep those that were not, and have to be written. Requires: one at a time."""
        self.used = keep_rows(
            self.table.marks, ids, first_row, epoch=epoch, oldest=oldest, shift=self.shift, rows=self.rows, nexts=self.nexts, heads=self.heads,
            used=self.used, sources=self._sources, words=self.words, kept=self._places,
        )  # fmt: skip

    def of(self, name: str) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """A tensor, and what is kept of it, as words: [R,W] both."""
        place = list(self.table.tensors).index(name)
        shape = -1, int(self.words[place])
        tensor = self.table.tensors[name].numpy()
        return tensor.reshape(len(tensor), -1).view(np.uint32), self.values[place].view(np.uint32).reshape(shape)


def _row_bytes(tensor: torch.Tensor) -> int:
    return tensor.nbytes // len(tensor)


def _room(num_bytes: int) -> Bytes:
    """Memory of which pages are taken where it is written."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    return np.frombuffer(memory, np.uint8)


class Snapshot:
    """`tensors` that have marks, as they were at the cut that began `epoch`, of the rows that were marked from `oldest` on: all of them where that is 0.

    Read by one thread, piece by piece, while others step. To be closed.
    """

    def __init__(
        self, marks: Marks, tensors: Mapping[str, torch.Tensor], tables: Mapping[str, Table], epoch: int, oldest: int
    ) -> None:
        self._marks = marks
        self.tensors = tensors
        self.is_whole = not oldest
        self._epoch, self._oldest = epoch, oldest
        self._lock = threading.Lock()
        self._is_cancelled = self._is_closed = False
        kept = {id(tables[name]): Kept(tables[name]) for name in tensors}
        self._kept = {name: kept[id(tables[name])] for name in tensors}
        self._by_table = kept
        self._counts = {key: self._count(each.table.marks) for key, each in kept.items()}

    def _count(self, marks: Bytes) -> int:
        return marks.size if self.is_whole else int(count_rows(marks, self._oldest))

    def num_rows(self, name: str) -> int:
        """How many rows of a tensor it has."""
        return self._counts[id(self._kept[name].table)]

    def keep(self, table: Table, ids: Ids, first_row: int) -> bool:
        """A step is about to change the rows of these ids. False where nobody reads it any more: they have to be marked as ever. From any thread."""
        with self._lock:
            kept = self._by_table.get(id(table))
            if kept:
                kept.keep(ids, first_row, self._epoch, self._oldest)
            return not self._is_closed

    def whole(self, name: str) -> Iterator[memoryview]:
        """The bytes of all rows of a tensor, in their order; each piece is good until the next. Raises Cancelled."""
        kept = self._kept[name]
        source, saved = kept.of(name)
        piece = np.empty((1 << kept.shift, source.shape[1]), np.uint32)
        for chunk, first in enumerate(range(0, len(source), len(piece))):
            target = piece[: len(source) - first]
            np.copyto(target, source[first : first + len(target)])
            with self._entered():  # what was stepped while it was copied is kept
                restore_rows(target, first, kept.rows, kept=saved, nexts=kept.nexts, place=kept.heads[chunk])
            yield target.reshape(-1).view(np.uint8).data

    def changed(self, name: str, numbers: list[memoryview]) -> Iterator[memoryview]:
        """The bytes of the rows that were marked; `numbers` gets theirs, as int32. Otherwise as `whole`."""
        kept = self._kept[name]
        marks, (source, saved) = kept.table.marks, kept.of(name)
        rows = np.empty(1 << kept.shift, np.int32)
        piece = np.empty((len(rows), source.shape[1]), np.uint32)
        for chunk, first in enumerate(range(0, len(source), len(rows))):
            last = min(first + len(rows), len(source))
            count = gather_rows(
                marks, first, last, epoch=self._epoch, oldest=self._oldest, source=source, rows=rows, target=piece
            )
            with self._entered():
                count = settle_rows(
                    marks, self._epoch, rows, target=piece, count=count, kept_rows=kept.rows, kept=saved, nexts=kept.nexts, place=kept.heads[chunk],
                )  # fmt: skip
            numbers.append(rows[:count].copy().view(np.uint8).data)
            yield piece[:count].reshape(-1).view(np.uint8).data

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """While nobody keeps rows."""
        with self._lock:
            if self._is_cancelled:
                raise Cancelled
            yield

    def cancel(self) -> None:
        """Have whoever reads it come to an end. From any thread."""
        self._is_cancelled = True

    def close(self) -> None:
        """Steps need keep no rows any more; the memory of those that were is free."""
        with self._lock:
            kept, self._kept, self._by_table = self._kept, {}, {}
            self._is_closed = True
        del kept  # not while a step waits
        self._marks.ended(self)
