"""The loops that nets run, as far as these take long to compile: what is compiled ahead while roles begin (htrain.executor.host.ahead)."""

from collections.abc import Iterable
from typing import Any

from htrain.executor.engine import mark_loops
from htrain.net.net import Net
from htrain.ops import OPS, bundle


def loops_of(nets: Iterable[Net]) -> list[Any]:
    """Those of their ops, as these say (`OpDef.loops`), behind those of messages and before those of checkpoints; each once."""
    kinds = {(op.type, op.attrs.get("optimizer")): op for net in nets for op in net.ops}
    of_ops = [loop for op in kinds.values() for loop in OPS[op.type].loops(op)]
    return list(dict.fromkeys((*bundle.LOOPS, *of_ops, *mark_loops.LOOPS)))
