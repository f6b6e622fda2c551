"""Lookups through a look-ahead cache, as they run (cDLRM 5, htrain.strategies.lookahead). Every table has a cache of its own.

In a step, on the trainer:

    LookaheadAnnounce(cache, ids)                       when the batch is read: the ids of a window are prefetched together
    slots = LookaheadSlots(cache, rows, states, ids)    where they stand; conflict victims are fetched into the victim table
    Lookup(rows, slots), and the optimizer's step on (rows, states, slots), as on a table
    FlushVictims(cache, rows, states)                   the victims' rows are written back

`rows`[slots + victims, D] and the optimizer's `states` are parameters of kind `cache`; `cache` is, too: the store makes a
`htrain.executor.lookahead` cache of it, which does the work.

Apart from steps, as passes of their own, which prefetch a window's rows, fetch victims and write back what leaves the cache:

    keys, values, wanted (of each shard) = LookaheadRequest(cache)     the inputs of such a pass
    WriteBack(shard, states, keys, values)                             where the table lives; values[n, D + S], the state behind the row
    fetched = Prefetch(shard, states, wanted)

A role that starts makes one op of those of all its tables (`htrain.ops.joint_passes`).
    LookaheadAnswer(cache, fetched of each shard)                      its outputs
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from htrain.net.net import BatchDim, Blob, Net, Op, numel
from htrain.ops import lookahead_loops
from htrain.ops.base import Cost, OpDef, Signature, changes_rows, no_outputs
from htrain.ops.cache_rates import ShardRates
from htrain.ops.expectation import Counts, Expectation

REQUEST = ("keys", "values", "wanted")
_PIN_BYTES = 4  # for each slot, beside the row's key (`python tools/bench/role_memory.py`)
_APART = ("LookaheadRequest", "LookaheadAnswer", "WriteBack", "Prefetch")


def _announce(cache: Any, ids: torch.Tensor) -> None:
    cache.announce(ids.numpy())


def _slots(
    cache: Any,
    *rest: torch.Tensor,
    num_rows: int,
    sets: int,
    ways: int,
    bounds: tuple[int, ...],
    patch: bool,
    window: int,
) -> torch.Tensor:
    """The table has `num_rows` rows, the cache `sets` of `ways`; shard k of the table holds the rows from bounds[k] to
    bounds[k+1]; with `patch`, a prefetched row that has changed since is put right. At most `window` batches are looked ahead."""
    return torch.from_numpy(cache.slots(rest[-1].numpy()))


def _flush_victims(cache: Any, *stored: torch.Tensor) -> None:
    cache.flush_victims()


def _request(cache: Any, *, shards: int, width: int, per_example: int) -> tuple[torch.Tensor, ...]:
    """At most `per_example` rows of `width` numbers for each example of a batch."""
    raise AssertionError("these are the inputs of a pass, which the executor gives")


def _answer(cache: Any, *fetched: torch.Tensor) -> None:
    raise AssertionError("these are the outputs of a pass, which the executor takes")


def _write_back(table: torch.Tensor, *rest: torch.Tensor, first_row: int) -> None:
    *states, keys, values = rest
    lookahead_loops.write_rows([t.numpy() for t in (table, *states)], keys.numpy(), values.numpy(), first_row)


def _prefetch(table: torch.Tensor, *rest: torch.Tensor, first_row: int) -> torch.Tensor:
    *states, wanted = rest
    return torch.from_numpy(lookahead_loops.read_rows([t.numpy() for t in (table, *states)], wanted.numpy(), first_row))


def apart(net: Net) -> tuple[Net, Net]:
    """A device's net cut in two: what belongs to a step; and the passes beside steps, whose inputs are requests and
    whose outputs answers.
    """
    marked = [op for op in net.ops if op.type in _APART]
    made = {name for op in marked for name in op.outputs}
    read = {name for op in marked for name in op.inputs}
    moved = {id(op) for op in net.ops if _moves(op, made, read)}
    outside = [op for op in net.ops if op.type in _APART[:2]]
    inputs = tuple(name for op in outside for name in op.outputs)
    outputs = tuple(name for op in outside for name in op.inputs if name not in net.parameters)
    step = net.with_ops(op for op in net.ops if id(op) not in moved and op.type not in _APART)
    rest = Net(
        f"exchange_{net.name}", (), inputs, outputs=outputs, blobs=dict(net.blobs), parameters=dict(net.parameters)
    )
    return step, rest.with_ops(op for op in net.ops if id(op) in moved or op.type in _APART[2:])


def window_of(net: Net) -> int:
    """The most batches that a trainer's net looks ahead: its caches have room for no more."""
    windows = [op.attrs["window"] for op in net.ops if op.type == "LookaheadSlots"]
    return min(window for window in windows if isinstance(window, int))


def slots_of(net: Net) -> int:
    """Rows that all caches of a trainer's net hold, conflict victims aside."""
    caches: list[Mapping[str, Any]] = [op.attrs for op in net.ops if op.type == "LookaheadSlots"]
    return sum(attrs["sets"] * attrs["ways"] for attrs in caches)


def _moves(op: Op, made: set[str], read: set[str]) -> bool:
    return (op.type == "Send" and op.inputs[0] in made) or (op.type == "Recv" and op.outputs[0] in read)


def _slots_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [(inputs[-1].shape, "int64")]


def _request_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    shards, width, per_example = (op.attrs[n] for n in ("shards", "width", "per_example"))
    assert isinstance(shards, int)
    assert isinstance(width, int)
    assert isinstance(per_example, int)
    rows = BatchDim(per_example, bound=True)
    return [((rows,), "int64"), ((rows, width), "float32"), ((rows,), "int64")] * shards


def _prefetch_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    widths = [b.shape[1] if len(b.shape) > 1 else 1 for b in inputs[:-1]]
    return [((inputs[-1].shape[0], sum(w for w in widths if isinstance(w, int))), "float32")]


def _slots_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """Every id of the batch is found in the occupancy table."""
    return Cost(0.0, _bytes((inputs[-1], *outputs), batch_size), float(numel(inputs[-1].shape, batch_size)))


def _write_back_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """Rows that come back with their states, read and written."""
    return Cost(0.0, 2 * _bytes(inputs[-2:], batch_size))


def _prefetch_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    return Cost(0.0, 2 * _bytes((inputs[-1], *outputs), batch_size))


def _bytes(blobs: Iterable[Blob], batch_size: int) -> float:
    return float(sum(b.num_bytes(batch_size) for b in blobs))


def _free(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    return Cost(0.0, 0.0)


def _window_bytes(op: Op, inputs: Sequence[Blob], batch_size: int) -> float:
    """The occupancy table's pins, and the rows of the next window, which are read while the present one is trained on."""
    cache, *stored, ids = inputs
    window = op.attrs["window"]
    assert isinstance(window, int)
    rows = min(window * numel(ids.shape, batch_size), numel(cache.shape, batch_size))
    row_bytes = sum(blob.num_bytes(batch_size) / max(1, numel(blob.shape[:1], batch_size)) for blob in stored)
    return numel(cache.shape, batch_size) * _PIN_BYTES + rows * row_bytes


def _expected_request(op: Op, counts: Counts, expectation: Expectation) -> Counts:
    """What a cache asks of each shard for each step of a window: rows that are not there, and those that leave for them."""
    ids = next(o.inputs[-1] for o in expectation.net.ops if o.type == "LookaheadSlots" and o.inputs[0] == op.inputs[0])
    shards = len(op.outputs) // len(REQUEST)
    missed = counts.get(ids, 0.0) * (1 - expectation.hits) / shards
    sizes: dict[str, float] = {}
    for number, shard in enumerate(expectation.rates.shards(op.inputs[0], [ShardRates(missed, missed)] * shards)):
        keys, values, wanted = op.outputs[number * len(REQUEST) : (number + 1) * len(REQUEST)]
        sizes |= {keys: shard.pushed, values: shard.pushed, wanted: shard.fetched}
    return sizes


def _read_in_evaluation(op: Op, net: Net) -> Mapping[str, str]:
    """The rows that are read by the slots, and the ids that these stand for."""
    (slots,) = op.outputs
    return {o.outputs[0]: op.inputs[-1] for o in net.ops if o.type == "Lookup" and o.inputs[1] == slots}


DEFINITIONS = (
    OpDef(
        "LookaheadAnnounce",
        _announce,
        no_outputs,
        _free,
        None,
        effects=True,
        on_host=True,
        place="reader",
        phase="announce",
    ),
    OpDef(
        "LookaheadSlots",
        _slots,
        _slots_infer,
        _slots_cost,
        None,
        effects=True,
        on_host=True,
        place="reader",
        phase="prepare",
        work="gather",
        keeps=_window_bytes,
        evaluated=_read_in_evaluation,
    ),
    OpDef(
        "FlushVictims", _flush_victims, no_outputs, _free, None, effects=True, on_host=True, writes=(1,), place="reader"
    ),
    OpDef(
        "LookaheadRequest",
        _request,
        _request_infer,
        _free,
        None,
        many=True,
        effects=True,
        on_host=True,
        place="reader",
        expected=_expected_request,
    ),
    OpDef("LookaheadAnswer", _answer, no_outputs, _free, None, effects=True, on_host=True, place="reader"),
    OpDef(
        "WriteBack",
        _write_back,
        no_outputs,
        _write_back_cost,
        None,
        effects=True,
        changes=changes_rows,
        on_host=True,
        phase="push",
        work="scatter",
        serves_cache=True,
    ),
    OpDef(
        "Prefetch",
        _prefetch,
        _prefetch_infer,
        _prefetch_cost,
        None,
        effects=True,
        on_host=True,
        work="gather",
        serves_cache=True,
    ),
)
