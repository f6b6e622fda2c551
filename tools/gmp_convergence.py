"""Time to a target AUC: HET-GMP, a partition at random, HET's cache, look-ahead (HET-GMP 7.1, Figure 7). Needs root.

    python tools/gmp_convergence.py --frappe frappe.libfm.gz [--workers 4] [--rates 1gbit,100mbit] [--batch 128] [--epochs 5] [--target 0.925]

Wide & deep with rows of 128 on four fifths of Frappe, tested on the rest. Every worker steps together with the others, so that what a model learns of an
example does not depend on the links: AUC is taken after each epoch of a run without them, and what an example takes from a run of `--seconds` in a lab
(tools/netlab.py). The time to the target is that of the examples until then, taken from epoch to epoch in a straight line; start-up is left out. All roles
share this machine's cores: `CPU us` are those of all roles for an example.
"""

import argparse
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gmp_lab import MODELS, Links, System, Where
from netlab import unwind_when_ended
from precision import parts

import htrain
from htrain.errors import Error
from htrain.executor.record.measured import Measured
from htrain.plan.plan import Plan
from htrain.spec.tree import with_flags

MODEL = f"{MODELS / 'wide_deep.py'}:build_narrow"
DEFERRED: dict[str, object] = {"gmp_write": "deferred"}
SYSTEMS = (
    System("random, s = 0 (HET-MP)", Where("random", 0.0), {"gmp_staleness": 0}),
    System("HET-GMP, s = 0", Where("flat"), {"gmp_staleness": 0}),
    System("HET-GMP, s = 10", Where("flat"), {"gmp_staleness": 10, **DEFERRED}),
    System("HET-GMP, s = 100", Where("flat"), {"gmp_staleness": 100, **DEFERRED}),
    System("sparse PS, no cache"),
    System("HET's cache, s = 100", flags={"cache": "het", "cache_staleness": 100}),
    System("look-ahead cache", flags={"cache": "lookahead"}),
)
PAPER = "paper, Figure 7: HET-GMP at s = 100 is 1.2 to 3.56 times as fast as HET-MP to the target on six workloads, with s = 0 faster in most; 8 GPUs of a host"


@dataclass(frozen=True)
class Curve:
    """AUC after each epoch."""

    aucs: tuple[float, ...]

    def epochs_to(self, target: float) -> float:
        """In how many epochs the target is reached, in a straight line between two ends of epochs; before the first, from an AUC of a half."""
        before = 0.5
        for epoch, auc in enumerate(self.aucs):
            if auc >= target:
                return epoch + (target - before) / (auc - before)
            before = auc
        return math.nan


def curve(plan: Path, data: str, test: str, folder: Path, epochs: int) -> Curve:
    """Train epoch after epoch, without links."""
    aucs = []
    for epoch in range(1, epochs + 1):
        begins = {"resume": folder} if epoch > 1 else {"out": folder}
        htrain.run(plan, data=data, epochs=epoch, hosting="threads", **begins)  # type: ignore[arg-type]
        aucs.append(htrain.evaluate(folder, data=test).auc)
    return Curve(tuple(aucs))


def speed(plan: Plan, data: str, folder: Path, rate: str, asked: argparse.Namespace, examples: int) -> Measured:
    """Of a run of about `--seconds`, whose length a short one tells."""
    links = Links(rate)
    first = links.run(plan, data, folder, epochs=1, name=f"first {rate}").measured
    epochs = max(2, math.ceil(asked.seconds * first.eps / examples))
    return links.run(plan, data, folder, epochs=epochs, name=f"run {rate}").measured


def line(system: System, train: str, test: str, rates: list[str], asked: argparse.Namespace, examples: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = with_flags(batch_size=asked.batch, net_replicas=1)
        plan, data = system.planned(MODEL, train, folder, workers=asked.workers, options=options)
        found = curve(folder / "plan", data, test, folder / "curve", asked.epochs)
        epochs = found.epochs_to(asked.target)
        text = f"{system.name:<26}{max(found.aucs):>9.4f}{epochs:>8.2f}"
        for rate in rates:
            seen = speed(plan, data, folder, rate, asked, examples)
            sent = sum(edge.measured_bytes for edge in seen.edges)
            cpu = sum(device.cpu_seconds for device in seen.devices)
            text += f"{seen.eps:>11,.0f}{cpu * 1e6:>8,.0f}{sent:>8,.0f}{epochs * examples / seen.eps:>9.1f}"
        print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frappe", type=Path, required=True)
    for name, default in (
        ("workers", 4), ("rates", "1gbit,100mbit"), ("batch", 128), ("epochs", 5), ("target", 0.925), ("seconds", 12.0), ("only", ""),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=type(default), default=default)
    asked = parser.parse_args()
    unwind_when_ended()
    rates = asked.rates.split(",")
    try:
        with tempfile.TemporaryDirectory() as folder:
            train, test = parts(asked.frappe, Path(folder))
            with open(train.removeprefix("libfm:").partition("?")[0], "rb") as file:
                examples = sum(1 for _ in file)
            print(f"{asked.workers} workers, batches of {asked.batch}, rows of 128; target AUC {asked.target}\n{PAPER}")
            print(f"{'':<43}" + "".join(f"{rate:>36}" for rate in rates))
            print(
                f"{'system':<26}{'best AUC':>9}{'epochs':>8}"
                + f"{'EPS':>11}{'CPU us':>8}{'B/ex':>8}{'seconds':>9}" * len(rates)
            )
            for system in SYSTEMS:
                if asked.only in system.name:
                    line(system, train, test, rates, asked, examples)
    except Error as error:
        print(f"gmp_convergence: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
