"""Two hosts of four workers, with a slower link between: by hosts, flat, random (HET-GMP 7.3, Figure 9), and what each link carries. Needs root.

    python tools/gmp_hosts.py [--sites 4,4] [--rate 1gbit] [--between 100mbit] [--batch 128] [--steps 60] [--replicas 0.01]
                              [--localities 0.9,0.7] [--frappe frappe.libfm.gz]

Wide & deep with rows of 128, by HET-GMP with s = 100 and deferred writes, on the links of tools/netlab.py. A partition by hosts takes a row of the other
host for ten times one of its own. Each plan runs twice, for `--steps` and for twice as many, and what the longer run's links carried beyond the shorter one's
is compared with what is predicted: rows by playing the workers over the data, AllReduce by its formula, and the header of each message. Headers of packets are
taken off what was carried, 66 bytes for each that the link has counted, acknowledgements among them. EPS are those of the longer run's steady part; all workers
share this machine's cores. `bound` is what the uplink's bytes allow.
"""

import argparse
import itertools
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gmp_lab import MODELS, Links, System, Where, grown
from netlab import LabRun, Traffic, bits_per_second, unwind_when_ended
from precision import parts

from htrain.costs.collectives import collectives_of, exchange_of
from htrain.data.partition_file import Facts, read_partition
from htrain.errors import Error
from htrain.executor.engine.context import Context
from htrain.executor.transport.wire import Frame, Values, bundle_of, encode
from htrain.net.names import TRAINER, WORKERS, role_of
from htrain.net.net import Net, Op
from htrain.ops.asked_rows import number, row_width
from htrain.plan.plan import Plan
from htrain.simulation.id_sources import Trace
from htrain.simulation.strategies.gmp import PlaysGmp
from htrain.spec.tree import with_flags

GMP: dict[str, object] = {"gmp_staleness": 100, "gmp_write": "deferred"}
_COUNTS_BYTES = 24  # of a request: how many rows it has of each kind
_GLOO_WORD_BYTES = 48
PACKET_BYTES = 66  # headers of Ethernet, IP and TCP with timestamps
WAYS = ("random", "flat", "by hosts")
Array = np.ndarray


@dataclass(frozen=True)
class Found:
    """One line: EPS; bytes of an example that each worker's link and each uplink carried, both ways, and those that were predicted; rows that a batch needs by
    pair of workers, counted and predicted, and of the latter those that are not read from replicas."""

    eps: float
    links: Array
    predicted_links: Array
    uplinks: Array
    predicted_uplinks: Array
    rows: Array
    predicted_rows: Array
    fetched: Array


def pair_bytes(plan: Plan, packed: str, epochs: int, steps: int) -> Array:
    """bytes[i,j] that worker i sends worker j for an example of the whole cluster: what it asks of j's tables, what it answers j, and its part of AllReduce.

    Rows are those of the workers' own decisions, played over as many `epochs` of the data as the longer run has; of their first `steps`, which the shorter one
    has, too, nothing counts.
    """
    plays = PlaysGmp(plan, Trace(packed, epochs), most_batches=1 << 20)
    rounds = plays.rounds()
    for _ in itertools.islice(rounds, steps):
        pass
    half = [tables.pairs.copy() for tables in plays.tables]
    counted = sum(1 for _ in rounds)
    workers = plan.cluster.groups
    sent = _ring(plan, workers) + _headers(plan, workers)
    for tables, before in zip(plays.tables, half, strict=True):
        pairs = (tables.pairs - before) / max(1, counted) / (workers * plan.options.batch_size)
        asked, answered = _request_bytes(tables.ask), _answer_bytes(tables.ask)
        sent += pairs @ asked + (pairs @ answered).T
    return sent + _COUNTS_BYTES / (workers * plan.options.batch_size) * (1 - np.eye(workers))


def _request_bytes(ask: Op) -> Array:
    """Of a row that is pushed, fetched, checked, and found stale: its key, its clock, its gradient."""
    width = number(ask, "width")
    return np.array([8 + 4 * width, 4, 8, 0])


def _answer_bytes(ask: Op) -> Array:
    """Of the same: the row, and of one that was stale its state, clock and place."""
    width = number(ask, "width")
    state = row_width(width, str(ask.attrs["optimizer"])) - 2 * width
    return np.array([0, 4 * width, 0, 4 * width + 4 * state + 8])


def _ring(plan: Plan, workers: int) -> Array:
    """What an AllReduce sends from each worker to the next, as gloo's ring does, for an example of the whole cluster: two parts of each worker go round twice,
    and before each of them go two words forward, of what comes, and one back, of who is ready."""
    net, batch = plan.step_net(WORKERS), plan.options.batch_size
    assert net is not None
    travels = [exchange_of(op, net, plan.cluster, batch).num_bytes for op in collectives_of(net)]
    transfers = 2 * 2 * (workers - 1) * len(travels)
    following = np.roll(np.eye(workers), 1, axis=1)
    forward = sum(travels) + 2 * _GLOO_WORD_BYTES * transfers
    return (forward * following + _GLOO_WORD_BYTES * transfers * following.T) / (workers * batch)


def _headers(plan: Plan, workers: int) -> Array:
    """What stands before the tensors of messages: each worker has one for each other, and one as an owner, for a batch."""
    num_bytes = sum(
        len(_head(plan.step_net(device), peer)) for device, peer in ((TRAINER, "sparse_ps:0"), ("sparse_ps:0", TRAINER))
    )
    return num_bytes / (workers * plan.options.batch_size) * (1 - np.eye(workers))


def _head(net: Net | None, peer: str) -> Frame:
    """The first frame of the message to a peer, of empty tensors."""
    assert net is not None
    names = [name for op in net.ops if op.type == "Send" and op.attrs["peer"] == peer for name in op.inputs]
    blobs = [net.blob(name) for name in names]
    tensors = [torch.empty((0,) * len(b.shape), dtype=getattr(torch, b.dtype)) for b in blobs]
    values = Values(f"{TRAINER}:0:0", Context(0, 0, 0, 1000), 128)
    return encode(values, bundle_of(names, tensors))[0]


def across(sent: Array, sites: tuple[int, ...]) -> Array:
    """Of each site, the bytes that come to it and leave it."""
    site = np.repeat(np.arange(len(sites)), sites)
    apart = sent * (site[:, None] != site[None, :])
    return np.array([apart[site == k].sum() + apart[:, site == k].sum() for k in range(len(sites))])


def measure(system: System, model: str, data: str, links: Links, asked: argparse.Namespace) -> Found:
    workers = sum(links.sites)
    options = with_flags(batch_size=asked.batch, net_replicas=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan, packed = system.planned(model, data, folder, workers=workers, options=options, sites=links.sites)
        facts = read_partition(folder / "train.partition").facts
        epochs = max(1, round(asked.steps * workers * asked.batch / facts.num_examples))
        short, long = (links.run(plan, packed, folder, epochs=n * epochs, name=f"run{n}") for n in (1, 2))
        steps = epochs * facts.num_examples // (workers * asked.batch)
        sent = pair_bytes(plan, packed, 2 * epochs, steps)
        return _found(facts, long, grown(short, long), epochs * facts.num_examples, sent=sent, sites=links.sites)


def _found(facts: Facts, long: LabRun, more: LabRun, examples: int, *, sent: Array, sites: tuple[int, ...]) -> Found:
    carried = [traffic for role, traffic in more.roles.items() if role_of(role) == TRAINER]
    return Found(
        long.measured.eps,
        np.array([_bytes(c) / examples for c in carried]),
        sent.sum(axis=0) + sent.sum(axis=1),
        np.array([_bytes(c) / examples for c in more.uplinks]),
        across(sent, sites),
        np.array(long.measured.rows),
        np.array(facts.rows),
        np.array(facts.rows) - np.array(facts.replicated),
    )


def _bytes(carried: Traffic) -> int:
    return carried.received + carried.sent - PACKET_BYTES * carried.packets


def print_table(label: str, model: str, data: str, links: Links, asked: argparse.Namespace) -> None:
    workers = sum(links.sites)
    site = np.repeat(np.arange(len(links.sites)), links.sites)
    print(
        f"\n{label}: {workers} workers on hosts of {asked.sites}, links of {links.rate}, {links.between} between; batches of {asked.batch}"
    )
    print(
        f"{'partition':<10}{'EPS':>9}{'bound':>9}{'of random':>11}{'rows of the host':>18}{'of the other':>14}{'uplink B/ex':>13}"
        f"{'predicted':>11}{'worst link':>12}{'worst pair':>12}"
    )
    first = 0.0
    for way in asked.ways.split(","):
        found = measure(System(way, Where(way, asked.replicas), GMP), model, data, links, asked)
        first = first or found.eps
        own = (site[:, None] == site[None, :]) & ~np.eye(workers, dtype=bool)
        inside, outside = (found.fetched[where].sum() / workers for where in (own, site[:, None] != site[None, :]))
        pairs = ~np.eye(workers, dtype=bool)
        off = np.abs(found.rows[pairs] / found.predicted_rows[pairs] - 1).max()
        busiest = found.uplinks.max() / 2  # each way
        links_off = np.concatenate([found.links / found.predicted_links, found.uplinks / found.predicted_uplinks]) - 1
        worst = links_off[np.abs(links_off).argmax()]
        print(
            f"{way:<10}{found.eps:>9,.0f}{bits_per_second(links.between) / 8 / busiest:>9,.0f}{found.eps / first:>10.2f}x{inside:>18.1f}{outside:>14.1f}"
            f"{found.uplinks.max():>13,.1f}{found.predicted_uplinks[found.uplinks.argmax()]:>11,.1f}{worst:>+12.1%}{off:>12.1%}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("sites", "4,4"), ("rate", "1gbit"), ("between", "100mbit"), ("batch", 128), ("steps", 60), ("replicas", 0.01), ("localities", "0.9,0.7"),
        ("examples", 61_440), ("table-rows", 5_000), ("ways", ",".join(WAYS)),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--frappe", type=Path)
    asked = parser.parse_args()
    unwind_when_ended()
    links = Links(asked.rate, tuple(int(n) for n in asked.sites.split(",")), asked.between)
    try:
        for locality in [word for word in asked.localities.split(",") if word]:
            data = f"synthetic:?rows={asked.examples}&table_rows={asked.table_rows}&locality={locality}"
            print_table(
                f"synthetic, locality {locality}", f"{MODELS / 'wide_deep.py'}:build_linear", data, links, asked
            )
        if asked.frappe:
            with tempfile.TemporaryDirectory() as folder:
                train, _ = parts(asked.frappe, Path(folder))
                print_table("Frappe", f"{MODELS / 'wide_deep.py'}:build_narrow", train, links, asked)
    except Error as error:
        print(f"gmp_hosts: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
