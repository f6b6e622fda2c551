"""Training out of a look-ahead cache against training on the whole tables in memory (cDLRM 7.1, Figures 3a, 3b).

    python tools/bench/lookahead_step.py [--batch 2048] [--steps 60] [--rows 100000] [--window auto] [--runs 3]

One trainer with everything in its process, a DLRM with 26 tables of `--rows` x 64 (bottom 13-512-256-64, top 512-512-256-1), SGD, runs of both
kinds in turn. `caching` is the time of placing windows for each batch, `of batch` its share of the batch's time; `ratio` the batch time of the
cached runs over that of the whole tables, by medians, wall and CPU. Batches behind the first half of a run count.
"""

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

import htrain
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

MODEL = str(Path(__file__).parents[2] / "models" / "dlrm.py:build_64")


@dataclass(frozen=True)
class Measured:
    """One run, per batch: wall seconds, CPU seconds of the trainer, seconds of placing windows; and what the cache says in the end."""

    seconds: float
    cpu_seconds: float
    place_seconds: float
    hit_rate: float
    window: int


def measure(options: Options, data: str, folder: Path) -> Measured:
    cluster = this_machine(groups=1, trainers=1, group_ps=0, sparse_ps=0)
    htrain.compile(MODEL, data=data, cluster=replace(cluster, trainer_memory=16 << 30), options=options).save(
        folder / "plan"
    )
    htrain.run(folder / "plan", data=data, out=folder / "run", console=Console(quiet=True))
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    own = [r for r in records if r["role"] == "trainer:0:0" and r["steps"]]
    last = next(r for r in own if r["steps"] == own[-1]["steps"])
    first = next(r for r in own if r["steps"] >= last["steps"] / 2)
    steps = last["steps"] - first["steps"]
    assert steps > 0, "too few steps: give more"
    caches = last.get("caches", {})
    placed = caches.get("place_seconds", 0.0) - first.get("caches", {}).get("place_seconds", 0.0)
    hits, misses = caches.get("hits", 0), caches.get("misses", 0)
    return Measured(
        (last["time"] - first["time"]) / steps, (last["cpu_seconds"] - first["cpu_seconds"]) / steps, placed / steps,
        hits / max(1, hits + misses), int(caches.get("window", 0)),
    )  # fmt: skip


def _number_or_auto(text: str) -> int | str:
    return text if text == "auto" else int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--window", type=_number_or_auto, default="auto")
    parser.add_argument("--sets", type=_number_or_auto, default="auto")
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    data = f"synthetic:?rows={asked.batch * asked.steps}&table_rows={asked.rows}"
    whole = with_flags(
        batch_size=asked.batch,
        sparse_optimizer="sgd",
        dense_optimizer="sgd",
        net_replicas=1,
        prefetch=False,
        sparse_lr=0.05,
        dense_lr=0.01,
    )
    cached = with_flags(whole, cache="lookahead", cache_window=asked.window, cache_sets=asked.sets)
    found: dict[str, list[Measured]] = {"whole": [], "cached": []}
    print(f"batch {asked.batch}, {data}", flush=True)
    print(f"{'':<8}{'batch ms':>10}{'CPU ms':>9}{'caching ms':>12}{'of batch':>10}{'hit rate':>10}{'window':>8}")
    for _ in range(asked.runs):
        for name, options in (("whole", whole), ("cached", cached)):
            with tempfile.TemporaryDirectory() as folder:
                seen = measure(options, data, Path(folder))
            found[name].append(seen)
            line = (
                f"{name:<8}{seen.seconds * 1e3:>10.1f}{seen.cpu_seconds * 1e3:>9.1f}{seen.place_seconds * 1e3:>12.2f}"
            )
            print(f"{line}{seen.place_seconds / seen.seconds:>10.2%}{seen.hit_rate:>10.3%}{seen.window:>8}", flush=True)
    wall, cpu = (
        statistics.median(getattr(m, what) for m in found["cached"])
        / statistics.median(getattr(m, what) for m in found["whole"])
        for what in ("seconds", "cpu_seconds")
    )
    print(f"ratio {wall:.3f} wall, {cpu:.3f} CPU, medians of {asked.runs} runs in turn")


if __name__ == "__main__":
    main()
