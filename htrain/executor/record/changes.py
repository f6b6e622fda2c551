"""Which rows of tensors are not as in a file that was written before: as the steps that change them tell, or found by looking, where some step does not."""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.executor.engine.marks import Snapshot
from htrain.executor.record.checkpoint import Base
from htrain.executor.record.tensor_file import CHANGED, Streamed, TensorFile, Values, file_of, places_in
from htrain.jit import njit

_LEAST_BYTES = 1 << 16  # of a tensor whose rows are looked at: a smaller one is written whole
_AT_ONCE = 1 << 22  # bytes
_WORDS = (np.uint64, np.uint32, np.uint16, np.uint8)
_Words = NDArray[Any]


def changed_since(
    path: Path, base: Base, values: Mapping[str, Values], done_with: Callable[[memoryview], None]
) -> TensorFile | None:
    """A file that says how `values` differ from those in the file `base`, at `path`: of what is large, the rows that do, and their numbers.

    None where that file is not there, is another, or is of other tensors. Requires: `warm_up`, where a process that was forked beside threads calls this.
    `done_with` hears of bytes of `values` that are not looked at again, from when None is out of the question. Raises OSError for what cannot be read then.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_size != base.num_bytes:
            return None
        try:
            places = places_in(descriptor)
        except (OSError, ValueError, KeyError):
            return None
        if {name: (each.dtype, each.shape) for name, each in values.items()} != {
            name: place[:2] for name, place in places.items()
        }:
            return None
        found: dict[str, Values] = {}
        for name, each in values.items():
            if each.shape and _is_large(each.shape[0], each.num_bytes):
                found |= _changed_rows(name, each, descriptor, places[name][2], done_with)
            else:
                found[name] = each
        return file_of(found)
    finally:
        os.close(descriptor)


def marked(snapshot: Snapshot) -> dict[str, Values]:
    """The tensors of a snapshot, whole, or the rows that have changed and their numbers; to be written while steps go on."""
    found: dict[str, Values] = {}
    for name, tensor in snapshot.tensors.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        if snapshot.is_whole:
            found[name] = Values(kind, tuple(tensor.shape), [Streamed(tensor.nbytes, partial(snapshot.whole, name))])
        else:
            found |= _marked_rows(name, tensor, kind, snapshot)
    return found


def _marked_rows(name: str, tensor: torch.Tensor, kind: str, snapshot: Snapshot) -> dict[str, Values]:
    numbers: list[memoryview] = []  # there once the rows have been written: a file has them behind
    count = snapshot.num_rows(name)
    rows = Streamed(count * (tensor.nbytes // len(tensor)), partial(snapshot.changed, name, numbers))
    return {
        name: Values(kind, (count, *tensor.shape[1:]), [rows]),
        f"{name}{CHANGED}": Values("int32", (count,), [Streamed(count * 4, lambda: numbers)]),
    }


def warm_up(tensors: Iterable[torch.Tensor]) -> None:
    """Compile what looks for rows of these, where it is not yet: a process that is forked beside threads cannot."""
    for each in tensors:
        if each.dim() and _is_large(len(each), each.nbytes):
            row_bytes = each.nbytes // len(each)
            word = _word(row_bytes, each.data_ptr() if each.device.type == "cpu" else 0)
            nothing = np.zeros(row_bytes, np.uint8)
            _look(nothing, nothing.copy(), 0, *_buffers(row_bytes, word, 1))


def _is_large(num_rows: int, num_bytes: int) -> bool:
    return num_rows > 1 and num_bytes >= _LEAST_BYTES


def _word(row_bytes: int, address: int) -> type[np.generic]:
    """The largest of which rows are made that begin at this address: loops are compiled for words that lie where words do."""
    return next(kind for kind in _WORDS if (row_bytes | address) % np.dtype(kind).itemsize == 0)


def _buffers(row_bytes: int, word: type[np.generic], num_rows: int) -> tuple[NDArray[np.int64], _Words]:
    return np.empty(num_rows, np.int64), np.empty((num_rows, row_bytes // np.dtype(word).itemsize), word)


def _look(now: NDArray[np.uint8], then: NDArray[np.uint8], first: int, rows: NDArray[np.int64], kept: _Words) -> int:
    shape = -1, kept.shape[1]
    return int(
        _keep_changed(now.view(kept.dtype).reshape(shape), then.view(kept.dtype).reshape(shape), first, rows, kept)
    )


def _changed_rows(
    name: str, values: Values, descriptor: int, place: int, done_with: Callable[[memoryview], None]
) -> dict[str, Values]:
    """The rows of one tensor that are not as in the file, from `place` on, and their numbers."""
    (part,), row_bytes = values.parts, values.num_bytes // values.shape[0]
    assert isinstance(part, memoryview)
    at_once = max(1, _AT_ONCE // row_bytes)
    address = np.frombuffer(part, np.uint8).__array_interface__["data"][0]
    rows, kept = _buffers(row_bytes, _word(row_bytes, address), at_once)
    then = np.empty(at_once * row_bytes, np.uint8)
    numbers = np.int32 if values.shape[0] < 2**31 else np.int64
    found_rows: list[memoryview] = []
    found: list[memoryview] = []
    count = 0
    for first in range(0, values.shape[0], at_once):
        begin = first * row_bytes
        now = part[begin : begin + at_once * row_bytes]
        _read(descriptor, then[: len(now)], place + begin)
        num = _look(np.frombuffer(now, np.uint8), then[: len(now)], first, rows, kept)
        if num:
            found_rows.append(rows[:num].astype(numbers).view(np.uint8).data)
            found.append(kept[:num].copy().reshape(-1).view(np.uint8).data)
            count += num
        done_with(now)
    return {
        name: Values(values.dtype, (count, *values.shape[1:]), found),
        f"{name}{CHANGED}": Values(np.dtype(numbers).name, (count,), found_rows),
    }


def _read(descriptor: int, into: NDArray[np.uint8], place: int) -> None:
    filled = 0
    while filled < len(into):
        num = os.preadv(descriptor, [into[filled:].data], place + filled)
        if not num:
            raise OSError(0, "ends before its time")
        filled += num


@njit(nogil=True, cache=True)
def _keep_changed(now, then, first, rows, kept):  # type: ignore[no-untyped-def]
    """rows[k] and kept[k,W] of those of now[n,W], of numbers from `first` on, that are not as then[n,W]; k."""
    count = 0
    for row in range(now.shape[0]):
        is_as_then = True
        for column in range(now.shape[1]):
            is_as_then &= now[row, column] == then[row, column]
        if not is_as_then:
            rows[count] = first + row
            for column in range(now.shape[1]):
                kept[count, column] = now[row, column]
            count += 1
    return count
