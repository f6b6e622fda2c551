"""Where a step's time goes: the kernels of each type of op, and what the engine adds to an op.

    python tools/bench/engine.py [--batch 2048 --batch 1] [--dtype bfloat16]

The DLRM of single_process.py in one trainer without PSs. For each batch size, the median over runs of a step's milliseconds, with a row for each type
of op: how often a step runs it, milliseconds, and GFLOP/s by the cost that its definition states. The engine's share is the step less its kernels, with
the feed of batches in it; at batch 1 it is most of a step. The clock that kernels are timed with is in the engine's share, too.
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from history import append
from single_process import Htrain, read

from htrain.net.net import Net
from htrain.ops import OPS
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

Kernel = Callable[..., Any]


class Clock:
    """Seconds in the kernels of each type of op."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def timed(self, op_type: str, kernel: Kernel) -> Kernel:
        seconds, now = self.seconds, time.perf_counter

        def run(*values: Any, **attrs: Any) -> Any:
            began = now()
            made = kernel(*values, **attrs)
            seconds[op_type] += now() - began
            return made

        return run

    def bound(self, op_type: str, bind: Callable[..., Kernel]) -> Callable[..., Kernel]:
        return lambda *known, **attrs: self.timed(op_type, bind(*known, **attrs))


@contextmanager
def timed_kernels() -> Iterator[Clock]:
    """Programs that are built inside have their kernels timed."""
    clock, before = Clock(), dict(OPS)
    for op_type, definition in before.items():
        bind = definition.bind and clock.bound(op_type, definition.bind)
        OPS[op_type] = replace(definition, kernel=clock.timed(op_type, definition.kernel), bind=bind)
    try:
        yield clock
    finally:
        OPS.update(before)


def profile(options: Options, steps: int, runs: int) -> dict[str, Any]:
    """Milliseconds of a step, by type of op, and of a step whose kernels are not timed; medians of runs."""
    with tempfile.TemporaryDirectory() as folder:
        side = Htrain(options, read(options.batch_size, steps), Path(folder))
        net = side.plan.net_of("trainer")
        types = {op.type for op in net.ops}
        plain, timed, kernels = [], [], []
        for _ in range(runs):
            plain.append(side.train(steps)[0] * 1e3 / steps)
            with timed_kernels() as clock:
                timed.append(side.train(steps)[0] * 1e3 / steps)
            kernels.append(
                {op_type: spent * 1e3 / steps for op_type, spent in clock.seconds.items() if op_type in types}
            )
    spent = {op_type: statistics.median(each[op_type] for each in kernels) for op_type in kernels[0]}
    engine = statistics.median(step - sum(each.values()) for step, each in zip(timed, kernels, strict=True))
    _print(net, options.batch_size, spent, statistics.median(plain), engine)
    return {"ms": statistics.median(plain), "engine ms": engine, "ops": len(net.ops), "kernels ms": spent}


def _print(net: Net, batch_size: int, spent: dict[str, float], step: float, engine: float) -> None:
    counts: dict[str, int] = defaultdict(int)
    flops: dict[str, float] = defaultdict(float)
    for op in net.ops:
        counts[op.type] += 1
        flops[op.type] += (
            OPS[op.type].cost(op, [net.blob(n) for n in op.inputs], [net.blob(n) for n in op.outputs], batch_size).flops
        )
    print(
        f"batch {batch_size}: {step:.2f} ms a step, {len(net.ops)} ops; the engine {engine:.2f} ms, {engine * 1e3 / len(net.ops):.1f} us an op"
    )
    for op_type, ms in sorted(spent.items(), key=lambda item: -item[1]):
        print(
            f"  {op_type:<20}{counts[op_type]:>4}{ms:>9.3f} ms{flops[op_type] / max(ms, 1e-6) / 1e6:>8.1f} GFLOP/s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of FCs")
    parser.add_argument("--history", type=Path, help="a file to which the figures are added as lines of JSON")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    options = with_flags(
        net_replicas=1,
        dense_optimizer="sgd",
        sparse_optimizer="sgd",
        fc_dtype=asked.dtype,
        fc_gradient_dtype=asked.dtype,
    )
    for batch_size in asked.batch or [2048, 128, 1]:
        figures = profile(replace(options, batch_size=batch_size), max(12, min(500, 25_000 // batch_size)), asked.runs)
        if asked.history:
            append(asked.history, "engine", {**vars(asked), "batch": batch_size}, figures)


if __name__ == "__main__":
    main()
