"""Reading a dataset back as Python values, one per example."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from htrain.data import START, Batch, Malformed, open_data


def _examples(batch: Batch) -> list[tuple[Any, ...]]:
    """One tuple per example, of every array of the batch in the order of their names."""
    parts = []
    for name in sorted(batch.columns):
        if name.endswith("_offsets"):
            continue
        values = batch.columns[name]
        starts = batch.columns.get(name + "_offsets")
        rows = np.split(values, starts[1:]) if starts is not None else list(values)
        parts.append([tuple(row.ravel().tolist()) for row in rows])
        assert len(rows) == batch.num_examples
    return list(zip(*parts, strict=True))


def _read(uri: str, *, malformed: Malformed | None = None, loss: str = "bce", **changes: Any) -> list[tuple[Any, ...]]:
    arguments: dict[str, Any] = {"batch_size": 100, "shard": 0, "num_shards": 1, "epochs": 1, "start": START} | changes
    batches = open_data(uri).for_loss(loss).batches(**arguments, malformed=malformed or Malformed())
    return [example for batch in batches for example in _examples(batch)]


@pytest.fixture(scope="session")
def examples() -> Callable[[Batch], list[tuple[Any, ...]]]:
    return _examples


@pytest.fixture(scope="session")
def read() -> Callable[..., list[tuple[Any, ...]]]:
    return _read
