"""Matrices over pairs of workers as heat maps on one scale: figures in the cells where workers are few, under the pointer where they are many."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SIZES = {"large": 8, "medium": 16, "small": 32, "tiny": 64}  # of cells, by how many lines they are for
_FIGURES = 16  # lines whose cells have figures
_MOST_HEADS = 32  # lines that have a name each
_MOST_LINES = 64  # beyond, workers that follow each other are taken together
_HEADS_APART = 8  # of more lines than have a name
_DARKEST = 0.6  # the figure of a cell stays readable
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Panel:
    """A matrix to be drawn: matrix[i,j] is what worker i has of worker j. `note` says in words what is seen."""

    title: str
    note: str
    matrix: Matrix


@dataclass(frozen=True)
class Head:
    """A line and the column of the same workers: `name` says who they are, `text` is what stands there. Where `is_further`, a further host
    begins."""

    name: str
    text: str
    is_further: bool


@dataclass(frozen=True)
class Host:
    """The workers of a host stand together in so many lines."""

    name: str
    span: int
    text: str


@dataclass(frozen=True)
class Cell:
    """What stands in a cell, and what under the pointer; `shade` is how dark it is, 0 to 1. That of a worker itself is `own`, and not shaded."""

    text: str
    tip: str
    shade: float
    own: bool


@dataclass(frozen=True)
class Heat:
    """A panel as cells, a line for each head; `of_others` is what a worker has of all others, in the mean over workers."""

    title: str
    note: str
    of_others: float
    lines: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Heats:
    """Heat maps of the same workers, in which cells of one shade have the same amount: `most` in the darkest. `size` is the class of their cells; where a line
    stands for several workers, there are `together` of them, and a cell has the mean over their pairs."""

    heads: tuple[Head, ...]
    hosts: tuple[Host, ...]
    panels: tuple[Heat, ...]
    most: float
    size: str
    together: int
    has_figures: bool


def heats(panels: Sequence[Panel], hosts: Sequence[int]) -> Heats:
    """The panels on one scale; hosts[g] workers, in order of their numbers, stand on host g.

    Requires: there is a panel, and all are of the same workers.
    """
    num_workers = len(panels[0].matrix)
    together = -(-num_workers // _MOST_LINES)
    firsts = np.arange(0, num_workers, together)
    means = [_means(panel.matrix, firsts) for panel in panels]
    most = max(float(np.nanmax(mean, initial=0.0)) for mean in means)
    size = next(name for name, workers in _SIZES.items() if len(firsts) <= workers)
    heads = _heads(firsts, together, num_workers, begins=np.cumsum(hosts)[:-1].tolist())
    drawn = tuple(
        Heat(panel.title, panel.note, _of_others(panel.matrix), _cells(panel, mean, heads, most))
        for panel, mean in zip(panels, means, strict=True)
    )
    return Heats(
        heads,
        _hosts(hosts, size) if together == 1 else (),
        drawn,
        most=most,
        size=size,
        together=together,
        has_figures=num_workers <= _FIGURES,
    )


def _of_others(matrix: Matrix) -> float:
    return float(matrix.sum() - np.trace(matrix)) / len(matrix)


def _means(matrix: Matrix, firsts: NDArray[np.int64]) -> Matrix:
    """The mean over the pairs of different workers in each cell; nan where there is none."""
    apart = 1.0 - np.eye(len(matrix))
    sums, pairs = (
        np.add.reduceat(np.add.reduceat(each, firsts, axis=0), firsts, axis=1) for each in (matrix * apart, apart)
    )
    return np.divide(sums, pairs, out=np.full(sums.shape, np.nan), where=pairs > 0)


def _heads(firsts: NDArray[np.int64], together: int, num_workers: int, *, begins: Sequence[int]) -> tuple[Head, ...]:
    """`begins` are the first workers of further hosts."""
    every = 1 if len(firsts) <= _MOST_HEADS else _HEADS_APART
    heads = []
    for line, first in enumerate(firsts.tolist()):
        last = min(first + together, num_workers) - 1
        name = f"worker {first}" if first == last else f"workers {first}-{last}"
        is_further = any(first <= begin <= last for begin in begins) and line > 0
        heads.append(Head(name, str(first) if line % every == 0 else "", is_further))
    return tuple(heads)


def _cells(panel: Panel, means: Matrix, heads: Sequence[Head], most: float) -> tuple[tuple[Cell, ...], ...]:
    """`most` of the darkest cell."""
    has_figures = len(panel.matrix) <= _FIGURES
    shade = (_DARKEST if has_figures else 1.0) / most if most else 0.0
    return tuple(
        tuple(
            _cell(mean, line, column, shade=shade, has_figures=has_figures)
            for mean, column in zip(row, heads, strict=True)
        )
        for row, line in zip(means.tolist(), heads, strict=True)
    )


def _cell(mean: float, line: Head, column: Head, *, shade: float, has_figures: bool) -> Cell:
    """`shade` of an amount of 1."""
    if math.isnan(mean):
        return Cell("own" if has_figures else "", f"{line.name}: its own", 0.0, own=True)
    text = _figure(mean) if has_figures else ""
    return Cell(text, f"{line.name} of {column.name}: {mean:,.2f}", max(0.0, shade * mean), own=False)


def _figure(value: float) -> str:
    return f"{value:,.1f}" if value < 99.95 else f"{value:,.0f}"


def _hosts(hosts: Sequence[int], size: str) -> tuple[Host, ...]:
    """Where there are several; those of few lines have no room for a name."""
    least = {"large": 1, "medium": 1, "small": 3, "tiny": 5}[size]
    if len(hosts) < 2:
        return ()
    return tuple(
        Host(f"host {number}", span, f"host {number}" if span >= least else "") for number, span in enumerate(hosts)
    )
