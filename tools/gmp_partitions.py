"""Partitions by number of rounds, beside BiCut and htrain's own (HET-GMP 7.3, Table 3), with what the paper says.

    python tools/gmp_partitions.py 'libfm:frappe.libfm.gz?rows=5382' pairs:gowalla.txt.gz topics:50000 [--workers 8] [--batch 128]

Graphs are named as in tools/bench/partitions.py. Communication is the expected number of distinct rows that the batches of an epoch fetch from other workers,
F_B times the batches; the paper says neither its batch nor how it counts. BiCut is written here by its description: samples, of which there are more, are
the favourite side and are placed anywhere, as many on each worker; each row goes to where most of its samples are. Algorithm 1 has htrain's weights of the
balance, as the paper gives none; its replicas, and ours, are the last column.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from bench.partitions import Found, fresh, graph_of, warm_up

from htrain.tagging.bigraph import Bigraph, Request, at_random, fetches, partition
from htrain.tagging.bigraph.algorithm1 import algorithm1
from htrain.tagging.bigraph.homes import homes_of
from htrain.tagging.bigraph.links import one_host
from htrain.tagging.bigraph.replicas import replicas

ROUNDS = (1, 3, 5)
PAPER = {  # reduction in %, and seconds, on Company, Criteo, Avazu
    "random": ((0.0, 0.0, 0.0), (0, 0, 0)),
    "BiCut": ((13.5, 16.5, 18.7), (268, 124, 52)),
    "Algorithm 1, 1 round": ((37.3, 51.0, 63.1), (358, 202, 115)),
    "Algorithm 1, 3 rounds": ((59.7, 62.6, 67.0), (589, 324, 192)),
    "Algorithm 1, 5 rounds": ((63.8, 63.5, 67.7), (799, 435, 265)),
}


@dataclass(frozen=True)
class Asked:
    """How graphs are cut, and the share of the rows that is replicated for the last column."""

    workers: int
    batch: int
    replicas: float


def bicut(graph: Bigraph, asked: Asked, seed: int = 0) -> Found:
    """Samples anywhere and evenly; each row where most of its samples are."""
    samples = at_random(graph, Request(asked.workers, asked.batch, seed=seed)).samples
    homes = np.empty(graph.num_rows, np.int32)
    by_uses = np.arange(graph.num_samples + 2, dtype=np.float32)
    homes[graph.row_order] = homes_of(
        graph.level, samples, by_uses, links=one_host(asked.workers), most=graph.num_rows
    )  # nothing limits the rows of a worker
    return samples, homes


def ways(graph: Bigraph, asked: Asked) -> Iterator[tuple[str, Callable[[], Found]]]:
    """Each line of the table, and how it is found."""
    request = Request(asked.workers, asked.batch)

    def as_found(way: Callable[[Bigraph, Request], object]) -> Found:
        found = way(fresh(graph), request)
        return found.samples, found.homes  # type: ignore[attr-defined]

    yield "random", lambda: as_found(at_random)
    yield "BiCut", lambda: bicut(graph, asked)
    for objective, said in (("raw", ""), ("soft", ", F_B")):
        for rounds in ROUNDS:
            yield (
                f"Algorithm 1{said}, {rounds} round{'s' if rounds > 1 else ''}",
                lambda rounds=rounds, objective=objective: algorithm1(
                    graph, num_workers=asked.workers, batch_size=asked.batch, rounds=rounds, objective=objective
                ),
            )
    yield "htrain", lambda: as_found(partition)


def lines(graph: Bigraph, asked: Asked) -> Iterator[str]:
    """The table of one graph."""
    k, n, batch = asked.workers, graph.num_samples, asked.batch
    yield (
        f"{'':<28}{'communication':>14}{'reduction':>11}{'of uses':>9}"
        f"{'seconds':>9}{'CPU s':>7}{'samples':>9}{'rows':>6}{f'{asked.replicas:.0%} replicated':>15}"
        "   paper: Company, Criteo, Avazu; seconds"
    )
    base = None
    for name, way in ways(graph, asked):
        began, cpu = time.perf_counter(), time.process_time()
        samples, homes = way()
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        found = fetches(graph, samples, homes, num_workers=k, batch_size=batch)
        base = base or found
        held = replicas(
            graph,
            samples,
            homes,
            links=one_host(k),
            batch_size=batch,
            num_rows_each=int(asked.replicas * graph.num_rows),
        )
        left = found.per_batch - float(held.saved.sum()) / k
        most = [np.bincount(part, minlength=k).max() * k / len(part) for part in (samples, homes)]
        yield (
            f"{name:<28}{found.per_batch * n / batch:>14,.0f}{1 - found.per_batch / base.per_batch:>11.1%}{1 - found.per_sample / base.per_sample:>9.1%}"
            f"{seconds:>9.2f}{cpu:>7.2f}{most[0]:>9.2f}{most[1]:>6.2f}{1 - left / base.per_batch:>15.1%}   {_paper(name)}"
        )


def _paper(name: str) -> str:
    if name not in PAPER:
        return ""
    reductions, seconds = PAPER[name]
    return f"{', '.join(f'{r:.1f} %' for r in reductions)}; {', '.join(map(str, seconds))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="+", metavar="GRAPH", help="FORMAT:PATH, pairs:FILE, or topics:SAMPLES")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--replicas", type=float, default=0.01, help="share of the rows on each worker")
    parser.add_argument("--topics", type=int, default=64)
    parser.add_argument("--share", type=float, default=0.5, help="of the ids that are of the sample's topic")
    asked = parser.parse_args()
    warm_up()
    for name in asked.graphs:
        graph, _ = graph_of(name, asked)
        print(
            f"\n{name.rpartition('/')[2]}: {graph.num_samples:,} samples, {graph.num_rows:,} rows, {len(graph.rows):,} uses; {asked.workers} workers, "
            f"batches of {asked.batch}; most samples and rows of a worker as times its even share"
        )
        for line in lines(graph, Asked(asked.workers, asked.batch, asked.replicas)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
