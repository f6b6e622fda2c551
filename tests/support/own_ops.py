"""Registering ops and strategies of a user's own in tests, and forgetting them again."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from htrain.ops import OPS
from htrain.own import registry as own
from htrain.spec.cache import CACHES
from htrain.spec.dense_sync import DENSE_SYNCS
from htrain.spec.halves import HALVES
from htrain.spec.policies import POLICIES
from htrain.spec.sparse_sync import SPARSE_SYNCS
from htrain.spec.tree import flags


@contextmanager
def ops_are_forgotten() -> Iterator[None]:
    """What is registered within is gone behind it, with the module `my_ops` that models import."""
    tables: tuple[dict, ...] = (OPS, own._known, DENSE_SYNCS, SPARSE_SYNCS, CACHES, HALVES, POLICIES)
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, known in zip(tables, before, strict=True):
            table.clear()
            table.update(known)
        flags.cache_clear()
        sys.modules.pop("my_ops", None)
