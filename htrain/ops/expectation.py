"""How many rows a batch is to be expected to have, where a net says only how many there can be.

Blobs of distinct ids, and of their rows and gradients, have a bounded first dimension (`BatchDim.bound`). For costs it counts how many rows
there will be. A rule of an op makes these counts for its outputs from those of its inputs; `htrain.costs.expected` runs the rules over a train net.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from htrain.net.net import BatchDim, Net, Op
from htrain.ops.cache_rates import NO_RATES, Rates

Counts = Mapping[str, float]  # the rows to expect of a blob, by its name


@dataclass(frozen=True)
class Expectation:
    """What rules may look at besides counts: the train net; by which ids its `tables`, or shards of them, are read; and shares in [0, 1]. At most
    `distinct` of a batch's ids are distinct, and a cache holds `hits` of the rows that it is asked for. Where a cache is among `rates`, what was
    counted takes the place of both."""

    net: Net
    tables: Mapping[str, str]
    batch_size: int
    distinct: float
    hits: float
    rates: Rates = NO_RATES


ExpectedRule = Callable[[Op, Counts, Expectation], Counts]


def most_rows(op: Op, counts: Counts, expectation: Expectation) -> Counts:
    """Bounded outputs have as many rows as the largest counted input."""
    known = _known(op, counts)
    return dict.fromkeys(_bounded(op, expectation.net), max(known)) if known else {}


def all_rows(op: Op, counts: Counts, expectation: Expectation) -> Counts:
    """Bounded outputs have the rows of all counted inputs together."""
    known = _known(op, counts)
    return dict.fromkeys(_bounded(op, expectation.net), sum(known)) if known else {}


def rows_like(outputs: Iterable[str], inputs: Iterable[str], counts: Counts) -> Counts:
    """Each output has as many rows as the input at its place, where these are counted; the shorter of the two ends the pairs."""
    return {output: counts[name] for output, name in zip(outputs, inputs, strict=False) if name in counts}


def _known(op: Op, counts: Counts) -> list[float]:
    return [counts[name] for name in op.inputs if name in counts]


def _bounded(op: Op, net: Net) -> list[str]:
    firsts = {name: (net.blobs[name].shape or (0,))[0] for name in op.outputs}
    return [name for name, first in firsts.items() if isinstance(first, BatchDim) and first.bound]
