"""A role: its parameters, caches and threads, as its plan has them (docs/concepts.md)."""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from htrain.costs.roles import server_threads
from htrain.data import Malformed, Position, open_data
from htrain.errors import CheckpointError
from htrain.executor.engine.engine import Engine
from htrain.executor.engine.gate import WriteGates
from htrain.executor.engine.program import build_program
from htrain.executor.engine.store import Store, allocate, fill
from htrain.executor.host.accelerator import accelerator_of
from htrain.executor.host.patience import Patience
from htrain.executor.host.usage import ProcessUsage, ThreadUsage
from htrain.executor.host.watch import Watch
from htrain.executor.loops.feed import Feed
from htrain.executor.loops.replica import Replica
from htrain.executor.loops.server import Server
from htrain.executor.loops.sync import SyncLoop
from htrain.executor.loops.trainer import Trainer
from htrain.executor.record.checkpoint import load_role_into, read_manifest, save_role
from htrain.executor.roles.endpoints import centre_endpoint, holder_number, sync_endpoint
from htrain.executor.roles.server import Centre
from htrain.executor.roles.sync import SyncMachine
from htrain.executor.settings import RunSettings
from htrain.executor.strategies.strategy import TrainerParts, cache_of, sync_of
from htrain.executor.transport.collective import CollectiveLoop, Connector
from htrain.executor.transport.peers import Peers
from htrain.executor.transport.port import Inbox, Network, Outbox, sent_by_role
from htrain.net.names import net_name
from htrain.net.net import Net
from htrain.ops.collective import WORKERS
from htrain.plan.plan import Plan
from htrain.spec.centres import EACH, GROUP, centre_net, device_at
from htrain.spec.cluster import device_of, role_of

_NOTHING = Net("", (), (), outputs=(), blobs={}, parameters={})


class Role:
    """One role: its parameters, its threads, and its answers to the launcher's orders."""

    def __init__(self, name: str, plan: Plan, settings: RunSettings, network: Network) -> None:
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
        self.malformed = Malformed(settings.malformed_share)
        self.patience = Patience(settings.deadline_seconds, settings.warm_up_seconds)
        self.watch = Watch(self.patience)
        self._main = self.watch.activity("main")
        self._network = network
        self._connector: Connector | None = None
        self._sync, self._cache = sync_of(plan, name), cache_of(plan, name)
        self._accelerator = accelerator_of(name, self._cache.device)
        self._meeting: dict[str, str] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._outboxes: list[Outbox] = []  # with these, the ways of look-ahead caches to the tables
        self._steps_before = 0  # those of the runs that this one goes on from
        self._usage = ThreadUsage(self._threads, self.store.values) if network.scheme == "inproc" else ProcessUsage()
        self._build()

    def _build(self) -> None:
        """Make the programs over uninitialised parameters, and open the endpoints."""
        kind = role_of(self.name)
        options, settings = self.plan.options, self.settings
        if kind == "dense_ps":
            self.server = self._server_of_centres(self.name, self.name)
            return
        step_net, apart_net = self._cache.split(self.plan.net_of(self.device))
        engine, self._apart = self._engine(self._accelerator.net_of(step_net)), self._engine(apart_net)
        if kind == "trainer":
            prefetch = options.looks_ahead and not settings.deterministic
            flush = self._engine(self.plan.nets.get("flush_trainer", _NOTHING))
            self.collective = self._make_collective()
            self.trainer = Trainer(
                self.name, self._network, engine=engine, replicas=self._replicas,
                bound=self._bound, prefetch=prefetch, patience=self.patience, watch=self.watch,
                flush=flush, collective=self.collective, ahead=self._cache.announced,
            )  # fmt: skip
            self._inboxes = {number: self._network.inbox(f"{self.name}/{number}") for number in self._cache.endpoints}
        else:
            trainers = self.plan.cluster.groups * self.plan.cluster.trainers
            workers = server_threads(self.device, self.plan.cluster, options, settings.workers)
            self.server = Server(
                self.name, self._network, engine, centers={}, bound=self._bound,
                workers=workers, trainers=trainers, apart=self._apart, watch=self.watch, is_held=self._sync.holds_writes,
            )  # fmt: skip
        self._build_sync()

    def _engine(self, net: Net) -> Engine:
        mapped = self.settings.run_folder / "tables" if self.plan.options.sparse_sync.store == "mapped" else None
        there = self._accelerator.parameters_of(net)
        for name, tensor in allocate(net, mapped, there, self._cache.joined(net)).items():
            self.store.setdefault(name, tensor)
        self.caches |= self._cache.caches(net, self.store, there)
        return Engine(build_program(net, {**self.store, **self.caches}, gated=self._bound > 0))

    def _make_collective(self) -> CollectiveLoop | None:
        """The trainer's place among all trainers, where they step together."""
        net = self.plan.nets.get(WORKERS)
        if net is None:
            return None
        trainers = [role for role in self.plan.cluster.roles if role.startswith("trainer")]
        self._connector = Connector(self.name, trainers, self._network, self.settings.deadline_seconds)
        self._meeting = dict(self._connector.endpoints)
        return CollectiveLoop(self.name, self._network, net, self._connector)

    def _server_of_centres(self, name: str, host: str) -> Server:
        """What answers rounds here, as `host`."""
        found = {}
        for holder in self.plan.cluster.devices:
            net = self.plan.nets.get(centre_net(host, holder))
            if net and device_at(host, holder) == self.device:
                members = [sync_endpoint(role) for role in self.plan.cluster.roles if device_of(role) == holder]
                found[holder_number(holder)] = Centre(self._engines(net), members)
        return Server(
            name,
            self._network,
            Engine(build_program(_NOTHING, {})),
            centers=found,
            bound=0,
            workers=1,
            watch=self.watch,
        )

    def _engines(self, net: Net) -> list[Engine]:
        """One engine for all groups; one for each where it has parameters of its own."""
        if not any(name.endswith(EACH) for name in net.parameters):
            return [self._engine(net)]
        common = {name: tensor for name, tensor in allocate(net).items() if not name.endswith(EACH)}
        self.store.update(common)
        engines = []
        for group in range(self.plan.cluster.groups):
            own = {name: tensor for name, tensor in allocate(net).items() if name.endswith(EACH)}
            self.store.update({f"{name}:{group}": tensor for name, tensor in own.items()})
            engines.append(Engine(build_program(net, common | own)))
        return engines

    def _build_sync(self) -> None:
        net, steps = self.plan.nets.get(f"sync_{net_name(self.device)}"), self.trainer or self.server
        if net is None or steps is None:
            return
        held = self._sync.holds_writes
        machine = SyncMachine(self.name, self._engine(net), self._sync.rounds(), holds_writes=held)
        self.sync = SyncLoop(
            machine, self._network, held=steps if held else None, patience=self.patience, activity=self.watch.activity("sync"),
        )  # fmt: skip
        steps.on_step = self.sync.steps_done
        if self._host in self.plan.centers.values():
            self.centres = self._server_of_centres(centre_endpoint(self._host, self.name), self._host)

    @property
    def _host(self) -> str:
        """What this role is to others that have weights with centres: itself, or its group."""
        kind, _, rest = self.name.partition(":")
        return f"{GROUP}:{rest.partition(':')[0]}" if kind in ("trainer", "group_ps") else self.name

    @property
    def _replicas(self) -> int:
        return 1 if self.settings.deterministic else self.plan.options.net_replicas

    @property
    def _bound(self) -> int:
        """Steps under way at once in a group, which is HT 3.1.1's bound on staleness; 0 for no bound, and where there is none but one's own."""
        steps = self.plan.cluster.trainers * self._replicas
        return steps if self.plan.options.bounded_staleness and steps > 1 else 0

    def _steps(self) -> int:
        if self.trainer:
            return self.trainer.totals.steps
        return self.server.passes_done if self.server else 0

    @property
    def endpoints(self) -> dict[str, str]:
        inboxes = [
            *(self.trainer.inboxes if self.trainer else ()),
            *(part.inbox for part in (self.server, self.centres) if part),
            *([self.sync.inbox] if self.sync else ()),
            *([self.collective.inbox] if self.collective else ()),
            *self._inboxes.values(),
        ]
        return {inbox.name: inbox.address for inbox in inboxes} | self._meeting

    def fill(self) -> None:
        """First values for every parameter, or those of a checkpoint. Raises PlanError, CheckpointError."""
        with self._main.at("loading", num_bytes=self._num_bytes):
            self._fill()

    def _fill(self) -> None:
        if self.settings.restore:
            folder = Path(self.settings.restore)
            load_role_into(folder, self.name, read_manifest(folder), self.store)
            self._restore_totals()
            return
        centres = [
            centre_net(self._host, holder)
            for holder in self.plan.cluster.devices
            if device_at(self._host, holder) == self.device
        ]
        for name in (
            f"init_{net_name(self.device)}",
            f"init_sync_{net_name(self.device)}",
            *(f"init_{centre}" for centre in centres),
        ):
            for store in self._stores_of(self.plan.nets.get(name, _NOTHING)):
                fill(store, self.plan.nets[name], self.settings.plan_folder)

    def _stores_of(self, net: Net) -> Iterator[Store]:
        """The store with the names of a net; where groups have parameters of their own, the store as each has it."""
        each = [name for name in net.parameters if name.endswith(EACH)]
        for group in range(self.plan.cluster.groups if each else bool(net.ops)):
            yield {**self.store, **{name: self.store[f"{name}:{group}"] for name in each}}

    def start(self, book: dict[str, str]) -> None:
        for server in (self.server, self.centres):
            if server:
                server.start(book)
        if self.trainer:
            self._start_trainer(self.trainer, book)
        if self.sync:
            self.sync.start(book)
        if self.collective:
            self.collective.start(book)

    def _start_trainer(self, trainer: Trainer, book: dict[str, str]) -> None:
        cluster = self.plan.cluster
        _, group, index = self.name.split(":")
        shard, shards = int(group) * cluster.trainers + int(index), cluster.groups * cluster.trainers
        state = self.settings.positions.get(self.name, {})
        start = Position.from_dict(state["position"]) if state else Position(0, 0, 0)
        batches = (
            open_data(self.settings.data)
            .for_loss(self.plan.options.loss)
            .batches(
                batch_size=self.plan.options.batch_size,
                shard=shard,
                num_shards=shards,
                epochs=self.settings.epochs,
                start=start,
                malformed=self.malformed,
            )
        )
        feed = Feed(batches, start, 2 * self._replicas, self.watch.activity("reader"))
        trainer.start(book, feed, self.settings.stop_after_steps, self._cache.upcoming(self._parts(book)))

    def _parts(self, book: dict[str, str]) -> TrainerParts:
        """What this trainer's cache may use of it: its net and caches, and ways to the tables and to other trainers."""

        def replica_of(number: int) -> Replica:
            outbox = self._network.outbox(book)
            self._outboxes.append(outbox)
            gates: WriteGates[int] = WriteGates(0, 0)
            return Replica(
                number, self._apart, gates,
                inbox=self._inboxes[number], outbox=outbox, patience=self.patience, activity=self.watch.activity(f"replica {number}"),
            )  # fmt: skip

        def connect(purpose: str) -> Peers:
            return Peers(self._connector(book, purpose) if self._connector and self.plan.cluster.groups > 1 else None)

        return TrainerParts(
            self.plan.net_of(self.device),
            self._apart,
            self.caches,
            replica_of=replica_of,
            connect=connect,
            patience=self.patience,
        )

    def pause(self) -> None:
        if self.trainer:
            self.trainer.pause()
        if self.sync:
            self.sync.pause()

    def resume(self) -> None:
        if self.trainer:
            self.trainer.resume()
        if self.sync:
            self.sync.resume()

    @property
    def quiet(self) -> bool:
        return all(part.quiet for part in (self.trainer, self.sync) if part)

    @property
    def finished(self) -> bool:
        return self.trainer is not None and self.trainer.finished

    @property
    def reader_error(self) -> Exception | None:
        """Why a trainer cannot read on."""
        return self.trainer.reader_error if self.trainer else None

    @property
    def error(self) -> Exception | None:
        return next(
            (
                part.error
                for part in (self.trainer, self.server, self.centres, self.sync, self.collective)
                if part and part.error
            ),
            None,
        )

    def state(self) -> dict[str, Any]:
        return self.trainer.state() if self.trainer else {}

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the role's parameters; nothing may be under way. What the disk refuses is told: training can go on without."""
        if not self.store:
            return {}
        try:
            with self._main.at("saving", num_bytes=self._num_bytes):
                saved = save_role(folder, self.name, self.store)
        except CheckpointError as error:
            return {"error": str(error)}
        return {"file": [saved.name, saved.num_bytes, saved.digest]}

    @property
    def _num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.store.values())

    def _restore_totals(self) -> None:
        """A resumed trainer counts on from where its checkpoint was."""
        if self.trainer:
            for name, value in self.settings.positions.get(self.name, {}).get("totals", {}).items():
                setattr(self.trainer.totals, name, value)
            self._steps_before = self.trainer.totals.steps

    def look(self) -> None:
        """What is to be seen from time to time: whether the first steps of this run are done."""
        if self._steps() > self._steps_before:
            self.patience.warm()

    def _threads(self) -> Iterable[threading.Thread]:
        return [
            thread
            for part in (self.trainer, self.server, self.centres, self.sync, self.collective)
            if part
            for thread in part.threads
        ]

    def metrics(self) -> dict[str, Any]:
        """What the role has measured since it started."""
        worker = self.trainer or self.server
        sent_to = dict(worker.sent_to) if worker else {}
        beside = [part.sent_to for part in (self.sync, self.centres) if part] + [sent_by_role(self._outboxes)]
        for peer, num_bytes in [pair for sent in beside for pair in sent.items()]:
            sent_to[peer] = sent_to.get(peer, 0) + num_bytes
        sent_to.pop(self.name, None)  # between threads of this role
        caches = self._cache.report(self.caches.values()) | dict(self.trainer.upcoming_report if self.trainer else {})
        measured: dict[str, Any] = {
            "cpu_seconds": self._usage.cpu_seconds(),
            "memory_bytes": self._usage.memory_bytes(),
            "bytes_sent": sum(sent_to.values()),
            "sent_to": sent_to,
            "staleness": {str(k): v for k, v in dict(worker.staleness).items()} if worker else {},
            "sync_rounds": self.sync.rounds_done if self.sync else 0,
            **({"caches": caches} if caches else {}),
            **({"bytes_reduced": self.collective.bytes_reduced} if self.collective else {}),
        }
        if self.trainer:
            totals = self.trainer.totals
            measured |= {
                "examples": totals.examples,
                "steps": totals.steps,
                "log_loss": totals.log_loss,
                "positives": totals.positives,
                "seconds_waited": self.trainer.seconds_waited,
                "malformed": self.malformed.count,
            }
        return measured

    def stop(self) -> None:
        for part in (self.sync, self.trainer, self.server, self.centres, self.collective):
            if part:
                part.stop()
        for inbox in self._inboxes.values() if not self._outboxes else ():  # else the threads that use them close them
            inbox.close()
