"""A role: its parameters, caches and threads, as its plan has them (docs/concepts.md)."""

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from htrain.costs.roles import server_threads
from htrain.data import Malformed, Position, open_data
from htrain.data.labels import is_binary
from htrain.errors import CheckpointError, RunError
from htrain.executor.assembly import NOTHING, Assembly
from htrain.executor.engine.context import first_step
from htrain.executor.engine.gate import WriteGates
from htrain.executor.engine.store import Store
from htrain.executor.host.left import NOTHING_LEFT, Left
from htrain.executor.host.parameter_memory import ParameterMemory
from htrain.executor.host.patience import Patience
from htrain.executor.host.usage import ProcessUsage, ThreadUsage
from htrain.executor.host.watch import Watch
from htrain.executor.launch.earlier import Beginning, Earlier
from htrain.executor.launch.server_processes import ServerProcess
from htrain.executor.loops.feed import Feed
from htrain.executor.loops.members import Members, addresses_in, members_endpoint
from htrain.executor.loops.publisher import Publisher
from htrain.executor.loops.replica import Replica
from htrain.executor.loops.saver import Saver
from htrain.executor.loops.server import Server
from htrain.executor.loops.sync import SyncLoop
from htrain.executor.loops.trainer import Trainer
from htrain.executor.record.checkpoint import read_manifest
from htrain.executor.record.role_file import load_role_into
from htrain.executor.record.sent import SENT_TO, packed
from htrain.executor.record.totals import EXAMPLE
from htrain.executor.roles.endpoints import centre_endpoint
from htrain.executor.settings import RunSettings
from htrain.executor.strategies.strategy import TrainerParts
from htrain.executor.transport.collective import CollectiveLoop, Connector
from htrain.executor.transport.peers import Peers
from htrain.executor.transport.port import Inbox, Network, Outbox, sent_by_role
from htrain.membership.served import Serving
from htrain.net.names import GROUP_PS, TRAINER, WORKERS, Role, device_of, number_of, role_of
from htrain.plan.plan import Plan


def assembled(
    name: str, plan: Plan, settings: RunSettings, *, shared: bool = False, kept: ParameterMemory | None = None
) -> Assembly:
    """The parts of a role, as a run has them; in memory that is `shared` with the processes that this one forks, or `kept` for the next process of the role."""
    mapped = settings.run_folder / "tables" if plan.options.sparse_sync.store == "mapped" else None
    replicas = 1 if settings.deterministic else plan.options.net_replicas
    return Assembly(plan, name, replicas=replicas, mapped=mapped, shared=shared, kept=kept)


class RunningRole:
    """One role: its parameters, its threads, and its answers to the launcher's orders. `parts` are those that the further `processes` of a PS share with it;
    a role without such makes its own.

    `on_change` is called, by any thread, whenever `quiet`, `finished`, `error` or `reader_error` may say something else.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        settings: RunSettings,
        network: Network,
        on_change: Callable[[], None] = lambda: None,
        parts: Assembly | None = None,
        processes: Sequence[ServerProcess] = (),
        left: Left = NOTHING_LEFT,
    ) -> None:
        self.name = name
        self.plan = plan
        self.settings = settings
        self.device = device_of(name)
        self.store: Store = {}
        self.caches: dict[str, Any] = {}
        self.trainer: Trainer | None = None
        self.server: Server | None = None
        self.sync: SyncLoop | None = None
        self.centres: Server | None = None  # of a group's share of the centres
        self.collective: CollectiveLoop | None = None
        self._publisher: Publisher | None = None
        self.members: Members | None = None  # workers from outside, in the place of trainers
        self.malformed = Malformed(settings.malformed_share)
        self.patience = Patience(settings.deadline_seconds, settings.warm_up_seconds)
        self.watch = Watch(self.patience)
        self._main = self.watch.activity("main")
        self._network = network
        self._on_change = on_change
        self._connector: Connector | None = None
        self._parts = parts or assembled(name, plan, settings, kept=left.kept)
        self._processes = processes
        self._journal = left.journal
        self.store, self.caches, self._cache = self._parts.store, self._parts.caches, self._parts.cache_half
        self._neighbours: dict[str, dict[str, Any]] = network.shared("caches", dict)
        self._neighbours[name] = self.caches
        self._meeting: dict[str, str] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._outboxes: list[Outbox] = []  # with these, the ways of look-ahead caches to the tables
        # A fork of the caller's own process waits for what other libraries do around one: OpenBLAS for its threads, for ever where one multiplies.
        apart = self._parts.is_private and network.scheme != "inproc"
        self._saver = Saver(
            name, lambda: {**self.store, **self._parts.row_numbers()}, on_change, apart=apart, marks=self._parts.marks
        )  # fmt: skip
        self._usage = ThreadUsage(self._threads, self.store.values) if network.is_shared else ProcessUsage()
        self._build()

    def _build(self) -> None:
        """Put the machines behind threads, and open the endpoints. Raises RunError where what is asked for cannot be had."""
        parts, options, settings = self._parts, self.plan.options, self.settings
        held = parts.sync_half.holds_writes
        if settings.serving:
            self.members = self._make_members(settings.serving)
        elif role_of(self.name) == TRAINER:
            if settings.deterministic and self._cache.device != "cpu":
                raise RunError(
                    "--deterministic: a CUDA device sums gradients in the order in which its threads come: leave it out, or compile with --cache-device cpu"
                )
            self.collective = self._make_collective()
            self.trainer = Trainer(
                self.name, self._network, engine=parts.engine, replicas=parts.replicas, bound=parts.bound,
                prefetch=options.looks_ahead and not settings.deterministic, patience=self.patience, watch=self.watch,
                flush=parts.engine_of(self.plan.flush_net() or NOTHING), collective=self.collective, ahead=self._cache.announced,
                journal=self._journal, first_step=first_step(self._own.get("incarnation", 0)),
            )  # fmt: skip
            self._inboxes = {number: self._network.inbox(f"{self.name}/{number}") for number in self._cache.endpoints}
        else:
            workers = (
                server_threads(self.device, self.plan.cluster, options, settings.workers) if parts.has_steps else 1
            )
            self.server = Server(
                self.name,
                self._network,
                parts.server(),
                workers=workers,
                watch=self.watch,
                is_held=held and parts.has_steps,
            )
        steps = self.trainer or self.server
        if steps:
            steps.on_step = self._stepped
        if steps and (machine := parts.sync()):
            self.sync = SyncLoop(
                machine, self._network, held=steps if held else None, patience=self.patience, activity=self.watch.activity("sync"),
            )  # fmt: skip
            if parts.hosts_centres:
                endpoint = centre_endpoint(parts.host, self.name)
                self.centres = Server(endpoint, self._network, parts.centres(), workers=1, watch=self.watch)
        for part in (*self._processes, *self._threaded):
            part.on_change = self._on_change

    def _make_members(self, serving: Serving) -> Members:
        """What serves workers from outside with this sparse PS's rows."""
        server = number_of(self.device)
        caches = serving.served.at(server)
        return Members(server, serving, [self.caches[cache.slots[cache.devices.index(server)]] for cache in caches])

    def _make_collective(self) -> CollectiveLoop | None:
        """The trainer's place among all trainers, where they step together."""
        net = self.plan.step_net(WORKERS)
        if net is None:
            return None
        trainers = [role for role in self.plan.cluster.roles if role_of(role) == TRAINER]
        self._connector = Connector(self.name, trainers, self._network, self.settings.deadline_seconds)
        self._meeting = dict(self._connector.endpoints)
        return CollectiveLoop(self.name, self._network, net, self._connector)

    def _further_endpoints(self) -> dict[str, str]:
        """Those of the further processes. Raises what went wrong with them."""
        return {each.endpoint: each.address(self.settings.warm_up_seconds) for each in self._processes}

    @property
    def endpoints(self) -> dict[str, str]:
        """The address of each of the role's endpoints, by name. Raises what went wrong with its further processes."""
        inboxes = [
            *(self.trainer.inboxes if self.trainer else ()),
            *(part.inbox for part in (self.server, self.centres) if part),
            *([self.sync.inbox] if self.sync else ()),
            *([self.collective.inbox] if self.collective else ()),
            *self._inboxes.values(),
        ]
        own = {inbox.name: inbox.address for inbox in inboxes} | self._meeting | self._further_endpoints()
        return own | ({members_endpoint(self.members.server): self.members.address} if self.members else {})

    def fill(self) -> None:
        """First values for every parameter, or those of a checkpoint. Raises PlanError, CheckpointError."""
        with self._main.at("loading", num_bytes=self._num_bytes):
            self._fill()

    def _fill(self) -> None:
        self._restore_totals()
        kept = self._parts.kept
        if kept and kept.is_filled:  # by a process of this role before
            return
        self._fill_anew()
        if kept:
            kept.fill()

    def _fill_anew(self) -> None:
        if self.settings.restore and not all(self.settings.begin_with):
            self._load(Path(self.settings.restore))
            return
        self._parts.fill(self.settings.plan_folder)
        if all(self.settings.begin_with):
            earlier = Earlier(
                Beginning(*self.settings.begin_with),
                tables_only=self.settings.serving is not None,
                wholes=self._parts.wholes,
            )
            self._parts.copy_from(earlier)

    def _load(self, folder: Path) -> None:
        """The parameters of a checkpoint of this run. Raises CheckpointError."""
        numbers = self._parts.row_numbers()
        seen = {name: torch.empty_like(rows) for name, rows in numbers.items()}
        manifest = read_manifest(folder)
        load_role_into(folder, self.name, manifest, {**self.store, **seen})
        for name, rows in numbers.items():
            if not torch.equal(rows, seen[name]):
                raise CheckpointError(
                    f"{folder}: '{name}' are other rows than those of the plan's partition: resume with the partition of the run"
                )

    def start(self, book: dict[str, str], feed: Feed | None = None) -> None:
        """Begin to work. `book` has the addresses of all endpoints that are sent to, by name; a trainer trains on `feed`, or on its share of the run's data.

        Requires: `fill`. Raises DataError where a trainer cannot open its data.
        """
        self._cache.stand_beside(self.caches, self._neighbours)
        for server in (self.server, self.centres):
            if server:
                server.start(book)
        for process in self._processes:
            process.serve(book)
        if self.trainer:
            upcoming = self._cache.upcoming(self._parts_for_cache(book))
            self.trainer.start(book, feed or self._open_feed(), self.settings.stop_after_steps, upcoming)
        if self.sync:
            self.sync.start(book)
        if self.collective:
            self.collective.start(book)
        if self.members and self.settings.serving:
            self.members.start(addresses_in(book, self.settings.serving.served.num_servers))

    @property
    def _own(self) -> Mapping[str, Any]:
        """From where this trainer is to go on; nothing at the beginning of its data."""
        return self.settings.positions.get(self.name, {})

    def _open_feed(self) -> Feed:
        """This trainer's share of the data, from where it is to go on."""
        cluster = self.plan.cluster
        group, number = Role.parse(self.name).place
        shard, shards = group * cluster.trainers + number, cluster.groups * cluster.trainers
        own = self._own
        start = Position.from_dict(own["position"]) if "position" in own else Position(0, 0, 0)
        trained = [Position.from_dict(position) for position in own.get("trained", ())]
        batches = (
            open_data(self.settings.data, self.settings.extent)
            .for_loss(self.plan.options.loss)
            .batches(
                batch_size=self.plan.options.batch_size,
                shard=shard,
                num_shards=shards,
                epochs=self.settings.epochs,
                start=start,
                malformed=self.malformed,
                left=self.settings.left,
            )
        )
        return Feed(
            batches,
            start,
            2 * self._parts.replicas,
            self.watch.activity("reader"),
            trained,
            keeps=self._journal is not None,
        )

    def _parts_for_cache(self, book: dict[str, str]) -> TrainerParts:
        """What this trainer's cache may use of it: its net and caches, and ways to the tables and to other trainers."""

        def replica_of(number: int) -> Replica:
            outbox = self._network.outbox(book)
            self._outboxes.append(outbox)
            gates: WriteGates[int] = WriteGates(0, 0)
            return Replica(
                number, self._parts.apart, gates,
                inbox=self._inboxes[number], outbox=outbox, patience=self.patience, activity=self.watch.activity(f"replica {number}"),
            )  # fmt: skip

        def connect(purpose: str) -> Peers:
            return Peers(self._connector(book, purpose) if self._connector and self.plan.cluster.groups > 1 else None)

        return TrainerParts(
            self.plan.net_of(self.device),
            self._parts.apart,
            self.caches,
            replica_of=replica_of,
            connect=connect,
            patience=self.patience,
            activity=self.watch.activity,
        )

    def lost(self, role: str, incarnation: int) -> None:
        """A role is gone, and will be begun again as this incarnation: nobody waits for it, and who waits for what it was to do waits from now on."""
        self._network.lost(role)
        self.patience.renew()
        if self.server and role_of(role) == TRAINER:
            self.server.forget(*Role.parse(role).place, incarnation)

    def found(self, role: str, book: dict[str, str]) -> None:
        """It has been begun again, with its endpoints at these addresses."""
        self._network.found(role, book)
        if self.server and role_of(role) == GROUP_PS:
            self.server.comes_back(role)

    def pause(self) -> None:
        """Begin no more steps or rounds; `quiet` says when those under way have ended."""
        if self.trainer:
            self.trainer.pause()
        if self.sync:
            self.sync.pause()
        if self.members:
            self.members.pause()

    def resume(self) -> None:
        """Begin steps and rounds again."""
        if self.trainer:
            self.trainer.resume()
        if self.sync:
            self.sync.resume()
        if self.members:
            self.members.resume()

    @property
    def quiet(self) -> bool:
        """Whether a paused role has no step and no round under way. A role that begins neither is always quiet."""
        return all(part.quiet for part in (self.trainer, self.sync) if part)

    @property
    def finished(self) -> bool:
        """Whether a trainer has trained all data, or all that could be read; False for other roles."""
        return self.trainer is not None and self.trainer.finished

    @property
    def reader_error(self) -> Exception | None:
        """Why a trainer cannot read on."""
        return self.trainer.reader_error if self.trainer else None

    @property
    def error(self) -> Exception | None:
        """What has gone wrong in one of the role's threads or further processes; None while nothing has."""
        return next((part.error for part in (*self._processes, *self._threaded) if part.error), None)

    @property
    def _threaded(self) -> Sequence[Trainer | Server | SyncLoop | CollectiveLoop | Members]:
        """What has threads."""
        parts = (self.trainer, self.server, self.centres, self.sync, self.collective, self.members)
        return [part for part in parts if part]

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of a trainer besides parameters; nothing of other roles."""
        return self.trainer.state() if self.trainer else {}

    def save(self, folder: Path, last: str) -> None:
        """Begin to write the role's parameters as they are now, whole or on top of the checkpoint `last`; `saved` tells of it. Requires: nothing is under way,
        and it has told of the one before."""
        with self._main.at("saving", num_bytes=self._num_bytes):
            self._saver.begin(folder, last)

    def saved(self) -> dict[str, Any]:
        """What has been written for a checkpoint, or that the disk has refused it, under "saved", once; nothing before that."""
        return self._saver.news()

    @property
    def _num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.store.values())

    def publish(self, version: str, base: str) -> None:
        """Begin to write what the role has of a version of the model; `published` tells of it. Requires: it is at rest, and has told of the one before."""
        assert self.settings.publishing
        if self._publisher is None:
            self._publisher = Publisher(
                self.name, self.settings.publishing, self.store, self._parts.row_numbers(), self._on_change
            )
        self._publisher.begin(version, base)

    def published(self) -> dict[str, Any]:
        """What has been written of a version, or went wrong with it, once; nothing before that."""
        return self._publisher.news() if self._publisher else {}

    def _restore_totals(self) -> None:
        """A resumed trainer counts on from where its checkpoint was."""
        if self.trainer:
            for name, value in self._own.get("totals", {}).items():
                setattr(self.trainer.totals, name, value)

    def _stepped(self, steps: int) -> None:
        """The role has done so many steps in all; called by any of its threads, after each of this run."""
        self.patience.warm()
        if self.sync:
            self.sync.steps_done(steps)

    def _threads(self) -> Iterable[threading.Thread]:
        threads = [thread for part in self._threaded for thread in part.threads]
        return [*threads, *self._saver.threads, *(self._publisher.threads if self._publisher else ())]

    def metrics(self) -> dict[str, Any]:
        """What the role has measured since it started."""
        worker = self.trainer or self.server
        sent_to = dict(worker.sent_to) if worker else {}
        further = [process.report() for process in self._processes]
        beside = [part.sent_to for part in (self.sync, self.centres) if part] + [sent_by_role(self._outboxes)]
        beside += [report.sent_to for report in further]
        for peer, num_bytes in [pair for sent in beside for pair in sent.items()]:
            sent_to[peer] = sent_to.get(peer, 0) + num_bytes
        sent_to.pop(self.name, None)  # between threads of this role
        caches = self._cache.report(self.caches.values()) | dict(self.trainer.upcoming_report if self.trainer else {})
        measured: dict[str, Any] = {
            "cpu_seconds": self._usage.cpu_seconds()
            + self._saver.cpu_seconds
            + sum(report.cpu_seconds for report in further),
            "memory_bytes": self._usage.memory_bytes() + sum(report.memory_bytes for report in further),
            "bytes_sent": sum(sent_to.values()),
            SENT_TO: packed(sent_to),
            "staleness": {str(k): v for k, v in dict(worker.staleness).items()} if worker else {},
            "sync_rounds": self.sync.rounds_done if self.sync else 0,
            **({"passes": self.server.passes_done} if self.server else {}),
            **({"caches": caches} if caches else {}),
            **({"bytes_reduced": self.collective.bytes_reduced} if self.collective else {}),
            **({"members": self.members.report()} if self.members else {}),
        }
        strangers = self._network.strangers(self.name) + sum(report.strangers for report in further)
        if strangers:
            measured["strangers"] = strangers
        if self.trainer:
            totals, has_ne = self.trainer.totals, is_binary(self.plan.options.loss)
            measured |= {
                **({"repeated": self._own.get("open", 0)} if "incarnation" in self._own else {}),
                "examples": totals.examples,
                "steps": totals.steps,
                "log_loss": totals.log_loss,
                "positives": totals.positives if has_ne else math.nan,
                "seconds_waited": self.trainer.seconds_waited,
                "malformed": self.malformed.count,
                **({EXAMPLE: self.malformed.example} if self.malformed.example else {}),
            }
        return measured

    def stop(self) -> None:
        """End all threads and further processes; what has arrived and is not served yet is dropped."""
        self._saver.stop()
        for process in self._processes:
            process.stop()
        for part in (self.sync, self.trainer, self.server, self.centres, self.collective, self.members):
            if part:
                part.stop()
        for inbox in self._inboxes.values() if not self._outboxes else ():  # else the threads that use them close them
            inbox.close()
