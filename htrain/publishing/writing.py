"""What a role writes of a version: its share of the model's parameters, while training goes on.

Dense weights are of one moment, at which no step is under way. A block of rows is copied, and its copy looked at and written: what is published is what the
fingerprint is of, whatever steps do to the rows meanwhile. So rows are of the seconds in which the version was written.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save

from htrain.errors import PublishError
from htrain.publishing.fingerprints import Fingerprints, fingerprints_of
from htrain.publishing.shares import Held
from htrain.publishing.storage import Storage
from htrain.publishing.versions import FOLDER, ROWS, Object, Part, digest_of, object_name

_BLOCK_BYTES = 1 << 23  # of rows that are copied at a time
_OBJECT_BYTES = 1 << 24  # of an object: a store that is slow to take one is given up
_PUTS = 4  # at a time, each of an object in memory


class _Rows:
    """A table's rows as they were published last, by their fingerprints. `owed` are rows that a version has which nobody may have read."""

    def __init__(self, num_rows: int) -> None:
        self.published: Fingerprints = np.zeros(num_rows, np.uint64)
        self.owed: NDArray[np.bool_] = np.ones(num_rows, np.bool_)

    def changed(self, first: int, rows: torch.Tensor) -> NDArray[np.bool_]:
        """Which of rows[n,D] from `first` on are not as they were when the base was written; they count as published now."""
        found = fingerprints_of(rows)
        here = slice(first, first + len(rows))
        self.owed[here] |= found != self.published[here]
        self.published[here] = found
        return self.owed[here].copy()


class _Puts:
    """Objects that are written a few at a time: no more of them are in memory. Its threads hold nobody up who wants to leave the process."""

    def __init__(self, at_once: int) -> None:
        self._room = threading.Semaphore(at_once)
        self._threads: list[threading.Thread] = []
        self._made: dict[int, Object] = {}
        self._error: BaseException | None = None

    def begin(self, write: Callable[[], Object]) -> None:
        """Write an object, once there is room. Raises what an earlier one has raised."""
        self._room.acquire()
        if self._error:
            raise self._error
        thread = threading.Thread(target=self._write, args=(len(self._threads), write), name="publishing", daemon=True)
        self._threads.append(thread)
        thread.start()

    def ended(self) -> list[Object]:
        """All objects, in the order in which they were begun. Raises what one of them has raised."""
        for thread in self._threads:
            thread.join()
        if self._error:
            raise self._error
        return [self._made[number] for number in range(len(self._threads))]

    def _write(self, number: int, write: Callable[[], Object]) -> None:
        try:
            self._made[number] = write()
        except BaseException as error:  # for whoever waits
            self._error = error
        finally:
            self._room.release()


class Writer:
    """Writes what a role has of each version. For one thread.

    `tensors` are the role's parameters, by name; `numbers` those of the rows of a table in the model, where they are no range.

    `_base` is the version that a delta is to be read on top of, `_written` the last that was written whole. A row is `owed` from when it is found changed
    until a version that has it is another's base: one that was never finished is made up for by the next.
    """

    def __init__(
        self,
        role: str,
        held: Sequence[Held],
        *,
        tensors: Mapping[str, torch.Tensor],
        numbers: Mapping[str, torch.Tensor],
    ) -> None:
        self._role = role
        self._held = held
        self._tensors = tensors
        self._numbers = numbers
        self._rows = {each.name: _Rows(len(tensors[each.name])) for each in held if each.kind == "table"}
        self._base = self._written = ""
        self._taken: dict[str, torch.Tensor] = {}

    def take(self) -> None:
        """Copy what is dense, to be written next: nothing is stepped while this is done, so that it is of one moment in all roles."""
        self._taken = {each.name: _copied(self._tensors[each.name]) for each in self._held if each.kind != "table"}

    def write(self, storage: Storage, version: str, base: str) -> list[Object]:
        """Write the role's share of a version: what changed since `base`, or all of it where that is "".

        Requires: `take`. Raises PublishError for what cannot be written, and for a base that is not what was written here last, where there are rows to tell
        apart by it: what is dense is written whole, also by a process that was begun again since.
        """
        if not self._held:
            return []
        if base and self._rows and base not in (self._base, self._written):
            raise PublishError(f"{self._role}: knows nothing of version {base}, which {version} is to be based on")
        if base and base == self._written and base != self._base:
            for rows in self._rows.values():
                rows.owed[:] = False
        self._base = base
        made = self._put(storage, version, is_full=not base)
        self._written = version
        return made

    def _put(self, storage: Storage, version: str, *, is_full: bool) -> list[Object]:
        """Write objects as they become full, a few at a time. Raises PublishError."""
        puts = _Puts(_PUTS)
        for number, (parts, tensors) in enumerate(self._packed(is_full=is_full)):
            name = object_name(self._role, number)
            puts.begin(partial(_written, storage, version, name, parts, tensors))
        return puts.ended()

    def _packed(self, *, is_full: bool) -> Iterator[tuple[tuple[Part, ...], dict[str, torch.Tensor]]]:
        """The parts and the tensors of one object after another."""
        parts: list[Part] = []
        tensors: dict[str, torch.Tensor] = {}
        num_bytes = 0
        for part, values, rows in self._parts(is_full=is_full):
            key = str(len(parts))
            tensors |= {key: values} | ({f"{key}{ROWS}": rows} if rows is not None else {})
            parts.append(part)
            num_bytes += sum(each.nbytes for each in (values, rows) if each is not None)
            if num_bytes >= _OBJECT_BYTES:
                yield tuple(parts), tensors
                parts, tensors, num_bytes = [], {}, 0
        if parts:
            yield tuple(parts), tensors

    def _parts(self, *, is_full: bool) -> Iterator[tuple[Part, torch.Tensor, torch.Tensor | None]]:
        """Each part, its values, and the numbers of its rows where they are listed."""
        for held in self._held:
            if held.kind != "table":
                values = self._taken[held.name]
                num_rows = len(values) if values.dim() else 1
                yield Part(held.whole, held.first_row, held.first_column, num_rows, listed=False), values, None
                continue
            tensor = self._tensors[held.name]
            row_bytes = max(1, tensor[:1].nbytes)
            at_once = max(1, _BLOCK_BYTES // row_bytes)
            for first in range(0, len(tensor), at_once):
                found = self._block(held, tensor, first, min(first + at_once, len(tensor)), is_full=is_full)
                if found:
                    yield found

    def _block(
        self, held: Held, tensor: torch.Tensor, first: int, end: int, *, is_full: bool
    ) -> tuple[Part, torch.Tensor, torch.Tensor | None] | None:
        """The rows of a block that are to be written; None where there are none."""
        block = _copied(tensor[first:end])
        changed = self._rows[held.name].changed(first, block)
        numbers = self._numbers.get(f"{held.name}{ROWS}")
        if not is_full and not changed.any():
            return None
        begin = held.first_row + first
        if (is_full or changed.all()) and numbers is None:
            return Part(held.whole, begin, held.first_column, end - first, listed=False), block, None
        here = torch.arange(end - first) if is_full else torch.from_numpy(np.flatnonzero(changed))
        rows = begin + here if numbers is None else numbers[first:end][here]
        part = Part(held.whole, 0, held.first_column, len(here), listed=True)
        return part, block[here].contiguous(), _short(rows)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """As it is now, in memory of its own, on the host."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _short(rows: torch.Tensor) -> torch.Tensor:
    """Numbers of rows, in half of the bytes where they fit."""
    return rows.to(torch.int32 if int(rows.max()) < 1 << 31 else torch.int64)


def _written(
    storage: Storage, version: str, name: str, parts: tuple[Part, ...], tensors: dict[str, torch.Tensor]
) -> Object:
    content = save(tensors)
    storage.put(f"{FOLDER}/{version}/{name}", content)
    return Object(name, len(content), digest_of(content), parts)
