"""Lookups through a HET cache, as they run (HET 3, htrain.strategies.het). A cache serves several tables of one width.

    HetAnnounce(cache, ids of each table)                                                          on the trainer, a window ahead
    slots, counts, keys, clocks, gradients (of each server) = HetAsk(cache, ids of each table)     on the trainer, a batch ahead
    HetPush(server, tables, counts, keys, clocks, gradients)                                       on a sparse PS: what was evicted
    rows, clocks, stale = HetPull(server, tables, counts, keys, clocks)                            what was fetched, or found stale
    rows of each table = HetRead(cache, slots, ids of each table, the answer of each server)       on the trainer
    HetWrite(cache, slots, a gradient of each table's rows)                                        instead of an optimizer step

and in the flush net, at a pause or at the end,

    counts, keys, clocks, gradients (of each server) = HetFlush(cache)
    HetFlushed(cache, the answer of each server)

`cache` and `server` are parameters of kind `cache`: the store makes a `htrain.sync.het` client or server of them, which does the work; the
attributes of HetAsk and HetPush say which. With `barrier`, HetPull waits until all workers have pushed (a staleness of 0).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from htrain.net.net import Blob, Op
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
    row_width,
)
from htrain.ops.base import Cost, OpDef, Signature, no_outputs
from htrain.ops.cache_rates import ShardRates
from htrain.ops.expectation import Counts, Expectation, rows_like

ANSWER = ("rows", "clocks", "stale")
UNBOUNDED = -1  # an attribute staleness without a bound
# Of a client, measured by `python tools/bench/role_memory.py`:
SLOT_BYTES = 120  # for a row beside its values: clocks, keys, lists of the policy, and the index at its fullest
SPARE_SLOTS = 1024  # rows that it has room for beyond its capacity


def _announce(cache: Any, *ids: torch.Tensor, first_keys: tuple[int, ...]) -> None:
    cache.announce(keys_of(ids, first_keys))


def _ask(
    cache: Any,
    *ids: torch.Tensor,
    first_keys: tuple[int, ...],
    bounds: tuple[int, ...],
    servers: tuple[int, ...],
    first_rows: tuple[int, ...],
    width: int,
    capacity: int,
    staleness: int,
    policy: str,
    optimizer: str,
    lr: float,
    eps: float,
    beta: float = 0.0,
    l1: float = 0.0,
    l2: float = 0.0,
) -> tuple[torch.Tensor, ...]:
    """Shard i holds the keys from bounds[i] on as rows from first_rows[i] on of server
    servers[i], the last of bounds is their number; the rest says what the cache is."""
    slots, requests = cache.ask(keys_of(ids, first_keys, bounds[-1]))
    return (torch.from_numpy(slots), *request_tensors(requests))


def _push(
    server: Any,
    *rest: torch.Tensor,
    num_tables: int,
    staleness: int,
    optimizer: str,
    lr: float,
    eps: float,
    beta: float = 0.0,
    l1: float = 0.0,
    l2: float = 0.0,
) -> None:
    server.push_arrays(*(tensor.numpy() for tensor in rest[-len(REQUEST) :]))


def _pull(server: Any, *rest: torch.Tensor, num_tables: int, barrier: bool) -> tuple[torch.Tensor, ...]:
    return pull_arrays(server, rest)


def _read(
    cache: Any, slots: torch.Tensor, *rest: torch.Tensor, num_tables: int, width: int
) -> tuple[torch.Tensor, ...]:
    ids = rest[:num_tables]
    rows = torch.from_numpy(cache.read_arrays(slots.numpy(), answers_of(rest[num_tables:], len(ANSWER))))
    return rows.split([i.numel() for i in ids])


def _write(cache: Any, slots: torch.Tensor, *gradients: torch.Tensor) -> None:
    at = 0
    for gradient in gradients:
        cache.write(slots[at : at + len(gradient)].numpy(), gradient.contiguous().numpy())
        at += len(gradient)
    cache.trim()


def _flushed(cache: Any, *answers: torch.Tensor) -> None:
    cache.read_arrays(np.empty(0, np.int64), answers_of(answers, len(ANSWER)))


def _ask_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return ask_signatures(op, inputs[1:])


def _pull_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    num_tables = number(op, "num_tables")
    held = inputs[1 : -len(REQUEST)]
    widths = [b.shape[1] if len(b.shape) > 1 else 1 for b in (held[0], *held[num_tables : num_tables + 1])]
    rows = inputs[-3].shape[0]
    width = sum(w for w in widths if isinstance(w, int))
    return [((rows, width), "float32"), ((rows,), "int32"), ((rows,), "int32")]


# What is done with a row, as so many keys found (Cost.keys): fitted to what `python tools/bench/het_parts.py` prints.
_ASKED, _EVICTED = 2.6, 3.2  # a row that is asked for, and one that makes room for another
_ASKED_ANEW, _EMPTIED = 1.5, 1.7  # with a staleness of 0: the cache is empty before a batch, and afterwards
_FOUND, _FETCHED, _WRITTEN = 2.0, 0.4, 1.8  # a row that was in the cache is read with updates of its own
_STEPPED, _SUMMED, _ANSWERED = (
    2.2,
    2.0,
    0.7,
)  # on a server: updates alone, or summed with those of others; what is fetched or checked
_ROOT = 0.2  # of a number that Adagrad, or FTRL, steps by a square root of its own


def _announce_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    return Cost(0.0, moved(inputs[1:], batch_size), num_rows(inputs[1:], batch_size))


def _ask_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """The batch's ids, and what leaves the cache for them, or since nothing may stay; gradients that leave are copied twice."""
    gradients = outputs[len(REQUEST) :: len(REQUEST)]
    asked, leaves = (_ASKED, _EVICTED) if op.attrs["staleness"] else (_ASKED_ANEW, _EMPTIED)
    keys = asked * num_rows(inputs[1:], batch_size) + leaves * num_rows(gradients, batch_size)
    return Cost(0.0, moved((*inputs[1:], *outputs, *gradients), batch_size), keys)


def _read_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """The batch's rows: those that servers have answered, and those that were here, which are stepped by what they have accumulated."""
    num_tables, width = number(op, "num_tables"), number(op, "width")
    answers = inputs[2 + num_tables :: len(ANSWER)]
    fetched = num_rows(answers, batch_size)
    found = max(0.0, num_rows(inputs[1:2], batch_size) - fetched)
    keys = (_FOUND + _ROOT * _roots(inputs[0], width)) * found + _FETCHED * fetched
    return Cost(0.0, moved((*answers, *outputs), batch_size), keys)


def _roots(cache: Blob, width: int) -> int:
    """Numbers of a row that have a state of their own, as the width of what a cache keeps tells."""
    return width if _width(cache) >= row_width(width, "adagrad") else 0


def _write_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    return Cost(0.0, moved(inputs[1:], batch_size), _WRITTEN * num_rows(inputs[1:2], batch_size))


def _push_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """Gradients are read, and rows and states stepped; what is to be summed first is kept for the pull."""
    gradients = inputs[-1]
    if op.attrs["staleness"] == 0:
        return Cost(0.0, 0.0)
    keys = _STEPPED + _ROOT * _width(gradients) * has_roots(op)
    return Cost(0.0, 2 * moved((gradients,), batch_size), keys * num_rows((gradients,), batch_size))


def _pull_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """Rows and clocks of what is fetched or checked; behind a barrier, the step of what all have pushed besides."""
    keys, gradients = inputs[-3], inputs[-1]
    pushed = num_rows((gradients,), batch_size)
    answered = _ANSWERED * (num_rows((keys,), batch_size) - pushed)
    if not op.attrs["barrier"]:
        return Cost(0.0, moved(outputs, batch_size), answered)
    stepped = _SUMMED + _ROOT * _width(gradients) * (_width(outputs[0]) >= 2 * _width(gradients))
    return Cost(0.0, moved((*outputs, gradients), batch_size), answered + stepped * pushed)


def _width(rows: Blob) -> int:
    width = rows.shape[1]
    assert isinstance(width, int)
    return width


def _flush_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """As many rows as a whole cache has, at a pause: no part of a step."""
    return Cost(0.0, moved(outputs, batch_size))


def _client_bytes(op: Op, inputs: Sequence[Blob], batch_size: int) -> float:
    """The client's slots: what it keeps of each beside the row, and those that it has to spare."""
    rows, width = inputs[0].shape
    assert isinstance(rows, int)
    assert isinstance(width, int)
    return float((rows + SPARE_SLOTS) * SLOT_BYTES + SPARE_SLOTS * 4 * width)


# -- how many rows there will be -------------------------------------------------------------------------------------


def _expected_request(op: Op, counts: Counts, expectation: Expectation) -> Counts:
    """What a cache asks of each server, and is answered: rows fetched and evicted, and clocks of the others."""
    asked = sum(counts.get(name, 0.0) for name in op.inputs[1:])
    slots, *request = op.outputs
    servers = len(request) // len(REQUEST)
    missed, found = asked * (1 - expectation.hits) / servers, asked * expectation.hits / servers
    alike = [ShardRates(fetched=missed, pushed=missed, checked=found)] * servers
    sizes = {slots: asked}
    for server, shard in enumerate(expectation.rates.shards(op.inputs[0], alike)):
        _, keys, clocks, gradients = request[server * len(REQUEST) : (server + 1) * len(REQUEST)]
        answer = next(o.outputs for o in expectation.net.ops if o.type == "HetPull" and keys in o.inputs)
        sizes |= {keys: shard.pushed + shard.fetched + shard.checked, clocks: shard.pushed + shard.checked}
        sizes |= dict(zip((gradients, *answer), _travelling(shard), strict=True))
    return sizes


def _travelling(shard: ShardRates) -> tuple[float, float, float, float]:
    """Gradients that go to a server; rows, clocks and places of stale rows that come back."""
    back = shard.fetched + shard.stale
    return shard.pushed, back, back, shard.stale


def _expected_answer(op: Op, counts: Counts, expectation: Expectation) -> Counts:
    """The rows of HetPull's outputs, which the rule of HetAsk has found."""
    return {}


def _expected_read(op: Op, counts: Counts, expectation: Expectation) -> Counts:
    return rows_like(op.outputs, op.inputs[2:], counts)


DEFINITIONS = (
    OpDef(
        "HetAnnounce",
        _announce,
        no_outputs,
        _announce_cost,
        None,
        effects=True,
        on_host=True,
        place="reader",
        phase="announce",
        work="gather",
    ),
    OpDef(
        "HetAsk",
        _ask,
        _ask_infer,
        _ask_cost,
        None,
        many=True,
        effects=True,
        on_host=True,
        place="reader",
        phase="ask",
        work="gather",
        keeps=_client_bytes,
        expected=_expected_request,
    ),
    OpDef("HetFlush", flush, infer_flush, _flush_cost, None, many=True, effects=True, on_host=True, work="gather"),
    OpDef("HetFlushed", _flushed, no_outputs, _flush_cost, None, effects=True, on_host=True, work="scatter"),
    OpDef(
        "HetPush",
        _push,
        no_outputs,
        _push_cost,
        None,
        effects=True,
        on_host=True,
        phase="push",
        work="scatter",
        serves_cache=True,
    ),
    OpDef(
        "HetPull",
        _pull,
        _pull_infer,
        _pull_cost,
        None,
        many=True,
        effects=True,
        on_host=True,
        work="gather",
        serves_cache=True,
        asked_by=request_of,
        expected=_expected_answer,
    ),
    OpDef(
        "HetRead",
        _read,
        infer_read,
        _read_cost,
        None,
        many=True,
        effects=True,
        on_host=True,
        place="reader",
        phase="take",
        work="gather",
        expected=_expected_read,
        evaluated=read_in_evaluation,
    ),
    OpDef(
        "HetWrite", _write, no_outputs, _write_cost, None, effects=True, on_host=True, place="reader", work="scatter"
    ),
)
