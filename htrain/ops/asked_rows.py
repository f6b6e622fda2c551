"""What ops have in common that look rows up behind something on the trainer, which asks the servers of a step for them: HET's caches, HET-GMP's replicas.

slots, counts, keys, clocks, gradients (of each server) = Ask(cache, ids of each table)
Push(server, tables, counts, keys, clocks, gradients)
answer = Pull(server, tables, counts, keys, clocks, gradients)
rows of each table = Read(cache, slots, ids of each table, the answer of each server)
counts, keys, clocks, gradients (of each server) = Flush(cache)
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from htrain.net.net import BatchDim, Blob, Dim, Net, Op, numel
from htrain.ops.base import OpDef, Signature
from htrain.ops.sparse_checks import outside

_MOST_KEYS = np.iinfo(np.int64).max
REQUEST = ("counts", "keys", "clocks", "gradients")


def keys_of(ids: Sequence[torch.Tensor], first_keys: tuple[int, ...], num_keys: int = _MOST_KEYS) -> np.ndarray:
    """Row r of table t is key first_keys[t] + r, of `num_keys` in all, where that is known.

    Raises DataError for an id that its table has no row for, which would be a key of the next table.
    """
    firsts, ends = _ranges(first_keys, num_keys)
    counts = [i.numel() for i in ids]
    keys = np.concatenate([i.numpy() for i in ids])
    first = np.repeat(firsts, counts)
    keys += first
    bad = np.flatnonzero((keys < first) | (keys >= np.repeat(ends, counts)))
    if bad.size:
        table = int(np.searchsorted(np.cumsum(counts), bad[0], side="right"))
        own = ids[table].numpy()
        raise outside(int(keys[bad[0]] - first[bad[0]]), own, 0, int(ends[table] - firsts[table]))
    return keys


@lru_cache(maxsize=256)
def _ranges(first_keys: tuple[int, ...], num_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """The first key of each table, and the one behind its last: that of the next table, which may be given several times."""
    firsts = np.array(first_keys, np.int64)
    begins = np.unique(np.append(firsts, num_keys))
    return firsts, begins[np.searchsorted(begins, firsts, side="right")]


def request_tensors(requests: Sequence[Any]) -> list[torch.Tensor]:
    """The parts of all requests, one server after another."""
    return [torch.from_numpy(np.ascontiguousarray(getattr(r, part))) for r in requests for part in REQUEST]


def answers_of(tensors: Sequence[torch.Tensor], parts: int) -> list[list[np.ndarray]]:
    """The answer of each server, of so many parts."""
    arrays = [tensor.numpy() for tensor in tensors]
    return [arrays[i : i + parts] for i in range(0, len(arrays), parts)]


def flush(
    cache: Any, *, bounds: tuple[int, ...], servers: tuple[int, ...], first_rows: tuple[int, ...], width: int
) -> tuple[torch.Tensor, ...]:
    """The kernel of Flush. The attributes are those of Ask."""
    return tuple(request_tensors(cache.flush()))


def pull_arrays(server: Any, rest: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """A server's answer to a request, the last of `rest`."""
    request = (tensor.numpy() for tensor in rest[-len(REQUEST) :])
    return tuple(torch.from_numpy(part) for part in server.pull_arrays(*request))


def row_width(width: int, optimizer: str) -> int:
    """Numbers that are held of a row: the row, the gradient that has not left, and the optimizer's state."""
    return {"sgd": 2 * width, "adagrad": 3 * width, "rowwise_adagrad": 2 * width + 1, "ftrl": 4 * width}[optimizer]


def has_roots(op: Op) -> bool:
    """Whether the op's optimizer takes a square root for each number of a row."""
    return op.attrs["optimizer"] in ("adagrad", "ftrl")


def number(op: Op, name: str) -> int:
    """An attribute that is a whole number."""
    value = op.attrs[name]
    assert isinstance(value, int)
    return value


def request_signatures(ask: Op, rows: Dim) -> list[Signature]:
    """The shapes and dtypes of what goes to each server; there are at most `rows` entries of each kind."""
    bounds, servers, first_rows, width = (ask.attrs[n] for n in ("bounds", "servers", "first_rows", "width"))
    assert isinstance(bounds, tuple)
    assert isinstance(servers, tuple)
    assert isinstance(first_rows, tuple)
    assert isinstance(width, int)
    ends = [first + end - start for first, start, end in zip(first_rows, bounds, bounds[1:], strict=False)]
    keys = "int32" if max(ends) < 2**31 else "int64"
    one: list[Signature] = [((3,), "int64"), ((rows,), keys), ((rows,), "int32"), ((rows, width), "float32")]
    return one * (max(servers) + 1)


def ask_signatures(op: Op, ids: Sequence[Blob]) -> list[Signature]:
    """Those of Ask's outputs, for the ids of each table."""
    per_example = sum(b.shape[0].per_example for b in ids if isinstance(b.shape[0], BatchDim))
    rows = BatchDim(max(1, per_example), bound=True)
    return [((rows,), "int64"), *request_signatures(op, rows)]


def infer_flush(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    """The shapes of Flush's outputs."""
    return request_signatures(op, BatchDim(1, bound=True))


def infer_read(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    """The shapes of Read's outputs."""
    width = number(op, "width")
    return [((i.shape[0], width), "float32") for i in inputs[2 : 2 + number(op, "num_tables")]]


def moved(blobs: Iterable[Blob], batch_size: int) -> float:
    """Bytes of rows, clocks and keys, read and written."""
    return 2.0 * sum(b.num_bytes(batch_size) for b in blobs)


def num_rows(blobs: Iterable[Blob], batch_size: int) -> float:
    """Rows of some blobs, in all."""
    return float(sum(numel(b.shape[:1], batch_size) for b in blobs))


def request_of(op: Op) -> Sequence[str]:
    """The blobs by which a server is asked for rows."""
    return op.inputs[-len(REQUEST) :]


def read_in_evaluation(op: Op, net: Net) -> Mapping[str, str]:
    """The rows of each table that Read gives, and their ids."""
    return dict(zip(op.outputs, op.inputs[2 : 2 + number(op, "num_tables")], strict=True))
