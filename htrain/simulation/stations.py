"""What a step, or a round of the background sync, asks of the stations of a plan: the places at which contexts wait for each other.

A role has five: Python's lock, its cores (or those of the host that all roles share), the thread that moves bytes to and from sockets, and its link
each way. Each process of a role has a lock and such a thread of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from htrain.net.names import TRAINER, WORKERS, device_at
from htrain.simulation.collective import Reduction
from htrain.simulation.costs import DeviceModel, Packet
from htrain.simulation.network import pieces_of
from htrain.spec.cluster import Cluster

LOCK, CORES, MOVER, IN, OUT = "lock", "cores", "mover", "in", "out"
HOST = "host"  # what stands for a device where the cores are those of all roles
Key = tuple[str, str]  # a device, and which of its stations


@dataclass
class Visits:
    """How often a station is asked, for how many seconds in all, and the sum of their squares."""

    count: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0

    def add(self, seconds: float, times: float = 1.0) -> None:
        """`times` visits of so long each."""
        if seconds > 0:
            self.count += times
            self.seconds += times * seconds
            self.squares += times * seconds**2

    def take(self, other: "Visits", times: float) -> None:
        """`times` what another asks."""
        self.count += times * other.count
        self.seconds += times * other.seconds
        self.squares += times * other.squares


def visits_of(
    models: Iterable[tuple[str, DeviceModel]], cluster: Cluster, reductions: Sequence[Reduction] = ()
) -> dict[Key, Visits]:
    """What one run of each of `models`, on its device, and of the `reductions` of trainers, asks of each station."""
    found: dict[Key, Visits] = {}
    for device, kind, seconds, times in chain(_asked(models, cluster), _reduced(reductions, cluster)):
        key = (HOST, CORES) if kind == CORES and cluster.shared_cores else (device, kind)
        found.setdefault(key, Visits()).add(seconds, times)
    return found


def servers_of(key: Key, cluster: Cluster) -> int:
    """How many a station serves at once."""
    device, kind = key
    if kind in (LOCK, MOVER):
        return cluster.processes_of(device)
    return 1 if kind != CORES else cluster.shared_cores or cluster.cores_of(device)


def _asked(models: Iterable[tuple[str, DeviceModel]], cluster: Cluster) -> Iterator[tuple[str, str, float, float]]:
    """Device, kind of station, seconds of a visit, how many such visits."""
    for device, model in models:
        for work in (work for works in model.works for work in works):
            locked = work.locked_seconds + sum(packet.locked_seconds for packet in work.packets)
            yield device, LOCK, locked, 1
            yield device, CORES, locked + work.free_seconds, 1
            for packet in work.packets:
                if packet.peer != WORKERS:
                    yield from _sent(device, packet, cluster)
                else:
                    yield device, LOCK, packet.locked_seconds, 1
                    yield device, CORES, packet.locked_seconds, 1


def _reduced(reductions: Sequence[Reduction], cluster: Cluster) -> Iterator[tuple[str, str, float, float]]:
    """What collectives, and the messages with their results, ask of a trainer."""
    for each in reductions:
        exchange, ends = each.exchange, 2  # who sends a result and who receives it
        yield TRAINER, LOCK, exchange.locked_seconds, 1
        yield TRAINER, CORES, exchange.locked_seconds + exchange.free_seconds, 1
        yield TRAINER, LOCK, each.answer.locked_seconds, ends
        yield TRAINER, CORES, each.answer.locked_seconds, ends
        count, piece = pieces_of(exchange.num_bytes) if exchange.num_bytes else (0, 0.0)
        for way in (IN, OUT):
            yield TRAINER, way, piece / cluster.bandwidth_of(TRAINER), count


def _sent(source: str, packet: Packet, cluster: Cluster) -> Iterator[tuple[str, str, float, float]]:
    """What a message asks of both ends; its sender's time under the lock is in the work that made it."""
    target = device_at(packet.peer, source)
    share = (
        1 - 1 / cluster.groups if target == source else 1.0
    )  # from group to group; those within one are messages between its threads
    count, piece = pieces_of(packet.num_bytes)
    for device, way in ((source, OUT), (target, IN)):
        yield device, MOVER, packet.transport_seconds, share
        yield device, CORES, packet.transport_seconds, share
        yield device, way, piece / cluster.bandwidth_of(device), count * share
    yield target, LOCK, packet.locked_seconds, 1
    yield target, CORES, packet.locked_seconds, 1
