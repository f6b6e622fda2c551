"""What stale rows cost: AUC out of look-ahead caches with and without the patch, beside training on whole tables (cDLRM 5.3, Table 1b).

    python tools/lookahead_quality.py [--examples 1000000] [--table-rows 20000] [--sets 0,100] [--window 64] [--batch 512]

Wide & deep on a synthetic click log, one trainer, in deterministic order; tested on a twentieth of the size from the same planted model.
`stale` are rows that had changed since they were read, of all that were brought into the cache or fetched for a step.
"""

import argparse
import tempfile
from pathlib import Path

from rich.console import Console

import htrain
from htrain.data.formats.synthetic import TEST_BLOCK
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

MODEL = str(Path(__file__).parents[1] / "models" / "wide_deep.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--table-rows", type=int, default=20_000)
    parser.add_argument("--sets", default="0,100")
    parser.add_argument("--ways", type=int, default=16)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--optimizer", default="adagrad", choices=["sgd", "adagrad", "rowwise_adagrad"])
    asked = parser.parse_args()
    data = f"synthetic:?rows={asked.examples}&table_rows={asked.table_rows}"
    test = f"synthetic:?rows={asked.examples // 20}&table_rows={asked.table_rows}&first_block={TEST_BLOCK}"
    whole = with_flags(batch_size=asked.batch, sparse_optimizer=asked.optimizer, net_replicas=1, prefetch=False)
    print(f"batch {asked.batch}, {data}", flush=True)
    print(f"{'cache':<24}{'AUC':>10}{'NE':>10}{'hit rate':>11}{'stale':>10}{'of':>14}{'EPS':>9}")
    _line("none", whole, data, test)
    for sets in map(int, asked.sets.split(",")):
        for patch in (True, False):
            options = with_flags(
                whole,
                cache="lookahead",
                cache_window=asked.window,
                cache_sets=sets or "auto",
                cache_ways=asked.ways,
                cache_patch=patch,
            )
            _line(f"{sets or 'recommended'} sets, {'patched' if patch else 'as read'}", options, data, test)


def _line(name: str, options: Options, data: str, test: str) -> None:
    cluster = this_machine(groups=1, trainers=1, group_ps=0, sparse_ps=0)
    with tempfile.TemporaryDirectory() as folder:
        plan, run = Path(folder) / "plan", Path(folder) / "run"
        htrain.compile(MODEL, data=data, cluster=cluster, options=options).save(plan)
        result = htrain.run(plan, data=data, out=run, deterministic=True, console=Console(quiet=True))
        found = htrain.evaluate(run, data=test)
    caches, eps = result.totals.caches, result.totals.examples / result.train_seconds
    rate = f"{caches.hit_rate:.3%}" if caches.hits else "-"
    read = caches.loaded + caches.misses
    print(
        f"{name:<24}{found.auc:>10.5f}{found.ne:>10.5f}{rate:>11}{caches.stale:>10,}{read:>14,}{eps:>9,.0f}", flush=True
    )


if __name__ == "__main__":
    main()
