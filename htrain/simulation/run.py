"""The simulation: trainers, group PSs and sparse PSs that do what the executor does, on simulated cores and links (HT 3.1.1).

What a role does next is decided by its own machine, engine and staleness gates; kernels are replaced by the seconds that the cost model gives them. Roles have
the threads that they have in a run: a trainer one for each net replica, a PS one that receives and `workers` that run what takes longer. Python's lock, the
cores and the links of every role are queues.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import simpy

from htrain.costs.expected import expected, expected_blobs
from htrain.costs.roles import server_threads, staleness_bound
from htrain.errors import PlanError
from htrain.executor.engine.context import Context, Spread, process_endpoint
from htrain.executor.engine.engine import Engine
from htrain.executor.roles.endpoints import centre_endpoint, holder_number, sync_endpoint
from htrain.executor.roles.lockstep import Lockstep
from htrain.executor.roles.replica import Ahead, Orders, ReplicaMachine, Source, train, train_together
from htrain.executor.roles.server import Centre, ServerMachine
from htrain.executor.roles.sync import SyncMachine
from htrain.executor.strategies.strategy import cache_of, sync_of
from htrain.net.names import DENSE_PS, IN_GROUP, TRAINER, WORKERS, Device, Role, device_of, role_at, role_of
from htrain.net.net import Net
from htrain.ops.cache_rates import NO_RATES, Rates
from htrain.plan.plan import Plan
from htrain.simulation.collective import Meeting, Reducing, Reduction, reductions_of
from htrain.simulation.costs import DeviceModel, Packet, device_model
from htrain.simulation.machine import Host, Process
from htrain.simulation.processes import Serving, Syncing, Training
from htrain.simulation.result import DeviceUse, Simulated
from htrain.simulation.strategies.strategy import BesideParts, RunsBeside, beside_of
from htrain.spec.centres import in_group
from htrain.spec.cluster import Cluster
from htrain.spec.settings import Workers

_WARM_UP = 0.25  # of the steps
_MOST_WARM_UP = 2_000  # steps of a trainer, in which windows may grow
_WINDOWS = 40
_MOST_CONTEXTS = 64  # of more than these, groups that have some stand for all
_FEW_CONTEXTS = 12


class Simulation:
    """One plan, set up to run. Its caches ask for rows at `rates`, as `models` do. Raises PlanError for a cache that is not known."""

    def __init__(
        self, plan: Plan, models: Mapping[str, DeviceModel], reductions: Sequence[Reduction] = (), *, steps: int, workers: Workers = "auto",
        jitter: float = 0.0, seed: int = 0, python_lock: bool = True, rates: Rates = NO_RATES,
    ) -> None:  # fmt: skip
        cluster = plan.cluster
        beside = beside_of(plan)
        self.beside: RunsBeside | None = beside(plan, rates) if beside else None
        self.plan, self.models, self.steps, self.workers, self._python_lock = plan, models, steps, workers, python_lock
        self.env = simpy.Environment()
        self.cluster, self.groups = cluster, _simulated_groups(plan)
        self.share = self.groups / cluster.groups  # of what all groups share
        self._chance, self._jitter, self._seed = np.random.default_rng(seed), jitter, seed
        shared = simpy.Resource(self.env, cluster.shared_cores) if cluster.shared_cores else None
        self._roles = [role for role in cluster.roles if _group_of(role) < self.groups]
        self.hosts: Mapping[str, Host] = {role: self._host(role, shared) for role in self._roles}
        self._processes = {role: self._further_hosts(role) for role in self._roles}
        self._spread = Spread(cluster.trainers, plan.options.net_replicas)
        self._inboxes: dict[str, simpy.Store] = {}
        self._progress = self.env.event()
        self.servers = {
            role: self._server(role)
            for role in self._roles
            if role_of(role) != TRAINER and (device_of(role) in self.models or _centers(plan, role))
        }
        self._further = [self._server(role, k) for role in self.servers for k in range(1, len(self._processes[role]))]
        self.trainers = [self._trainer(role) for role in self._roles if role_of(role) == TRAINER]
        self._trainer_of = {trainer.role: trainer for trainer in self.trainers}
        self.meeting = Meeting(self.env, len(self.trainers))
        self._reducing = dict(self._ring(reductions))
        self.centres = [self._centre(host, holder, net) for host, holder, net in _group_hosts(plan)]
        syncs = {role: plan.sync_net(device_of(role)) for role in self._roles if cluster.groups > 1}
        self.syncs = {role: self._sync(role, net) for role, net in syncs.items() if net}
        self.done = self._done_before = 0
        self.began = self.ended = 0.0

    def inbox(self, endpoint: str) -> simpy.Store:
        """Where messages to an endpoint wait."""
        if endpoint not in self._inboxes:
            self._inboxes[endpoint] = simpy.Store(self.env)
        return self._inboxes[endpoint]

    def _ring(self, reductions: Sequence[Reduction]) -> Iterator[tuple[str, Reducing]]:
        """Each trainer's thread for collectives, whose next is the next trainer's."""
        roles = [trainer.role for trainer in self.trainers] if reductions else []
        for role, following in zip(roles, [*roles[1:], *roles[:1]], strict=True):
            yield role, Reducing(self, f"{role}/{WORKERS}", reductions, self.hosts[role], self.hosts[following])

    def _host(self, role: str, shared: simpy.Resource | None) -> Host:
        cluster, device = self.plan.cluster, device_of(role)
        cores = shared or simpy.Resource(self.env, cluster.cores_of(device))
        own = role_of(role) in IN_GROUP
        return Host(
            self.env,
            cores,
            cluster.bandwidth_of(device),
            load=1.0 if own else 1 / self.share,
            core_load=1.0 if own and not shared else 1 / self.share,
            one_lock=self._python_lock,
            seed=zlib.crc32(f"{role} {self._seed}".encode()),
        )

    def _further_hosts(self, role: str) -> list[Host]:
        """What each process of a role runs on: the first on the role's own host."""
        own = self.hosts[role]
        return [own, *(own.another_process() for _ in range(1, self.cluster.processes_of(device_of(role))))]

    def _host_at(self, endpoint: str) -> Host:
        """What the process runs on that has an endpoint, or that of the role which stands for it."""
        processes = self._processes[self._role_at(endpoint)]
        further = (k for k in range(1, len(processes)) if endpoint.endswith(process_endpoint("", k)))
        return processes[next(further, 0)]

    def threads(self, device: str) -> int:
        """Threads of a PS that run ops."""
        return (
            1
            if role_of(device) == DENSE_PS
            else server_threads(device, self.plan.cluster, self.plan.options, self.workers)
        )

    def _server(self, role: str, process: int = 0) -> Serving:
        device = device_of(role)
        models: dict[Engine, DeviceModel] = {}
        engine = self._engine(self.models.get(device, _idle(self.cluster)), models)
        centres = {}
        for holder in self.cluster.devices:
            if net := _centers(self.plan, role).get(holder):
                centres[holder_number(holder)] = Centre([self._engine(self._model(net), models)], self._members(holder))
        bound = 0 if role_of(role) == DENSE_PS else self.bound()
        apart = self._engine(self.beside.model(device), models) if self.beside and device in self.models else engine
        endpoint = process_endpoint(role, process)
        return self._serving(
            endpoint, role, engine, models, centres, apart=apart, bound=bound, workers=self.threads(device)
        )

    def _serving(
        self, endpoint: str, role: str, engine: Engine, models: Mapping[Engine, DeviceModel], centres: Mapping[int, Centre], *, apart: Engine,
        bound: int, workers: int,
    ) -> Serving:  # fmt: skip
        trainers = self.groups * self.cluster.trainers
        machine = ServerMachine(engine, centers=centres, apart=apart, bound=bound, trainers=trainers)
        is_held = not centres and sync_of(self.plan, role).holds_writes
        of_pass = partial(self.beside.model_at, device_of(role)) if self.beside and apart is not engine else None
        return Serving(
            self, endpoint, self._host_at(endpoint), machine, models, workers=workers, is_held=is_held, apart=of_pass
        )

    def _centre(self, host: str, holder: str, net: Net) -> Serving:
        """What answers rounds in a group, whose share of the centres it is; groups that are not simulated have theirs with one that is."""
        models: dict[Engine, DeviceModel] = {}
        nothing = self._engine(_idle(self.cluster), models)
        engine = self._engine(self._model(net), models)
        device = Device.parse(holder)
        endpoint = centre_endpoint(host, str(Role(device.kind, device.number or 0, group=0)))
        centres = {holder_number(holder): Centre([engine], self._members(holder))}
        return self._serving(
            endpoint, self._role_at(endpoint), nothing, models, centres, apart=nothing, bound=0, workers=1
        )

    def _members(self, holder: str) -> list[str]:
        """The endpoints of those who play rounds of a holder of weights."""
        return [sync_endpoint(role) for role in self._roles if device_of(role) == holder]

    def _engine(self, model: DeviceModel, models: dict[Engine, DeviceModel]) -> Engine:
        engine = Engine(model.program)
        models[engine] = model
        return engine

    def _model(self, net: Net) -> DeviceModel:
        return device_model(net, self.cluster, self.plan.options.batch_size)

    def _role_at(self, endpoint: str) -> str:
        """The simulated role that has an endpoint, or stands for the one that has."""
        name = role_at(endpoint)
        role = Role.parse(name)
        if role.group is None or role.group < self.groups:
            return name
        return str(role.at(role.group % self.groups))

    def _trainer(self, role: str) -> Training:
        options = self.plan.options
        return Training(
            self, role, self.hosts[role], self.models[TRAINER],
            bound=self.bound(), replicas=options.net_replicas, batch_size=options.batch_size,
        )  # fmt: skip

    def _sync(self, role: str, net: Net) -> Syncing:
        models: dict[Engine, DeviceModel] = {}
        engine = self._engine(self._model(net), models)
        half, holder = sync_of(self.plan, role), self.servers.get(role) or self._trainer_of[role]
        machine = SyncMachine(role, engine, half.rounds(), holds_writes=half.holds_writes)
        syncing = Syncing(self, self.hosts[role], machine, models[engine], holder)
        holder.on_step = syncing.steps_done
        return syncing

    def _training(self, trainer: Training) -> Iterator[Process]:
        """What each replica of a trainer does for as long as the simulation lasts."""
        options = self.plan.options
        for replica in trainer.replicas:
            source, orders = self._source(trainer, replica), Orders()
            if trainer.role in self._reducing:
                reducing, lockstep = self._reducing[trainer.role], Lockstep(lambda: False)
                reducing.word, trainer.verdict = lockstep.word, reducing.verdict
                yield trainer.drive(
                    replica, train_together(replica, source, orders, lockstep, {}, prefetch=options.looks_ahead)
                )
            else:
                yield trainer.drive(replica, train(replica, source, orders, prefetch=options.looks_ahead))

    def _source(self, trainer: Training, replica: ReplicaMachine) -> Source:
        """Where a replica's steps come from."""
        if self.beside is None:
            return Ahead(replica, cache_of(self.plan, trainer.role).announced, trainer.engine)
        rank = self.trainers.index(trainer)
        following = self.trainers[(rank + 1) % len(self.trainers)].host
        size = self.cluster.groups * self.cluster.trainers
        return self.beside.begin(BesideParts(self, trainer, trainer.host, following, rank=rank, size=size))

    def varied(self, seconds: float) -> float:
        """A duration as it may be this time."""
        return seconds * (1 + self._jitter * (2 * self._chance.random() - 1)) if self._jitter else seconds

    def bound(self) -> int:
        """The bound on the staleness of a group's dense updates (HT 3.1.1); 0 for none."""
        return staleness_bound(self.cluster, self.plan.options, self.plan.options.net_replicas)

    def run(self) -> Simulated:
        """Simulate to the end of all steps. Raises PlanError where no step can end, naming who waits for whom."""
        total = self.steps * len(self.trainers) * self.plan.options.net_replicas
        self._warm, self._is_counting = int(total * _WARM_UP), False
        for trainer in self.trainers:
            for replica in self._training(trainer):
                self.env.process(replica)
        try:
            self.env.run(self._all_done(total))
        except RuntimeError as error:
            raise PlanError(
                f"no step of the plan can end: {self._stuck()}; report it as a bug of htrain's, unless its nets are of your own"
            ) from error
        return self._result()

    def _stuck(self) -> str:
        """Who waits for whom."""
        waiting = [f"{trainer.role} waits for {', '.join(trainer.missing())}" for trainer in self.trainers]
        return "; ".join(waiting)

    def _all_done(self, total: int) -> simpy.Event:
        self._total, self._finished = total, self.env.event()
        return self._finished

    def step_done(self) -> None:
        """A trainer's replica has ended a step."""
        self.done += 1
        self.progressed()
        if not self._is_counting:
            if self.done >= self._warm and self._may_begin():
                self._begin_to_count()
        elif self.done - self._done_before >= self._total - self._warm and self._may_end():
            self.ended = self.env.now
            self._finished.succeed()

    def _begin_to_count(self) -> None:
        self._is_counting, self._done_before = True, self.done
        self.began = self.env.now
        for host in (host for processes in self._processes.values() for host in processes):
            host.mark()
        if self.beside:
            self.beside.count()

    def _may_begin(self) -> bool:
        """Whether what comes is like what follows: of windows, that they are as large as they will be, if it does not take too long."""
        if self.beside is None:
            return True
        is_late = self.done >= _MOST_WARM_UP * len(self.trainers)
        return self._may_end() and (self.beside.is_settled or is_late)

    def _may_end(self) -> bool:
        """Whether figures are of whole windows."""
        return self.beside is None or (self.done % len(self.trainers) == 0 and self.beside.is_between)

    def progressed(self) -> None:
        """A trainer or a PS is done with a step."""
        told, self._progress = self._progress, self.env.event()
        told.succeed()

    def progress(self) -> simpy.Event:
        """What happens when a trainer or a PS is next done with a step."""
        return self._progress

    def deliver(self, source: str, endpoint: str, context: Context, packet: Packet) -> None:
        """Send a message from an endpoint to another: over links, or from thread to thread of one role."""
        if role_at(source) == role_at(endpoint):
            self.inbox(endpoint).put((context, source, packet))
            return
        processes = len(self._processes[self._role_at(endpoint)])
        endpoint = process_endpoint(endpoint, self._spread.process_of(context, processes))
        self.env.process(self._deliver(source, endpoint, (context, source, packet)))

    def _deliver(self, source: str, endpoint: str, message: tuple[Context, str, Packet]) -> Process:
        context, _, packet = message
        sender, target = self._host_at(source), self._host_at(endpoint)
        there = self.env.event()
        yield from sender.transport(packet.transport_seconds)
        sender.send(target, (context.trainer, context.replica), packet.num_bytes, lambda: _occur(there))
        yield there
        yield from target.transport(packet.transport_seconds)
        yield self.inbox(endpoint).put(message)

    def _result(self) -> Simulated:
        cluster, options = self.plan.cluster, self.plan.options
        seconds, steps = self.ended - self.began, self.done - self._done_before
        eps = steps * options.batch_size / seconds / self.share if seconds > 0 else 0.0
        staleness: dict[int, int] = {}
        for counted in [*(s.staleness for s in self.servers.values()), *(t.staleness for t in self.trainers)]:
            for value, count in counted.items():
                staleness[value] = staleness.get(value, 0) + count
        windows = self.beside.use(seconds) if self.beside else None
        return Simulated(eps, seconds, steps, tuple(self._uses(cluster, seconds)), staleness, windows)

    def _uses(self, cluster: Cluster, seconds: float) -> list[DeviceUse]:
        uses = []
        dense = [d for d in cluster.devices if role_of(d) == DENSE_PS and d in self.servers]
        for device in (*self.models, *dense):
            hosts = [host for role, host in self.hosts.items() if device_of(role) == device]
            processes = [h for role, all in self._processes.items() if device_of(role) == device for h in all]
            over_time = np.mean([h.cpu_over_time(self.began, self.ended, _WINDOWS) for h in hosts], axis=0)
            waits = np.concatenate([np.array(h.waits) for h in hosts]) if any(h.waits for h in hosts) else np.zeros(1)
            links = [
                float(np.mean([getattr(h, way).busy_seconds for h in hosts])) / seconds if seconds else 0.0
                for way in ("incoming", "outgoing")
            ]
            cores = cluster.shared_cores or cluster.cores_of(device)
            uses.append(
                DeviceUse(
                    device,
                    float(over_time.mean()) / cores,
                    links[0],
                    sent=links[1],
                    lock=float(np.mean([h.locked_seconds for h in processes])) / seconds
                    if seconds and self._python_lock
                    else 0.0,
                    mean_wait_seconds=float(waits.mean()),
                    late_wait_seconds=float(np.quantile(waits, 0.95)),
                    cpu_over_time=tuple((over_time / cores).round(4).tolist()),
                )
            )
        return uses


def _occur(event: simpy.Event) -> None:
    event.succeed()


def _group_of(role: str) -> int:
    """The group of a role; 0 for those that all groups share."""
    return Role.parse(role).group or 0


def _simulated_groups(plan: Plan) -> int:
    """All groups, or as many as stand for them."""
    each = plan.cluster.trainers * plan.options.net_replicas
    return (
        plan.cluster.groups
        if plan.cluster.groups * each <= _MOST_CONTEXTS
        else max(1, min(plan.cluster.groups, _FEW_CONTEXTS // each))
    )


def sized_nets(plan: Plan, rates: Rates = NO_RATES) -> dict[str, Net]:
    """The net of each device that has something to do in a step; rows by distinct id are as many as are to be expected."""
    sizes = expected_blobs(plan.train, plan.cluster, plan.options.batch_size, plan.known_rates(rates))
    nets = {d: net for d in plan.cluster.devices if (net := plan.step_net(d)) and net.ops}
    return {d: expected(net, sizes) for d, net in nets.items()}


def models_of(plan: Plan, rates: Rates = NO_RATES) -> dict[str, DeviceModel]:
    """The model of each device that has something to do in a step; caches ask for rows at `rates`, or as the cluster says."""
    nets = sized_nets(plan, rates)
    caches = {device_of(role): cache_of(plan, role) for role in plan.cluster.roles}
    steps = {device: caches[device].split(net)[0] for device, net in nets.items()}
    return {device: device_model(net, plan.cluster, plan.options.batch_size) for device, net in steps.items()}


def _centers(plan: Plan, role: str) -> dict[str, Net]:
    """What a dense PS runs for the rounds of each holder; nothing for one group, which it would have none with."""
    if plan.cluster.groups == 1:
        return {}
    device = device_of(role)
    return {holder: net for holder in plan.cluster.devices if (net := plan.centre_net(device, holder))}


def _group_hosts(plan: Plan) -> list[tuple[str, str, Net]]:
    """The groups that have a share of the centres, each with the holder whose weights these are of and its net; none for one group."""
    hosts = [host for host in dict.fromkeys(plan.centers.values()) if in_group(host) and plan.cluster.groups > 1]
    return [
        (host, holder, net)
        for host in hosts
        for holder in plan.cluster.devices
        if (net := plan.centre_net(host, holder))
    ]


def _idle(cluster: Cluster) -> DeviceModel:
    """The model of a device without a part in steps."""
    return device_model(Net("", (), (), outputs=(), blobs={}, parameters={}), cluster, 1)


def simulate(
    plan: Plan,
    *,
    steps: int = 40,
    workers: Workers = "auto",
    jitter: float = 0.1,
    seed: int = 0,
    python_lock: bool = True,
    rates: Rates = NO_RATES,
) -> Simulated:
    """Simulate `steps` steps of every net replica, in the mean; the first quarter warms up and does not count.

    `workers` are the threads of a PS that run ops, `auto` for as many as a run takes. Durations vary by up to `jitter` of themselves, drawn with `seed`. Of
    a plan with more than 64 contexts, groups with some 12 of them are simulated, at least one; what all groups share is used by the others as much
    as by these.
    Without `python_lock`, the threads of a role never wait for each other's Python: a system of that shape in another language.
    Caches ask for rows at `rates`, those of `htrain.simulation.cache_rates`, or where there are none as often as the cluster says. Where they read windows
    ahead, these grow as in a run; steps count when they have stopped growing, or a trainer has run 2,000, from the end of a window to that of another.
    Raises PlanError for a plan without a trainer, and for one with a cache of a user's own that has threads.
    """
    trainer = plan.step_net(TRAINER)
    if trainer is None or not trainer.ops:
        raise PlanError("the plan has no trainer's net: nothing to simulate")
    lock = python_lock and plan.cluster.python_lock
    return Simulation(
        plan,
        models_of(plan, rates),
        reductions_of(plan),
        steps=steps,
        workers=workers,
        jitter=jitter,
        seed=seed,
        python_lock=lock,
        rates=rates,
    ).run()
