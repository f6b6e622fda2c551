"""Calibrated rates against the ops that they stand for: CPU time of an op as the cost model has it, and as its kernel takes it.

    python tools/bench/calibrate.py [--seconds 20] [--times 5]

First the rates of `--times` calibrations in turn: the median of each and how far apart they lie, since a rate that changes from one
calibration to the next cannot be right. Then, with the medians, one line an op: the cost model's CPU time with what it takes to start
an op, the kernel's own (the median of 15 rounds, on one thread), and how many times too long the model has it. The shapes are those of
recommendation models, and not those that rates are measured on.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import torch

from htrain.calibration.measure import measure_host
from htrain.costs.seconds import op_seconds
from htrain.net.net import Attr, B, Blob, Shape, numel
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder
from htrain.spec.cluster import Cluster, validated

ROUNDS = 15
ROUND_SECONDS = 2e-3
ROWS = 1_000_000
WIDTHS = (16, 64, 128)
DRAWS = 200  # batches of ids before one comes again


@dataclass(frozen=True)
class Case:
    """An op on float32 blobs of `shapes`; where the first is a table, a shape of one dimension is of ids."""

    op: str
    shapes: tuple[Shape, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)

    @property
    def has_ids(self) -> bool:
        return self.shapes[0][0] == ROWS

    def batches(self, asked: Sequence[int]) -> Sequence[int]:
        """Those asked for; one where no shape depends on it."""
        return asked if any(B in shape for shape in self.shapes) else asked[:1]

    def label(self, batch_size: int) -> str:
        sides = ("x".join(str(numel((dim,), batch_size)) for dim in shape) for shape in self.shapes)
        return f"{self.op} {' '.join(sides)}"


LAYERS = ((13, 512), (32, 32), (96, 128), (400, 400), (768, 384))  # K, N
STEP: Mapping[str, Attr] = {"lr": 0.01, "eps": 1e-8, "first_row": 0}
CASES = (
    *(Case(op, ((B, k), (n, k), (n,))) for op in ("FC", "FCBfloat16", "FCInt8") for k, n in LAYERS),
    *(Case("FCGradient", ((B, k), (n, k), (B, n)), {"bias": True, "wants_x": True}) for k, n in LAYERS),
    Case("Einsum", ((B, 27, 32), (B, 27, 32)), {"equation": "bik,bjk->bij"}),
    *(Case("Relu", ((B, n),)) for n in (32, 400)),
    *(Case("Mul", ((B, n), (B, n))) for n in (32, 400)),
    *(Case("Cast", ((B, n),), {"to": "bfloat16"}) for n in (32, 400)),
    *(Case("QuantizeRows", ((B, n),)) for n in (32, 400)),
    *(Case("TopK", ((B, n),), {"share": 0.01}) for n in (32, 400)),
    Case("Adagrad", ((768, 384), (768, 384), (768, 384)), {"lr": 0.01, "eps": 1e-8}),
    *(Case("Lookup", ((ROWS, width), (B,)), {"first_row": 0}) for width in WIDTHS),
    *(Case("SparseAdagrad", ((ROWS, width), (ROWS, width), (B,), (B, width)), STEP) for width in WIDTHS),
)


def draws_of(case: Case, batch_size: int) -> list[list[torch.Tensor]]:
    """Values for the op's inputs; where some are ids, several draws of them. Ids are distinct, as they are when they have been deduplicated."""
    generator = torch.Generator().manual_seed(0)
    shapes = [tuple(numel((dim,), batch_size) for dim in shape) for shape in case.shapes]
    values = [torch.rand(shape, generator=generator) for shape in shapes]
    if not case.has_ids:
        return [values]
    ids = torch.randperm(ROWS, generator=generator)[: DRAWS * batch_size].split(batch_size)
    return [[draw if len(value.shape) == 1 else value for value in values] for draw in ids]


def kernel_seconds(case: Case, batch_size: int) -> float:
    """CPU seconds of one call of the op's kernel."""
    kernel, draws = OPS[case.op].kernel, cycle(draws_of(case, batch_size))
    return seconds_of(lambda: kernel(*next(draws), **case.attrs))


def seconds_of(run: Callable[[], object]) -> float:
    """Of the calling thread, the median over rounds, after two calls that do not count."""
    run()
    began = time.thread_time()
    run()
    calls = max(1, int(ROUND_SECONDS / max(1e-7, time.thread_time() - began)))
    found = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(calls):
            run()
        found.append((time.thread_time() - began) / calls)
    return statistics.median(found)


def model_seconds(case: Case, cluster: Cluster, batch_size: int) -> float:
    """CPU seconds of the op by the cost model."""
    builder = NetBuilder("case")
    inputs = [
        builder.input(Blob(f"x{i}", shape, "int64" if case.has_ids and len(shape) == 1 else "float32"))
        for i, shape in enumerate(case.shapes)
    ]
    outputs = builder.add(case.op, inputs, attrs=case.attrs)
    blobs = [builder.blob(name) for name in inputs]
    return op_seconds(builder.ops[-1], blobs, [builder.blob(name) for name in outputs], cluster, batch_size)


def print_rates(found: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The median of each rate, and the most of it over the least."""
    medians = {}
    for name in found[0]:
        values = [rates[name] for rates in found]
        medians[name] = round(statistics.median(values))
        print(f"{name:<24}{medians[name]:>18,}   largest / smallest {max(values) / min(values):.2f} (n={len(values)})")
    return medians


def print_ops(cluster: Cluster, batches: Sequence[int]) -> None:
    """A line an op, and how far the model is off over all of them."""
    print(f"{'':<48}{'model us':>10}{'kernel us':>11}{'ratio':>8}")
    ratios: dict[str, list[float]] = {}
    for case in CASES:
        for batch_size in case.batches(batches):
            model, kernel = model_seconds(case, cluster, batch_size), kernel_seconds(case, batch_size)
            ratios.setdefault(case.op, []).append(model / kernel)
            print(f"{case.label(batch_size):<48}{model * 1e6:>10.1f}{kernel * 1e6:>11.1f}{model / kernel:>8.2f}")
    print("how many times too long the model has it")
    for op, values in ratios.items():
        print(f"{op:<16} least {min(values):5.2f}   median {statistics.median(values):5.2f}   most {max(values):5.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Calibrated rates against the ops that they stand for.")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each calibration (default 20)")
    parser.add_argument("--times", type=int, default=5, help="calibrations (default 5)")
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 1024], help="(default 256 1024)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{os.cpu_count()} cores, torch {torch.__version__}, one thread")
    rates = print_rates([measure_host(seconds=given.seconds).rates for _ in range(given.times)])
    with torch.no_grad():
        print_ops(validated(rates, where="calibrate"), given.batches)


if __name__ == "__main__":
    main()
