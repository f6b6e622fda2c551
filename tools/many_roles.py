"""What a thousand roles ask of their launcher: its share of a core, and bytes on the wire, in the run folder and in its memory.

    python tools/many_roles.py --roles 1000 [--seconds 30] [--checkpoints 2]     # roles that are played
    python tools/many_roles.py --threads 200 [--seconds 30]                       # roles that train, as threads of one process

Played roles say what roles say, over connections of their own, in other processes: hello, a sign of life with what they have measured as often as roles do, and
answers to orders. A trainer has sent to all sparse PSs and its group, and each of these to all trainers, so that reports are as long as they get. The
launcher is the product's: its machine, its connections, its log. With threads, all of a run is the product's, and the launcher is two of its threads.
"""

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from small_dlrm import small_plan

import htrain
from htrain.data.identity import DataIdentity
from htrain.errors import Error
from htrain.executor.launch.coordinator import Coordinator, Outside
from htrain.executor.launch.interrupt import Interrupt
from htrain.executor.launch.pulse import beat_seconds
from htrain.executor.record.identity import Identity, PlanIdentity
from htrain.executor.record.run_folder import Claim, claimed
from htrain.executor.record.run_log import RunLog
from htrain.executor.record.sent import SENT_TO, packed
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import LAUNCHER
from htrain.executor.transport.port import Inbox, Network, Outbox
from htrain.executor.transport.wire import Addresses, Beat, Hello, Message, Order, Ready, State, encode
from htrain.net.names import GROUP_PS, SPARSE_PS, TRAINER, Role, role_of
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

_LOOK_SECONDS = 0.01
_EXAMPLES_A_BEAT = 2048
_PROCESSES = 4
_WARM_SECONDS = 5.0


def plan_of(roles: int) -> Plan:
    """A plan of so many roles: of five, two are trainers, two group PSs and one a sparse PS; groups of four trainers."""
    groups = max(1, roles // 10)
    return small_plan(groups=groups, trainers=4, group_ps=4, sparse_ps=max(2, roles - 8 * groups - 1))


@dataclass
class Played:
    """One role, as its launcher sees it."""

    name: str
    peers: Sequence[str]
    control: Inbox
    pulse: Inbox
    outbox: Outbox
    every: float
    number: int = 0
    said: int = 0
    beats: int = 0
    is_ready: bool = False
    is_over: bool = False
    bytes_out: int = 0
    bytes_in: int = 0
    bytes_of_book: int = 0
    due: float = 0.0
    _sent: dict[str, int] = field(default_factory=dict)

    def tell(self, message: Message) -> None:
        """Say something that must come."""
        self.bytes_out += len(encode(message)[0])
        self.outbox.send(LAUNCHER, message)

    def state(self, state: str, details: Mapping[str, Any], number: int) -> None:
        """Answer an order, or tell by itself."""
        self.said += 1
        self.tell(State(self.name, state, dict(details), number, self.said))

    def metrics(self) -> dict[str, Any]:
        """What a role of its kind would have measured by now."""
        self._sent = {peer: self._sent.get(peer, 0) + 65_000 for peer in self.peers}
        measured = {
            "cpu_seconds": 0.4 * self.beats, "memory_bytes": 1 << 30, "bytes_sent": sum(self._sent.values()), SENT_TO: packed(self._sent),
            "staleness": {"0": 10 * self.beats, "1": 3 * self.beats, "2": self.beats}, "sync_rounds": 0,
        }  # fmt: skip
        if role_of(self.name) == TRAINER:
            measured |= {
                "examples": _EXAMPLES_A_BEAT * self.beats, "steps": 4 * self.beats, "log_loss": 1000.0 * self.beats, "positives": 500.0 * self.beats,
                "seconds_waited": 0.05 * self.beats, "malformed": 0,
            }  # fmt: skip
        return measured

    def position(self) -> dict[str, Any]:
        """What a trainer says of itself when it is at rest."""
        if role_of(self.name) != TRAINER:
            return {}
        totals = {"examples": _EXAMPLES_A_BEAT * self.beats, "steps": 4 * self.beats, "log_loss": 1.0, "positives": 1.0}
        return {"position": {"epoch": 0, "chunk": self.beats, "row": 0}, "totals": totals}

    def look(self, now: float) -> None:
        """Take what has come, and beat where that is due."""
        while got := self.control.receive(0):
            message = got[0]
            self.bytes_in += len(encode(message)[0])
            if isinstance(message, Addresses):
                self.is_ready, self.bytes_of_book = True, len(encode(message)[0])
                self.tell(Ready(self.name, self.metrics()))
            elif isinstance(message, Order):
                self.number += 1
                self._obey(message)
        while got := self.pulse.receive(0):
            self.bytes_in += len(encode(got[0])[0])
        if self.is_ready and now >= self.due and not self.is_over:
            self.due, self.beats = now + self.every, self.beats + 1
            beat = Beat(self.name, self.metrics(), self.said, self.number)
            self.bytes_out += len(encode(beat)[0])
            self.outbox.offer(LAUNCHER, beat)

    def _obey(self, order: Order) -> None:
        if order.verb == "pause":
            self.state("paused", self.position(), order.number)
        elif order.verb == "save":
            self.state("saving", {}, order.number)
            self.state("saved", {"saved": {}}, order.number)
        elif order.verb in ("stop", "abort"):
            self.is_over = True


def play(
    names: Sequence[str], peers: Mapping[str, Sequence[str]], launcher: str, token: bytes, every: float, found: Any
) -> None:
    """Play these roles until all are told to end; puts how many bytes they have said and heard, and for how long."""
    network = Network("tcp", token=token)
    roles = []
    for name in names:
        control, pulse = network.inbox(f"{name}/control"), network.inbox(f"{name}/pulse")
        role = Played(name, peers[name], control, pulse, network.outbox({LAUNCHER: launcher}), every)
        own = {each.name: each.address for each in (control, pulse)}
        role.tell(Hello(name, {**own, **dict.fromkeys(endpoints_of(name), control.address)}, "here", os.getpid()))
        roles.append(role)
    began = 0.0
    while not all(role.is_over for role in roles):
        now = time.monotonic()
        for role in roles:
            role.look(now)
        if not began and all(role.is_ready for role in roles):
            began = now
            for role in roles:
                role.bytes_out = role.bytes_in = 0
        time.sleep(max(0.0, _LOOK_SECONDS - (time.monotonic() - now)))
    seconds = time.monotonic() - began
    books = [role.bytes_of_book for role in roles]
    found.put((sum(role.bytes_out for role in roles), sum(role.bytes_in for role in roles), seconds, books))
    network.close()


def endpoints_of(role: str) -> list[str]:
    """Where others would send to: both replicas of a trainer, a server and its rounds."""
    return [f"{role}/0", f"{role}/1"] if role_of(role) == TRAINER else [role, f"{role}/sync"]


def peers_of(plan: Plan) -> dict[str, list[str]]:
    """To whom each role sends."""
    roles = plan.cluster.roles
    trainers = [each for each in roles if role_of(each) == TRAINER]
    servers = [each for each in roles if role_of(each) == SPARSE_PS]
    found: dict[str, list[str]] = {}
    for name in roles:
        kind, group = role_of(name), Role.parse(name).group
        near = [each for each in roles if role_of(each) in (GROUP_PS, TRAINER) and Role.parse(each).group == group]
        own = [each for each in near if role_of(each) == (GROUP_PS if kind == TRAINER else TRAINER)]
        found[name] = trainers if kind == SPARSE_PS else own + (servers if kind == TRAINER else [])
    return found


class Elsewhere:
    """Roles in processes of the tool's."""

    descriptors: Sequence[int] = ()

    def can_begin_again(self, role: str) -> bool:
        """None."""
        return False

    def begin_again(self, role: str, checkpoint: str) -> None:
        """Is not asked for."""

    def lost(self) -> str:
        """Nothing is known of them."""
        return ""

    def leaving(self) -> str:
        """Nor whether any would leave."""
        return ""

    def lives(self, role: str) -> bool:
        """Nor this."""
        return True

    def end(self) -> None:
        """They end by themselves."""

    abandon = kill = end


@dataclass
class Share:
    """CPU seconds of a process or of threads, and the time, when measuring began."""

    cpu: float = 0.0
    at: float = 0.0
    memory: int = 0
    files: int = 0


def log_of(run: Path) -> Path:
    """What a run has written of itself."""
    return run / "metrics.jsonl"


def measured(plan: Plan, seconds: float, checkpoints: int, scratch: Path) -> None:
    """Run a launcher with played roles for so long, and print what it took."""
    with claimed(scratch / "run") as claim:
        _measured(plan, seconds, checkpoints, scratch, claim)


def _measured(plan: Plan, seconds: float, checkpoints: int, scratch: Path, claim: Claim) -> None:
    token, interrupt = os.urandom(16), Interrupt()
    settings = RunSettings(
        scratch / "plan", "synthetic:", scratch / "run", deadline_seconds=120.0, liveness_seconds=60.0,
        checkpoint_seconds=seconds / (checkpoints + 1) if checkpoints else "end",
    )  # fmt: skip
    news: list[str] = []
    log, began, usage = RunLog(settings.run_folder, news.append), Share(), psutil.Process()

    def on_totals(totals: Any, reports: Any) -> None:
        if totals.seconds > _WARM_SECONDS and not began.at:
            began.cpu, began.at = sum(usage.cpu_times()[:2]), time.monotonic()
        log.write(totals, reports)
        if began.at and time.monotonic() > began.at + seconds:
            began.memory, began.files = usage.memory_info().rss >> 20, usage.num_fds()
            interrupt.ask()

    identity = Identity(PlanIdentity.of(plan), DataIdentity(1, "synthetic", {}, ()))
    network = Network("tcp", token=token)
    coordinator = Coordinator(plan, network, settings, identity, Outside(interrupt, on_totals, news.append, claim))
    names, peers = plan.cluster.roles, peers_of(plan)
    context = multiprocessing.get_context("spawn")
    found: Any = context.Queue()
    parts = [names[first::_PROCESSES] for first in range(_PROCESSES)]
    players = [
        context.Process(
            target=play,
            args=(
                part,
                peers,
                coordinator.place.address,
                token,
                beat_seconds(len(names), settings.liveness_seconds),
                found,
            ),
        )
        for part in parts
        if part
    ]
    for player in players:
        player.start()
    try:
        coordinator.run(Elsewhere())
    except Error as error:
        news.append(str(error))
    cpu, wall = sum(usage.cpu_times()[:2]) - began.cpu, time.monotonic() - began.at
    said = [found.get(timeout=30) for _ in players]
    for player in players:
        player.join(10)
    log.close()
    out, into = (sum(each[place] / each[2] for each in said) / 1e6 for place in (0, 1))
    gigabytes = log_of(settings.run_folder).stat().st_size * 3.6 / wall / 1e6
    stood = "; ".join(line.partition("(")[2].rstrip(")") for line in news if "stood still" in line)
    print(
        f"{len(names)} roles, {wall:.0f} s: launcher {100 * cpu / wall:.1f} % of a core, {began.memory} MiB, {began.files} files"
    )
    print(f"    it hears {out:.2f} MB/s, says {into:.3f} MB/s, and writes {gigabytes:.2f} GB/h of metrics")
    print(f"    checkpoints: {stood or 'none'}")
    books = [book for each in said for book in each[3]]
    print(f"    address books: {sum(books) / 1e6:.1f} MB in all, the largest {max(books) / 1e3:.0f} kB")
    network.close()


def trained(roles: int, seconds: float, scratch: Path) -> None:
    """A run of so many roles as threads of this process, and what its launcher took of it."""
    groups = max(1, roles // 10)
    cluster = this_machine(groups=groups, trainers=4, group_ps=4, sparse_ps=max(2, roles - 8 * groups - 1), dense_ps=1)
    data = "synthetic:?rows=100000000&table_rows=1000"
    model = str(Path(__file__).parents[1] / "models" / "dlrm.py")
    htrain.compile(model, data=data, cluster=cluster, options=with_flags(batch_size=64)).save(scratch / "plan")
    threading.Thread(target=_watch, args=(seconds, scratch, len(cluster.roles)), daemon=True).start()
    try:
        htrain.run(scratch / "plan", data=data, out=scratch / "run", hosting="threads", console=Console(quiet=True))
    except (KeyboardInterrupt, Error) as error:
        print(f"    ended: {error or 'as it was asked to'}")


def _watch(seconds: float, scratch: Path, roles: int) -> None:
    """Measure the launcher's threads once the run trains, and then end it."""
    log = log_of(scratch / "run")
    while not log.exists() or not re.search(r'"role": "run", .*"examples": [1-9]', log.read_text()):
        time.sleep(0.5)
    own = {
        thread.native_id
        for thread in threading.enumerate()
        if thread.name == "MainThread" or thread.name.startswith("launcher")
    }
    usage = psutil.Process()
    taken = lambda: sum(t.user_time + t.system_time for t in usage.threads() if t.id in own)  # noqa: E731
    before, size, at = taken(), log.stat().st_size, time.monotonic()
    time.sleep(seconds)
    wall, gigabytes = time.monotonic() - at, (log.stat().st_size - size) * 3.6 / seconds / 1e6
    print(
        f"{roles} roles as threads, {wall:.0f} s: launcher {100 * (taken() - before) / wall:.1f} % of a core, {gigabytes:.2f} GB/h of metrics, "
        f"{usage.num_fds()} files, {usage.num_threads()} threads"
    )
    os.kill(os.getpid(), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--roles", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="roles that train, as threads")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--checkpoints", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if asked.roles:
            measured(plan_of(asked.roles), asked.seconds, asked.checkpoints, Path(scratch))
        if asked.threads:
            (Path(scratch) / "threads").mkdir()
            trained(asked.threads, asked.seconds, Path(scratch) / "threads")


if __name__ == "__main__":
    main()
