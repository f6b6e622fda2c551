"""The products of FCs by each library that htrain.ops.products can take them from: milliseconds and GFLOP/s of one thread, medians.

    python tools/bench/fc_products.py [--batch 128 --batch 2048] [--passes 100]
    python tools/bench/fc_products.py --layer 16 16 --batch 665600      # of AFM at batch 2048: 325 pairs of fields an example

For x[B,K] and w[N,K]: `y` is max(x @ w.T + b, 0), `dx` is dy @ w, `step` is w -= lr * dy.T @ x. A pass runs them in the order of a training step of the
DLRM of single_process.py, so that each finds in the caches what it finds there, with other data read between (`--between` MB); libraries take turns.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import torch
from torch.nn.functional import linear

from htrain.ops.blas import add_product, is_ahead, product

Layers = list[tuple[int, int]]
LAYERS: Layers = [(13, 512), (512, 256), (256, 64), (415, 512), (512, 256)]
RATE = 1e-9

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], object]


def by_torch() -> dict[str, Product]:
    return {
        "y": lambda w, b, x, dy: torch.relu(linear(x, w, b)),
        "dx": lambda w, b, x, dy: dy @ w,
        "step": lambda w, b, x, dy: w.addmm_(dy.t(), x, alpha=-RATE),
    }


def by_onednn() -> dict[str, Product]:
    """It adds nothing to what is there: a step is a product and a pass over the weight."""
    pointwise = torch.ops.mkldnn._linear_pointwise
    return {
        "y": lambda w, b, x, dy: pointwise(x, w, b, "relu", [], ""),
        "dx": lambda w, b, x, dy: pointwise(dy, w.t(), None, "none", [], ""),
        "step": lambda w, b, x, dy: w.sub_(pointwise(dy.t(), x.t(), None, "none", [], ""), alpha=RATE),
    }


def by_openblas() -> dict[str, Product]:
    return {
        "y": lambda w, b, x, dy: product(x, w.t()).add_(b).relu_(),
        "dx": lambda w, b, x, dy: product(dy, w),
        "step": lambda w, b, x, dy: add_product(w, dy.t(), x, -RATE),
    }


def seconds(layers: Layers, batch: int, passes: int, between: int) -> dict[tuple[str, str], list[float]]:
    """By library and product, of each layer."""
    libraries = {"torch": by_torch(), "onednn": by_onednn(), "openblas": by_openblas()}
    values = [
        (torch.randn(n, k) * 0.01, torch.randn(n), torch.randn(batch, k), torch.randn(batch, n)) for k, n in layers
    ]
    if not is_ahead(values[0][2], values[0][0].t()):
        del libraries["openblas"]
        print("OpenBLAS is left out: htrain does not take it on this machine (htrain/ops/blas.py)")
    other = torch.zeros(between << 18)
    spent: dict[tuple[str, str], list[list[float]]] = defaultdict(lambda: [[] for _ in layers])
    for _ in range(passes):
        for library, products in libraries.items():
            order = [(i, ("y",)) for i in range(len(layers))] + [
                (i, ("dx", "step")) for i in reversed(range(len(layers)))
            ]
            for place, (i, names) in enumerate(order):
                if place in (3, 7):  # where a step's lookups are, and the steps of their rows
                    other.add_(1.0)
                for name in names:
                    if name in products:
                        began = time.perf_counter()
                        products[name](*values[i])
                        spent[library, name][i].append(time.perf_counter() - began)
    return {key: [statistics.median(each) for each in times] for key, times in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--passes", type=int, help="of each library; by default as many as take some seconds")
    parser.add_argument("--between", type=int, default=4, metavar="MB")
    parser.add_argument(
        "--layer", type=int, nargs=2, action="append", metavar=("K", "N"), help="in the place of DLRM's"
    )
    asked = parser.parse_args()
    layers = [(k, n) for k, n in asked.layer] if asked.layer else LAYERS
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print(f"{'batch':>5}  {'':<5}{'':<9}{'all, ms':>8}  GFLOP/s of K x N: {'  '.join(f'{k} x {n}' for k, n in layers)}")
    for batch in asked.batch or [2048, 128]:
        found = seconds(layers, batch, asked.passes or max(20, min(300, 40_000 // batch)), asked.between)
        for (library, name), times in sorted(
            found.items(), key=lambda item: ("y dx step".find(item[0][1]), item[0][0])
        ):
            rates = "".join(
                f"{2e-9 * batch * k * n / spent:>10.0f}" for (k, n), spent in zip(layers, times, strict=True)
            )
            print(f"{batch:>5}  {name:<5}{library:<9}{sum(times) * 1e3:>8.3f}  {'':<16}{rates}", flush=True)


if __name__ == "__main__":
    main()
