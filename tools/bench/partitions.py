"""Partitions of a graph by htrain, by the paper's algorithm, and by METIS and Mt-KaHyPar where these are installed (HET-GMP 5.2, Table 3).

    pip install pymetis mtkahypar                      # as far as there are wheels
    python tools/bench/partitions.py 'libfm:frappe.libfm.gz?rows=5382' --batch 128 --batch 2048
    python tools/bench/partitions.py pairs:gowalla.txt.gz
    python tools/bench/partitions.py topics:50000 --share 0.5 [--topics 64] [--workers 8] [--seeds 3]
    python tools/bench/partitions.py topics:50000 --hosts 4,4    # workers on hosts: by hosts first, beside flat

A graph is data of any format; the pairs of a file of adjacency lists; or samples of 26 ids, of which a share is of the sample's topic, whose own
partition is then the "planted" one. A line for each: how much of F_B and F1 is saved beside samples and rows anywhere, the balance of samples and rows,
and CPU seconds, without those of reading and compiling. METIS gets samples and rows as vertices and uses as edges; Mt-KaHyPar gets samples as vertices and
rows as hyperedges, whose connectivity it minimises, and its rows then live where they are used most.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import islice, permutations
from pathlib import Path

import numpy as np

from htrain.data.graph_file import read_pairs
from htrain.data.malformed import Malformed
from htrain.data.source import open_data
from htrain.tagging.bigraph import Bigraph, Request, fetches, partition
from htrain.tagging.bigraph.algorithm1 import algorithm1
from htrain.tagging.bigraph.fetches import use_probability
from htrain.tagging.bigraph.homes import homes_of
from htrain.tagging.bigraph.links import costs_of_pairs, links_of, one_host
from htrain.tagging.bigraph.of_data import read_bigraph
from htrain.tagging.bigraph.replicas import replicas

Found = tuple[np.ndarray, np.ndarray]
_FIELDS = 26
_ROW_SLACK = 1.05
_MOST_ORDERS = 40_320  # of workers on hosts: all of 8


def graph_of(name: str, asked: argparse.Namespace) -> tuple[Bigraph, np.ndarray | None]:
    """The graph, and the topics of its samples where they are planted."""
    kind, _, rest = name.partition(":")
    if kind == "topics":
        return planted(int(rest), asked.topics, asked.share)
    if kind == "pairs":
        pairs = read_pairs(Path(rest))
        rows = np.stack([pairs.users, pairs.num_users + pairs.items], axis=1)
        seen, numbers = np.unique(rows, return_inverse=True)
        order = np.random.default_rng(0).permutation(len(rows))
        rows = numbers.reshape(rows.shape)[order].reshape(-1).astype(np.int32)
        return Bigraph(np.arange(len(order) + 1) * 2, rows, len(seen)), None
    return read_bigraph(open_data(name), Malformed(0.01))[0], None


def planted(num_samples: int, topics: int, share: float) -> tuple[Bigraph, np.ndarray]:
    """Ids of each field by Zipf's law, with probability `share` from the part of the field's vocabulary that is the topic's."""
    random = np.random.default_rng(0)
    vocabulary = max(2000, num_samples // 5)
    topic, of_topic = random.integers(topics, size=num_samples), vocabulary // topics
    columns = []
    for field in range(_FIELDS):
        at_large = zipf(random, vocabulary, num_samples)
        own = random.permutation(vocabulary)[zipf(random, of_topic, num_samples) * topics + topic]
        columns.append(np.where(random.random(num_samples) < share, own, at_large) + field * vocabulary)
    seen, rows = np.unique(np.stack(columns, axis=1), return_inverse=True)
    return Bigraph(np.arange(num_samples + 1) * _FIELDS, rows.reshape(-1).astype(np.int32), len(seen)), topic


def zipf(random: np.random.Generator, values: int, number: int) -> np.ndarray:
    """Numbers below `values`, the lower the more frequent."""
    weights = 1 / np.arange(1, values + 1) ** 1.05
    return np.searchsorted(np.cumsum(weights) / weights.sum(), random.random(number)).clip(0, values - 1)


def at_home(graph: Bigraph, samples: np.ndarray, asked: argparse.Namespace, batch: int) -> Found:
    """Rows where they are used most, balanced as htrain's are."""
    k = asked.workers
    homes = np.empty(graph.num_rows, np.int32)
    homes[graph.row_order] = homes_of(
        graph.level, samples, use_probability(-(-graph.num_samples // k), batch), links=one_host(k),
        most=int(_ROW_SLACK * graph.num_rows / k) + 1,
    )  # fmt: skip
    return samples, homes


def metis(graph: Bigraph, asked: argparse.Namespace, seed: int) -> Found:
    """Samples and rows as vertices."""
    level, n = graph.level, graph.num_samples
    starts = np.concatenate([level.starts, level.starts[-1] + level.row_starts[1:]])
    edges = np.concatenate([level.rows.astype(np.int64) + n, level.readers])
    module = import_module("pymetis")
    _, found = module.part_graph(asked.workers, xadj=starts, adjncy=edges, options=module.Options(seed=seed))
    homes = np.empty(graph.num_rows, np.int64)
    homes[graph.row_order] = np.array(found[n:])
    return np.array(found[:n]), homes


def mt_kahypar(graph: Bigraph, asked: argparse.Namespace, seed: int, batch: int) -> Found:
    """Samples as vertices, rows as hyperedges."""
    module = import_module("mtkahypar")
    engine = module.initialize(2)
    module.set_seed(seed)
    context = engine.context_from_preset(module.PresetType.DEFAULT)
    context.set_partitioning_parameters(asked.workers, 0.03, module.Objective.KM1)
    context.logging = False
    level = graph.level
    shared = [
        level.readers[a:b].tolist() for a, b in zip(level.row_starts, level.row_starts[1:], strict=False) if b - a > 1
    ]
    graph_there = engine.create_hypergraph(context, graph.num_samples, len(shared), shared)
    found = graph_there.partition(context)
    samples = np.array([found.block_id(s) for s in range(graph.num_samples)])
    return at_home(graph, samples, asked, batch)


def ways(
    graph: Bigraph, topic: np.ndarray | None, asked: argparse.Namespace, batch: int
) -> Iterator[tuple[str, Callable[[int], Found]]]:
    """Each way to partition, by name: seed to samples and homes."""

    def ours(seed: int) -> Found:
        found = partition(fresh(graph), Request(asked.workers, batch, seed=seed))
        return found.samples, found.homes

    for objective in ("raw", "soft"):
        yield f"Algorithm 1, {objective}, 5 rounds", lambda seed, objective=objective: algorithm1(
            graph, num_workers=asked.workers, batch_size=batch, rounds=5, objective=objective, seed=seed
        )  # fmt: skip

    def by_hosts(seed: int) -> Found:
        found = partition(fresh(graph), Request(asked.workers, batch, seed=seed, hosts=asked.hosts, link_cost=10.0))
        return found.samples, found.homes

    yield "htrain", ours
    if asked.hosts:
        yield "htrain, by hosts", by_hosts
    if find_spec("pymetis"):
        yield "METIS", lambda seed: metis(graph, asked, seed)
    if find_spec("mtkahypar"):
        yield "Mt-KaHyPar", lambda seed: mt_kahypar(graph, asked, seed, batch)
    if topic is not None:
        yield "planted", lambda seed: at_home(graph, topic % asked.workers, asked, batch)


def warm_up() -> None:
    """Numba compiles: samples of many ids, and of two."""
    for fields in (_FIELDS, 2):
        random = np.random.default_rng(0)
        rows = random.permuted(np.tile(np.arange(500), (900, 1)), axis=1)[:, :fields].reshape(-1).astype(np.int32)
        graph = Bigraph(np.arange(901) * fields, rows, 500)
        found = partition(graph, Request(2, 8))
        replicas(graph, found.samples, found.homes, links=one_host(2), batch_size=8, num_rows_each=5)
        algorithm1(graph, num_workers=2, batch_size=8, rounds=1, objective="soft")


def across(rows: np.ndarray, hosts: tuple[int, ...]) -> str:
    """What crosses hosts of F_B, as the workers are numbered and with hosts chosen as well as a few thousand ways to choose them allow; and the rest."""
    if not hosts:
        return ""
    apart = links_of(hosts, 2.0)
    is_apart = costs_of_pairs(apart) == 2
    orders = islice(permutations(range(len(rows))), _MOST_ORDERS)
    best = min(float(rows[np.ix_(order, order)][is_apart].sum()) for order in orders) / len(rows)
    between = float(rows[is_apart].sum()) / len(rows)
    return f"{between:>11.2f}{best:>11.2f}"


def fresh(graph: Bigraph) -> Bigraph:
    """The same, without what has been found of it before."""
    return Bigraph(graph.starts, graph.rows, graph.num_rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", help="FORMAT:PATH, pairs:FILE, or topics:SAMPLES")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--topics", type=int, default=64)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument(
        "--replicas", type=float, default=0.01, help="share of the rows on each worker, for the last column"
    )
    parser.add_argument(
        "--hosts", type=lambda text: tuple(map(int, text.split(","))), default=(), help="workers of each host"
    )
    asked = parser.parse_args()
    warm_up()
    graph, topic = graph_of(asked.graph, asked)
    print(
        f"{asked.graph}: {graph.num_samples:,} samples, {graph.num_rows:,} rows, {len(graph.rows):,} edges; {asked.workers} workers"
    )
    print(
        f"{'':<30}{'F_B saved':>11}{'F1 saved':>11}{'samples':>9}{'rows':>7}{'CPU s':>8}{'wall s':>8}{f'F_B, {asked.replicas:.0%} replicated':>22}"
        + (f"{'between':>11}{'at best':>11}" if asked.hosts else "")
    )
    random = np.random.default_rng(0)
    anywhere = random.permutation(graph.num_samples) % asked.workers, random.permutation(graph.num_rows) % asked.workers
    for batch in asked.batch or [128]:
        scattered = fetches(graph, *anywhere, num_workers=asked.workers, batch_size=batch)
        print(
            f"batches of {batch}: {scattered.per_batch:,.1f} rows of a batch, {scattered.per_sample:.2f} uses of a sample where all are anywhere"
        )
        for name, way in ways(graph, topic, asked, batch):
            for seed in range(1 if name == "planted" else asked.seeds):
                cpu, wall = time.process_time(), time.perf_counter()
                samples, homes = way(seed)
                cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
                found = fetches(graph, samples, homes, num_workers=asked.workers, batch_size=batch)
                held = replicas(
                    graph, samples, homes, links=one_host(asked.workers), batch_size=batch, num_rows_each=int(asked.replicas * graph.num_rows)
                )  # fmt: skip
                left = found.per_batch - float(held.saved.sum()) / asked.workers
                loads = [
                    np.bincount(part, minlength=asked.workers).max() * asked.workers / len(part)
                    for part in (samples, homes)
                ]
                print(
                    f"{name:<30}{1 - found.per_batch / scattered.per_batch:>11.1%}{1 - found.per_sample / scattered.per_sample:>11.1%}"
                    f"{loads[0]:>9.3f}{loads[1]:>7.2f}{cpu:>8.2f}{wall:>8.2f}{1 - left / scattered.per_batch:>22.1%}"
                    + across(found.rows, asked.hosts),
                    flush=True,
                )


if __name__ == "__main__":
    main()
