"""Lookups of workers that hold each other's tables, as they run (HET-GMP 5.3, htrain.strategies.gmp). A cache serves several tables of one width.

    slots, counts, keys, clocks, gradients (of each owner) = GmpAsk(cache, ids of each table, places of samples' rows)   on the trainer, a batch ahead
    GmpPush(owner, tables, counts, keys, clocks, gradients)                                      on the sparse PS beside another trainer
    rows, states, clocks, stale = GmpPull(owner, tables, counts, keys, clocks, gradients)
    rows of each table = GmpRead(cache, slots, ids of each table, the answer of each owner)      on the trainer
    GmpWrite(cache, slots, a gradient of each table's rows)                                      instead of an optimizer step

and in the flush net, at a pause or at the end,

    counts, keys, clocks, gradients (of each owner) = GmpFlush(cache)
    GmpFlushed(cache, the answer of each owner)

`cache` and `owner` are parameters of kind `cache`: the store makes a `htrain.sync.gmp` worker or owner of them, which does the work; the attributes of GmpAsk
and GmpPush say which. With `barrier`, GmpPull waits until all workers have pushed (a staleness of 0).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from htrain.net.net import BatchDim, Blob, Dim, Net, Op, numel
from htrain.ops.base import Cost, OpDef, Signature, no_outputs
from htrain.ops.cache_rates import ShardRates
from htrain.ops.expectation import Counts, Expectation, rows_like

REQUEST = ("counts", "keys", "clocks", "gradients")
ANSWER = ("rows", "states", "row_clocks", "stale")
UNBOUNDED = -1  # an attribute staleness without a bound
STATE_WIDTHS = {"sgd": 0, "rowwise_adagrad": 1}  # beside a row; another optimizer has one for each of its numbers
_THOUSANDTHS = 1000  # numbers of rows in attributes are whole
SLOT_BYTES = 60  # a secondary's clocks, its key, and the index at its fullest


def texts(op: Op, name: str) -> tuple[str, ...]:
    """The lines of an attribute."""
    value = op.attrs[name]
    assert isinstance(value, str)
    return tuple(value.split("\n"))


def state_width(width: int, optimizer: str) -> int:
    """Numbers of state beside a row of `width`."""
    return STATE_WIDTHS.get(optimizer, width)


def row_width(width: int, optimizer: str) -> int:
    """Numbers that a worker holds of another's row: the row, the gradient that has not left, and the optimizer's state."""
    return 2 * width + state_width(width, optimizer)


def _keys(ids: Sequence[torch.Tensor], first_keys: Sequence[int]) -> np.ndarray:
    """Row r of table t is key first_keys[t] + r."""
    return np.concatenate([i.numpy() + first for i, first in zip(ids, first_keys, strict=True)])


def _samples(ids: Sequence[torch.Tensor], places: Sequence[torch.Tensor], tables: Sequence[int]) -> np.ndarray:
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
) -> tuple[torch.Tensor, ...]:
    """Shard i holds the keys from bounds[i] on as rows from first_rows[i] on of owner servers[i], the last of bounds is their number.

    owners[k] is the number of owner k among all workers. Table p of the partition's `sources`, a line each, has the keys from source_keys[p] on. A batch of a
    worker is expected to need asked[k] / 1000 rows of another owner, k, and to read replicated[k] / 1000 of these from its `secondaries`, the most that a
    worker has. The rest says what is held, and how rows step.
    """
    ids, places = rest[:num_tables], rest[num_tables:]
    slots, requests = cache.ask(_keys(ids, first_keys), _samples(ids, places, place_tables))
    return (torch.from_numpy(slots), *_request_tensors(requests))


def _request_tensors(requests: Sequence[Any]) -> list[torch.Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(getattr(r, part))) for r in requests for part in REQUEST]


def _flush(
    cache: Any, *, bounds: tuple[int, ...], servers: tuple[int, ...], first_rows: tuple[int, ...], width: int
) -> tuple[torch.Tensor, ...]:
    """The attributes are those of GmpAsk."""
    return tuple(_request_tensors(cache.flush()))


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
) -> None:
    """Table p of the partition's `sources` is, from row source_rows[p] on, in the model's table source_tables[p] of `tables`, a line each."""
    owner.push_arrays(*(tensor.numpy() for tensor in rest[-len(REQUEST) :]))


def _pull(owner: Any, *rest: torch.Tensor, num_tables: int, barrier: bool) -> tuple[torch.Tensor, ...]:
    answer = owner.pull_arrays(*(tensor.numpy() for tensor in rest[-len(REQUEST) :]))
    return tuple(torch.from_numpy(part) for part in answer)


def _answers(parts: Sequence[torch.Tensor]) -> list[list[np.ndarray]]:
    arrays = [tensor.numpy() for tensor in parts]
    return [arrays[i : i + len(ANSWER)] for i in range(0, len(arrays), len(ANSWER))]


def _read(
    cache: Any, slots: torch.Tensor, *rest: torch.Tensor, num_tables: int, width: int
) -> tuple[torch.Tensor, ...]:
    ids = rest[:num_tables]
    rows = torch.from_numpy(cache.read_arrays(slots.numpy(), _answers(rest[num_tables:])))
    return rows.split([i.numel() for i in ids])


def _write(cache: Any, slots: torch.Tensor, *gradients: torch.Tensor) -> None:
    whole = np.concatenate([gradient.numpy() for gradient in gradients])
    cache.write(slots.numpy(), whole)


def _flushed(cache: Any, *answers: torch.Tensor) -> None:
    cache.read_arrays(np.empty(0, np.int64), _answers(answers))


def request_signatures(ask: Op, rows: Dim) -> list[Signature]:
    """The shapes and dtypes of what goes to each owner; there are at most `rows` entries of each kind."""
    bounds, servers, first_rows, width = (ask.attrs[n] for n in ("bounds", "servers", "first_rows", "width"))
    assert isinstance(bounds, tuple)
    assert isinstance(servers, tuple)
    assert isinstance(first_rows, tuple)
    assert isinstance(width, int)
    ends = [first + end - start for first, start, end in zip(first_rows, bounds, bounds[1:], strict=False)]
    keys = "int32" if max(ends) < 2**31 else "int64"
    one: list[Signature] = [((3,), "int64"), ((rows,), keys), ((rows,), "int32"), ((rows, width), "float32")]
    return one * (max(servers) + 1)


def _ask_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    ids = inputs[1 : 1 + _number(op, "num_tables")]
    per_example = sum(b.shape[0].per_example for b in ids if isinstance(b.shape[0], BatchDim))
    rows = BatchDim(max(1, per_example), bound=True)
    return [((rows,), "int64"), *request_signatures(op, rows)]


def _flush_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return request_signatures(op, BatchDim(1, bound=True))


def _pull_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    num_tables = _number(op, "num_tables")
    held = inputs[1 : -len(REQUEST)]
    states = held[num_tables:]
    state = (states[0].shape[1] if len(states[0].shape) > 1 else 1) if states else 0
    rows = inputs[-3].shape[0]
    return [((rows, held[0].shape[1]), "float32"), ((rows, state), "float32"), ((rows,), "int32"), ((rows,), "int32")]


def _read_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    width = _number(op, "width")
    return [((i.shape[0], width), "float32") for i in inputs[2 : 2 + _number(op, "num_tables")]]


def _number(op: Op, name: str) -> int:
    value = op.attrs[name]
    assert isinstance(value, int)
    return value


# What is done with a row, as so many keys found (Cost.keys): fitted to what `python tools/bench/gmp_parts.py` prints.
_ASKED, _PUSHED, _READ, _WRITTEN = 2.6, 1.5, 1.0, 1.5
_STEPPED, _ANSWERED, _ROOT = 2.0, 0.7, 0.2


def _moved(blobs: Iterable[Blob], batch_size: int) -> float:
    """Bytes of rows, clocks and keys, read and written."""
    return 2.0 * sum(b.num_bytes(batch_size) for b in blobs)


def _rows(blobs: Iterable[Blob], batch_size: int) -> float:
    return float(sum(numel(b.shape[:1], batch_size) for b in blobs))


def _ask_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """The batch's ids, the pairs of a sample's rows that are compared, and what leaves."""
    count = _number(op, "num_tables")
    ids, places = inputs[1 : 1 + count], inputs[1 + count :]
    fields = sum(numel(b.shape, batch_size) for b in places) / batch_size
    leaves = _PUSHED * _rows(outputs[len(REQUEST) :: len(REQUEST)], batch_size)
    keys = _ASKED * _rows(ids, batch_size) + leaves
    return Cost(fields * fields * batch_size, _moved((*ids, *places, *outputs), batch_size), keys)


def _read_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    return Cost(0.0, _moved(outputs, batch_size), _READ * _rows(outputs, batch_size))


def _write_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """A row of its own is stepped, another's gathers the gradient."""
    return Cost(0.0, 2 * _moved(inputs[2:], batch_size), (_WRITTEN + _STEPPED / 2) * _rows(inputs[1:2], batch_size))


def _push_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    gradients = inputs[-1]
    width = gradients.shape[1]
    assert isinstance(width, int)
    keys = _STEPPED + _ROOT * width * (op.attrs["optimizer"] == "adagrad")
    return Cost(0.0, 2 * _moved((gradients,), batch_size), keys * _rows((gradients,), batch_size))


def _pull_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    return Cost(0.0, _moved(outputs, batch_size), _ANSWERED * _rows(inputs[-3:-2], batch_size))


def _flush_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """What has not left, at a pause: no part of a step."""
    return Cost(0.0, _moved(outputs, batch_size))


def _worker_bytes(op: Op, inputs: Sequence[Blob], batch_size: int) -> float:
    """What is kept of each replica beside the row."""
    rows = inputs[0].shape[0]
    assert isinstance(rows, int)
    return float(rows * SLOT_BYTES)


# -- how many rows there will be -------------------------------------------------------------------------------------


def _expected_request(op: Op, counts: Counts, expectation: Expectation) -> Counts:
    """What a worker asks of each owner and is answered, as the partition predicts it: rows of others, and clocks of secondaries, which are seldom too old."""
    count = _number(op, "num_tables")
    slots, *request = op.outputs
    sizes = {slots: sum(counts.get(name, 0.0) for name in op.inputs[1 : 1 + count])}
    alike = []
    for asked, replicated in zip(_milli(op, "asked"), _milli(op, "replicated"), strict=True):
        alike.append(ShardRates(fetched=asked - replicated, pushed=asked, checked=replicated))
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


def _request(op: Op) -> Sequence[str]:
    """The blobs by which an owner is asked for rows."""
    return op.inputs[-len(REQUEST) :]


def _read_in_evaluation(op: Op, net: Net) -> Mapping[str, str]:
    """The rows of each table, and their ids."""
    return dict(zip(op.outputs, op.inputs[2 : 2 + _number(op, "num_tables")], strict=True))


DEFINITIONS = (
    OpDef(
        "GmpAsk", _ask, _ask_infer, _ask_cost, None, many=True, effects=True, on_host=True, place="reader", phase="ask", work="gather",
        keeps=_worker_bytes, expected=_expected_request,
    ),
    OpDef("GmpFlush", _flush, _flush_infer, _flush_cost, None, many=True, effects=True, on_host=True, work="gather"),
    OpDef("GmpFlushed", _flushed, no_outputs, _flush_cost, None, effects=True, on_host=True, work="scatter"),
    OpDef(
        "GmpPush", _push, no_outputs, _push_cost, None, effects=True, on_host=True, phase="push", work="scatter", serves_cache=True,
    ),
    OpDef(
        "GmpPull", _pull, _pull_infer, _pull_cost, None, many=True, effects=True, on_host=True, work="gather", serves_cache=True, asked_by=_request,
        expected=_expected_answer,
    ),
    OpDef(
        "GmpRead", _read, _read_infer, _read_cost, None, many=True, effects=True, on_host=True, place="reader", phase="take", work="gather",
        expected=_expected_read, evaluated=_read_in_evaluation,
    ),
    OpDef("GmpWrite", _write, no_outputs, _write_cost, None, effects=True, on_host=True, place="reader", work="scatter"),
)  # fmt: skip
