"""How well examples are ranked within their groups, such as the impressions of a user or the candidates of a request: GAUC, NDCG, recall and MRR.

Where scores tie, each measure is its mean over all orders of those that tie, as `htrain.data.evaluation.auc` counts such pairs half.
"""

# mypy: disable-error-code=assignment
# Numba infers the types of its functions; their numpy scalars are not mypy's ints.

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from htrain.data.rows import Array
from htrain.data.schema import Input, Schema
from htrain.errors import UsageError
from htrain.jit import njit

_USUAL = "(i8[::1], f4[::1], b1[::1], f8[::1])"


@dataclass(frozen=True)
class Grouping:
    """Examples that are ranked against each other: those with the same value of the data's `column`, in lists of which the first `top` count."""

    column: str
    top: int = 10


@dataclass(frozen=True)
class Ranking:
    """Means over the `groups` that have examples of both labels: others are ranked alike by every model. These have so many of the `examples`, and are of
    `all_groups`, those with the same value of the column `group_by`.

    `gauc` weights the AUC of each group by its examples (Zhou et al. 2018, DIN, 6.2). `ndcg` and `recall` are of the first `top` of each group: gains of 1
    discounted by log2(1 + place) over those of the best order, and the share of its positives. `mrr` is one over the place of the first positive. All are nan
    where there is no such group, or a score is nan.
    """

    groups: int
    top: int
    gauc: float
    ndcg: float
    recall: float
    mrr: float
    group_by: str = ""
    all_groups: int = 0
    examples: int = 0


NOT_RANKED = Ranking(0, 0, *(math.nan,) * 4)


def ranking(group: NDArray[Any], scores: Array, labels: Array, grouping: Grouping) -> Ranking:
    """The ranking of scores[n] for labels[n] in {0, 1} within the groups of group[n], any values that can be ordered."""
    found, numbers = np.unique(group, return_inverse=True)
    top = grouping.top
    none = replace(NOT_RANKED, top=top, group_by=grouping.column, all_groups=found.size)
    if scores.size == 0 or np.isnan(scores).any():
        return none
    order = np.lexsort((-scores, numbers))
    ordered = np.ascontiguousarray(numbers[order])
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1], [True]]))
    places = np.arange(min(top, scores.size), dtype=np.float64)
    discounts = np.concatenate([[0.0], np.cumsum(1 / np.log2(places + 2))])
    count, examples, *sums = _sums(starts, np.float32(scores[order]), labels[order] > 0.5, discounts)
    area, *others = (float(each) for each in sums)
    if not count:
        return none
    ndcg, recall, mrr = (each / int(count) for each in others)
    gauc = area / float(examples)
    return replace(none, groups=int(count), examples=int(examples), gauc=gauc, ndcg=ndcg, recall=recall, mrr=mrr)


@njit(nogil=True, cache=True, usual=_USUAL)
def _sums(
    starts: NDArray[np.int64], scores: Array, positive: NDArray[np.bool_], discounts: NDArray[np.float64]
) -> tuple[int, int, float, float, float, float]:
    """Of groups, the examples starts[g] to starts[g + 1] - 1 with the best score first: how many have both labels, how many examples these have, and the sums
    of AUC times examples, NDCG, recall and reciprocal ranks. `discounts[k]` is the sum of the first k, up to those that count.
    """
    top = discounts.size - 1
    count, examples, areas, gains, recalled, reciprocal = 0, 0, 0.0, 0.0, 0.0, 0.0
    for group in range(starts.size - 1):
        begin, end = starts[group], starts[group + 1]
        positives = 0
        for n in range(begin, end):
            positives += positive[n]
        negatives = end - begin - positives
        if positives == 0 or negatives == 0:
            continue
        ordered, gain, hits, first = 0.0, 0.0, 0.0, 0.0
        below, place = negatives, begin
        while place < end:  # a run of ties
            behind, found = place, 0
            while behind < end and scores[behind] == scores[place]:
                found += positive[behind]
                behind += 1
            size, rank = behind - place, place - begin
            below -= size - found
            ordered += found * below + 0.5 * found * (size - found)
            low, high = min(rank, top), min(rank + size, top)
            gain += (discounts[high] - discounts[low]) * found / size
            hits += (high - low) * found / size
            if first == 0.0 and found > 0:
                first = _reciprocal(rank, size, found)
            place = behind
        count += 1
        examples += end - begin
        areas += ordered / positives / negatives * (end - begin)
        gains += gain / discounts[min(positives, top)]
        recalled += hits / positives
        reciprocal += first
    return count, examples, areas, gains, recalled, reciprocal


@njit(nogil=True, cache=True, usual="(i8, i8, i8)")
def _reciprocal(rank: int, size: int, found: int) -> float:
    """The mean of 1 / (place of the first positive), where `rank` examples stand before `size` that tie, of which `found` are positive."""
    total, chance = 0.0, found / size  # that the first of those that tie is positive; then the second alone, and so on
    for n in range(size - found + 1):
        total += chance / (rank + n + 1)
        if n < size - found:
            chance *= (size - n - found) / (size - n - 1)
    return total


def group_of(schema: Schema, name: str, columns: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """The groups of a batch's `columns`; see `require_column`."""
    item, column = _columns(schema)[name][0]
    values = columns[item.name]
    return values if values.ndim == 1 else values[:, column]


def require_column(schema: Schema, name: str, *, what: str) -> None:
    """Raises UsageError, in the name of `what`, where `name` is no column of one value for each example: an input of width 1, one of an input's columns as
    `input.column`, or by its own name, where no other is called so."""
    found = _columns(schema)
    if len(meant := found.get(name, ())) > 1:
        raise UsageError(
            f"{what}: '{name}' is in several inputs: say {' or '.join(_names(*column)[0] for column in meant)}"
        )
    if not meant:
        columns = (column for each in found.values() for column in each)
        known = ", ".join(dict.fromkeys(_shown(*column) for column in columns)) or "none"
        raise UsageError(f"{what}: '{name}' is no column of one value for each example; the data has {known}")


def _shown(item: Input, place: int) -> str:
    return item.name if item.width == 1 else _names(item, place)[0]


def _columns(schema: Schema) -> dict[str, list[tuple[Input, int]]]:
    """The columns of one value for each example that each name may mean: their inputs, and their places among those'."""
    found: dict[str, list[tuple[Input, int]]] = {}
    for item in schema.inputs:
        for place in range(item.width if item.kind in ("dense", "ids") else 0):
            for name in dict.fromkeys(_names(item, place)):
                found.setdefault(name, []).append((item, place))
    return found


def _names(item: Input, place: int) -> tuple[str, ...]:
    """The names of a column, the full one first: that of its input and its own; its own; and that of its input, where this has no other."""
    own = item.columns[place : place + 1] if len(item.columns) == item.width else ()
    whole = (item.name,) if item.width == 1 else ()
    return (*(f"{item.name}.{column}" for column in own), *own, *whole) or (f"{item.name}[{place}]",)
