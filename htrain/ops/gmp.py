"""Lookups of workers that hold each other's tables, as they run (HET-GMP 5.3, htrain.strategies.gmp). A cache serves several tables of one width.

    slots, counts, keys, clocks, gradients (of each owner) = GmpAsk(cache, ids of each table, places of samples' rows)   on the trainer, a batch ahead
    GmpPush(owner, tables, counts, keys, clocks, gradients)                                      on the sparse PS beside another trainer
    rows, states, clocks, stale = GmpPull(owner, tables, counts, keys, clocks, gradients)
    rows of each table = GmpRead(cache, slots, ids of each table, the answer of each owner)      on the trainer
    GmpWrite(cache, slots, a gradient of each table's rows)                                      instead of an optimizer step

and in the flush net, at a pause or at the end,

    counts, keys, clocks, gradients (of each owner) = GmpFlush(cache)
    GmpFlushed(cache, the answer of each owner)

Where a model compares ids with a row's,

    same = IsRow(ids, number of a row by the partition)              `original` is what the model compares them with

`cache` and `owner` are parameters of kind `cache`: the store makes a `htrain.sync.gmp` worker or owner of them, which does the work; the attributes of GmpAsk
and GmpPush say which. With `barrier`, GmpPull waits until all workers have pushed (a staleness of 0).
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from htrain.net.net import Blob, Op, Tensor, numel
from htrain.ops.asked_rows import (
    REQUEST,
    answers_of,
    ask_signatures,
    flush,
    has_roots,
    infer_flush,
    infer_read,
    keys_of,
    moved,
    num_rows,
    number,
    pull_arrays,
    read_in_evaluation,
    request_of,
    request_tensors,
)
from htrain.ops.base import Cost, OpDef, Signature, elementwise_cost, infer_by_kernel, no_outputs
from htrain.ops.cache_rates import ShardRates
from htrain.ops.expectation import Counts, Expectation, rows_like

ANSWER = ("rows", "states", "row_clocks", "stale")
UNBOUNDED = -1  # an attribute staleness without a bound
_THOUSANDTHS = 1000  # numbers of rows in attributes are whole
SLOT_BYTES = 68  # a secondary's clocks, its key, and the index at its fullest


def texts(op: Op, name: str) -> tuple[str, ...]:
    """The lines of an attribute."""
    value = op.attrs[name]
    assert isinstance(value, str)
    return tuple(value.split("\n"))


def samples_of(ids: Sequence[torch.Tensor], places: Sequence[torch.Tensor], tables: Sequence[int]) -> np.ndarray:
    """int64[B,F]: the places, among the rows of all tables, of each sample's rows; -1 for none."""
    if not places:
        return np.empty((0, 0), np.int64)
    starts = np.cumsum([0, *(i.numel() for i in ids)])
    parts = [p.numpy().reshape(len(p), math.prod(p.shape[1:])) for p in places]
    return np.concatenate(
        [np.where(part >= 0, part + starts[t], -1) for part, t in zip(parts, tables, strict=True)], axis=1
    )


def _ask(
    cache: Any,
    *rest: torch.Tensor,
    num_tables: int,
    owners: tuple[int, ...],
    place_tables: tuple[int, ...],
    first_keys: tuple[int, ...],
    bounds: tuple[int, ...],
    servers: tuple[int, ...],
    first_rows: tuple[int, ...],
    sources: str,
    source_keys: tuple[int, ...],
    partition: str,
    width: int,
    staleness: int,
    intra: bool,
    inter: bool,
    deferred: bool,
    optimizer: str,
    lr: float,
    eps: float,
    asked: tuple[int, ...],
    replicated: tuple[int, ...],
    secondaries: int,
    beta: float = 0.0,
    l1: float = 0.0,
    l2: float = 0.0,
) -> tuple[torch.Tensor, ...]:
    """Shard i holds the keys from bounds[i] on as rows from first_rows[i] on of owner servers[i], the last of bounds is their number.

    owners[k] is the number of owner k among all workers. Table p of the partition's `sources`, a line each, has the keys from source_keys[p] on. A batch of a
    worker is expected to need asked[k] / 1000 rows of another owner, k, and to read replicated[k] / 1000 of these from its `secondaries`, the most that a
    worker has. The rest says what is held, and how rows step.
    """
    ids, places = rest[:num_tables], rest[num_tables:]
    slots, requests = cache.ask(keys_of(ids, first_keys, bounds[-1]), samples_of(ids, places, place_tables))
    return (torch.from_numpy(slots), *request_tensors(requests))


def _push(
    owner: Any,
    *rest: torch.Tensor,
    num_tables: int,
    partition: str,
    tables: str,
    sources: str,
    source_tables: tuple[int, ...],
    source_rows: tuple[int, ...],
    staleness: int,
    optimizer: str,
    lr: float,
    eps: float,
    beta: float = 0.0,
    l1: float = 0.0,
    l2: float = 0.0,
) -> None:
    """Table p of the partition's `sources` is, from row source_rows[p] on, in the model's table source_tables[p] of `tables`, a line each."""
    owner.push_arrays(*(tensor.numpy() for tensor in rest[-len(REQUEST) :]))


def _pull(owner: Any, *rest: torch.Tensor, num_tables: int, barrier: bool) -> tuple[torch.Tensor, ...]:
    return pull_arrays(owner, rest)


def _read(
    cache: Any, slots: torch.Tensor, *rest: torch.Tensor, num_tables: int, width: int
) -> tuple[torch.Tensor, ...]:
    ids = rest[:num_tables]
    rows = torch.from_numpy(cache.read_arrays(slots.numpy(), answers_of(rest[num_tables:], len(ANSWER))))
    return rows.split([i.numel() for i in ids])


def _write(cache: Any, slots: torch.Tensor, *gradients: torch.Tensor) -> None:
    whole = np.concatenate([gradient.numpy() for gradient in gradients])
    cache.write(slots.numpy(), whole)


def _flushed(cache: Any, *answers: torch.Tensor) -> None:
    cache.read_arrays(np.empty(0, np.int64), answers_of(answers, len(ANSWER)))


def _ask_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return ask_signatures(op, inputs[1 : 1 + number(op, "num_tables")])


def _pull_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    num_tables = number(op, "num_tables")
    held = inputs[1 : -len(REQUEST)]
    states = held[num_tables:]
    state = (states[0].shape[1] if len(states[0].shape) > 1 else 1) if states else 0
    rows = inputs[-3].shape[0]
    return [((rows, held[0].shape[1]), "float32"), ((rows, state), "float32"), ((rows,), "int32"), ((rows,), "int32")]


# What is done with a row, as so many keys found (Cost.keys): HET's figures for loops that are like these (htrain.ops.het); not fitted to runs of their own.
_ASKED, _PUSHED, _READ, _WRITTEN = 2.6, 1.5, 1.0, 1.5
_STEPPED, _ANSWERED, _ROOT = 2.0, 0.7, 0.2


def _ask_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """The batch's ids, the pairs of a sample's rows that are compared, and what leaves."""
    count = number(op, "num_tables")
    ids, places = inputs[1 : 1 + count], inputs[1 + count :]
    fields = sum(numel(b.shape, batch_size) for b in places) / batch_size
    leaves = _PUSHED * num_rows(outputs[len(REQUEST) :: len(REQUEST)], batch_size)
    keys = _ASKED * num_rows(ids, batch_size) + leaves
    return Cost(fields * fields * batch_size, moved((*ids, *places, *outputs), batch_size), keys)


def _read_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    return Cost(0.0, moved(outputs, batch_size), _READ * num_rows(outputs, batch_size))


def _write_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """A row of its own is stepped, another's gathers the gradient."""
    return Cost(0.0, 2 * moved(inputs[2:], batch_size), (_WRITTEN + _STEPPED / 2) * num_rows(inputs[1:2], batch_size))


def _push_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    gradients = inputs[-1]
    width = gradients.shape[1]
    assert isinstance(width, int)
    keys = _STEPPED + _ROOT * width * has_roots(op)
    return Cost(0.0, 2 * moved((gradients,), batch_size), keys * num_rows((gradients,), batch_size))


def _pull_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    return Cost(0.0, moved(outputs, batch_size), _ANSWERED * num_rows(inputs[-3:-2], batch_size))


def _flush_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """What has not left, at a pause: no part of a step."""
    return Cost(0.0, moved(outputs, batch_size))


def _worker_bytes(op: Op, inputs: Sequence[Blob], batch_size: int) -> float:
    """What is kept of each replica beside the row."""
    rows = inputs[0].shape[0]
    assert isinstance(rows, int)
    return float(rows * SLOT_BYTES)


# -- how many rows there will be -------------------------------------------------------------------------------------


def _expected_request(op: Op, counts: Counts, expectation: Expectation) -> Counts:
    """What a worker asks of each owner and is answered, as the partition predicts it, where no trace tells more: rows of others, and clocks of secondaries.

    All workers are taken to update a secondary as often as this one does: it comes anew when the others have done so more than s times, and deferred updates
    leave s together. What comes for the sake of other rows of a sample is not foreseen.
    """
    count = number(op, "num_tables")
    slots, *request = op.outputs
    sizes = {slots: sum(counts.get(name, 0.0) for name in op.inputs[1 : 1 + count])}
    alike = []
    others, staleness = len(_milli(op, "asked")) - 1, number(op, "staleness")
    bound = math.inf if staleness == UNBOUNDED else staleness
    together = max(1, bound) if op.attrs["deferred"] else 1
    is_checked = bool(op.attrs["intra"]) and bound < math.inf
    for asked, replicated in zip(_milli(op, "asked"), _milli(op, "replicated"), strict=True):
        fetched, checked = asked - replicated, replicated * is_checked
        pushed, stale = fetched + replicated / together, checked * min(1.0, others / (bound + 1))
        alike.append(ShardRates(fetched, pushed, checked, stale))
    for owner, shard in enumerate(expectation.rates.shards(op.inputs[0], alike)):
        _, keys, clocks, gradients = request[owner * len(REQUEST) : (owner + 1) * len(REQUEST)]
        answer = next(o.outputs for o in expectation.net.ops if o.type == "GmpPull" and keys in o.inputs)
        sizes |= {keys: shard.pushed + shard.fetched + shard.checked, clocks: shard.pushed + shard.checked}
        came = (shard.pushed, shard.fetched + shard.stale, shard.stale, shard.stale, shard.stale)
        sizes |= dict(zip((gradients, *answer), came, strict=True))
    return sizes


def _milli(op: Op, name: str) -> list[float]:
    values = op.attrs[name]
    assert isinstance(values, tuple)
    return [value / _THOUSANDTHS for value in values]


def milli(values: Iterable[float]) -> tuple[int, ...]:
    """Numbers of rows as attributes of GmpAsk have them."""
    return tuple(round(value * _THOUSANDTHS) for value in values)


def _expected_answer(op: Op, counts: Counts, expectation: Expectation) -> Counts:
    """The rows of GmpPull's outputs, which the rule of GmpAsk has found."""
    return {}


def _expected_read(op: Op, counts: Counts, expectation: Expectation) -> Counts:
    return rows_like(op.outputs, op.inputs[2:], counts)


def _is_row(ids: torch.Tensor, number: torch.Tensor, *, original: Tensor) -> torch.Tensor:
    return torch.eq(ids, number)


DEFINITIONS = (
    OpDef("IsRow", _is_row, infer_by_kernel, elementwise_cost, None),
    OpDef(
        "GmpAsk", _ask, _ask_infer, _ask_cost, None, many=True, effects=True, on_host=True, place="reader", phase="ask", work="gather",
        keeps=_worker_bytes, expected=_expected_request,
    ),
    OpDef("GmpFlush", flush, infer_flush, _flush_cost, None, many=True, effects=True, on_host=True, work="gather"),
    OpDef("GmpFlushed", _flushed, no_outputs, _flush_cost, None, effects=True, on_host=True, work="scatter"),
    OpDef(
        "GmpPush", _push, no_outputs, _push_cost, None, effects=True, on_host=True, phase="push", work="scatter", serves_cache=True,
    ),
    OpDef(
        "GmpPull", _pull, _pull_infer, _pull_cost, None, many=True, effects=True, on_host=True, work="gather", serves_cache=True, asked_by=request_of,
        expected=_expected_answer,
    ),
    OpDef(
        "GmpRead", _read, infer_read, _read_cost, None, many=True, effects=True, on_host=True, place="reader", phase="take", work="gather",
        expected=_expected_read, evaluated=read_in_evaluation,
    ),
    OpDef("GmpWrite", _write, no_outputs, _write_cost, None, effects=True, on_host=True, place="reader", work="scatter"),
)  # fmt: skip
