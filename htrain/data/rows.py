"""Parsed rows: arrays with one entry per example, lists of any length among them; cut and joined into batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Rows:
    """`fixed[name][i]` belongs to example i. `lists[name]` is (values, starts[n+1]): example i owns values[starts[i]:starts[i+1]].

    Where the data says when an example was, times[i] does, int64[n], in microseconds since the epoch; no model gets it.
    """

    count: int
    fixed: dict[str, Array]
    lists: dict[str, tuple[Array, Array]]
    times: Array | None = None

    def cut(self, start: int, end: int) -> "Rows":
        """Examples start to end - 1, as views."""
        fixed = {name: values[start:end] for name, values in self.fixed.items()}
        return Rows(
            end - start,
            fixed,
            {name: _cut(values, starts, start, end) for name, (values, starts) in self.lists.items()},
            None if self.times is None else self.times[start:end],
        )

    def take(self, places: Array) -> "Rows":
        """Examples places[n], in that order, in memory of their own."""
        fixed = {name: values[places] for name, values in self.fixed.items()}
        lists = {name: _taken(*each, places) for name, each in self.lists.items()}
        return Rows(len(places), fixed, lists, None if self.times is None else self.times[places])

    @property
    def num_bytes(self) -> int:
        """What the arrays take."""
        arrays = [*self.fixed.values(), *(array for each in self.lists.values() for array in each)]
        return sum(array.nbytes for array in arrays) + (0 if self.times is None else self.times.nbytes)

    def columns(self) -> dict[str, Array]:
        """The arrays of a batch: a list becomes `name` and `name_offsets`, the start of each example's part."""
        columns = dict(self.fixed)
        for name, (values, starts) in self.lists.items():
            columns[name] = values
            columns[name + "_offsets"] = starts[:-1].copy()
        return {name: np.ascontiguousarray(values) for name, values in columns.items()}


def _cut(values: Array, starts: Array, start: int, end: int) -> tuple[Array, Array]:
    return values[starts[start] : starts[end]], starts[start : end + 1] - starts[start]


def _taken(values: Array, starts: Array, places: Array) -> tuple[Array, Array]:
    counts = np.diff(starts)[places]
    new = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return values[np.repeat(starts[places] - new[:-1], counts) + np.arange(new[-1])], new


def joined(parts: Sequence[Rows]) -> Rows:
    """The examples of all parts, one part after another."""
    if len(parts) == 1:
        return parts[0]
    fixed = {name: np.concatenate([p.fixed[name] for p in parts]) for name in parts[0].fixed}
    lists = {}
    for name in parts[0].lists:
        values = np.concatenate([p.lists[name][0] for p in parts])
        counts = np.concatenate([np.diff(p.lists[name][1]) for p in parts])
        lists[name] = (values, np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))
    times = [p.times for p in parts if p.times is not None]
    return Rows(sum(p.count for p in parts), fixed, lists, np.concatenate(times) if times else None)
