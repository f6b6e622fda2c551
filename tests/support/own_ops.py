"""Registering ops of a user's own in tests, and forgetting them again."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from htrain.ops import OPS, user_ops


@contextmanager
def ops_are_forgotten() -> Iterator[None]:
    """What is registered within is gone behind it, with the module `my_ops` that models import."""
    tables: tuple[dict, ...] = (OPS, user_ops._own, user_ops._places, user_ops._sources)
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, known in zip(tables, before, strict=True):
            table.clear()
            table.update(known)
        sys.modules.pop("my_ops", None)
