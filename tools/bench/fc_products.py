"""The products of an FC, by oneDNN or numpy (htrain.ops.fc) and as torch takes them: GFLOP/s of one thread, medians.

    python tools/bench/fc_products.py [--batch 2048] [--reps 15]

For x[B,K] and w[N,K]: `y` is max(x @ w.T + b, 0), `dx` is dy @ w, `step` is w -= lr * dy.T @ x.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from one_thread import take_one_thread
from torch.nn.functional import linear

from htrain.ops import OPS

LAYERS = [(13, 512), (512, 256), (256, 64), (415, 512)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--reps", type=int, default=15)
    asked = parser.parse_args()
    take_one_thread()
    torch.set_grad_enabled(False)
    print(f"{'K':>5}{'N':>5}{'y':>8}{'torch':>8}{'dx':>8}{'torch':>8}{'step':>8}{'torch':>8}")
    for k, n in LAYERS:
        x, w, b, dy = torch.randn(asked.batch, k), torch.randn(n, k), torch.randn(n), torch.randn(asked.batch, n)
        calls: list[Callable[[], object]] = [
            lambda: OPS["FCRelu"].kernel(x, w, b), lambda: torch.relu(linear(x, w, b)),  # noqa: B023  called at once
            lambda: OPS["FCInputGradient"].kernel(w, dy), lambda: dy @ w,  # noqa: B023
            lambda: OPS["FCSgd"].kernel(w, x, dy, lr=1e-9), lambda: w.sub_(dy.t() @ x, alpha=1e-9),  # noqa: B023
        ]  # fmt: skip
        rates = [2e-9 * asked.batch * k * n / _seconds(call, asked.reps) for call in calls]
        print(f"{k:>5}{n:>5}" + "".join(f"{rate:>8.0f}" for rate in rates), flush=True)


def _seconds(call: Callable[[], object], reps: int) -> float:
    call()
    spent = []
    for _ in range(reps):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)


if __name__ == "__main__":
    main()
