"""The EPS of a plan in its steady state, without simulating all of it: one net replica on a cluster that its likes keep busy.

A run is a closed network of queues: a fixed number of contexts go round, and each waits for what others use. Mean value analysis takes them to be
alike, so that one of them sees the others as a load on every station. One replica is therefore simulated alone, on the executor's engine, with
a wait at each station. Where the others come `rate` times a second, for s seconds each time, that wait is on average (Pollaczek and Khinchine)

    rate E[s^2] / 2 / (1 - rho)        rho = rate E[s], the share of time in which they use it

and cores that several share serve them in turns. Their rate is one over the period of a step, which is what is looked for: that at which a step,
simulated with those waits, takes as long as the period from which they were reckoned. It is never below what the busiest station allows. A
round of the background sync is one more customer, which comes back no sooner than a round takes.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import simpy

from htrain.costs.roles import contexts_of, server_threads
from htrain.net.names import DENSE_PS, IN_GROUP, device_of, role_of
from htrain.plan.plan import Plan
from htrain.simulation.collective import reductions_of
from htrain.simulation.costs import DeviceModel, device_model
from htrain.simulation.machine import Host, Process
from htrain.simulation.network import pieces_of
from htrain.simulation.run import Simulation, models_of
from htrain.simulation.stations import CORES, HOST, IN, LOCK, MOVER, OUT, Key, Visits, servers_of, visits_of

_STEPS = 6  # simulated at a time
_FIRST = 2  # of them, which do not count
_MOST_TRIES = 8  # of a period
_CLOSE = 0.003  # relative
_IDLE, _FULL = 1e-9, 0.999
_SETTLES = 12


@dataclass(frozen=True)
class Steady:
    """`eps`, and the seconds of a net replica's step at it; `idle_seconds` of one that has the cluster to itself; the steps of a group between two
    rounds of its background sync, which may be more than were asked for."""

    eps: float
    step_seconds: float
    idle_seconds: float
    sync_steps: float


def steady_state(plan: Plan) -> Steady:
    """The steady state of a plan, at the threads that a run takes by default."""
    return _Balance(plan).find()


class _Balance:
    """The period at which contexts wait as long as they make each other wait."""

    def __init__(self, plan: Plan) -> None:
        cluster, options = plan.cluster, plan.options
        self.plan, self.cluster, self.options = plan, cluster, options
        self._models = models_of(plan)
        asked = visits_of(self._models.items(), cluster, reductions_of(plan))
        self._step = {k: v for k, v in asked.items() if k[1] != LOCK or cluster.python_lock}
        self._round = visits_of(_rounds(plan), cluster)
        self._round_seconds = self._longest_round()
        self._contexts = cluster.groups * cluster.trainers * options.net_replicas

    def find(self) -> Steady:
        idle = self._simulated({})
        period = self._balanced(idle)
        eps = self._contexts * self.options.batch_size / period
        return Steady(eps, period, idle, self.sync_steps(period))

    def sync_steps(self, period: float) -> float:
        """Steps of a group between two rounds at a period: a round ends before the next begins, and those of all groups share the dense PSs."""
        return max(float(self.options.dense_sync.round_steps), self._round_seconds * self._group_contexts / period)

    @property
    def _group_contexts(self) -> int:
        return self.cluster.trainers * self.options.net_replicas

    def _longest_round(self) -> float:
        """Seconds of a round on an idle cluster, or on dense PSs that all groups keep busy, whichever is longer."""
        holders = {device for device, _ in self._round if role_of(device) != DENSE_PS}
        seconds = {key: visits.seconds for key, visits in self._round.items()}
        dense = [(k, s / servers_of(k, self.cluster)) for k, s in seconds.items() if role_of(k[0]) == DENSE_PS]
        alone = max(
            (sum(s for (d, kind), s in seconds.items() if d == h and kind in (CORES, IN, OUT)) for h in holders),
            default=0.0,
        )
        return max(
            alone + sum(s for (_, kind), s in dense if kind == CORES),
            self.cluster.groups * max((s for _, s in dense), default=0.0),
        )

    def _balanced(self, idle: float) -> float:
        """The fixed point of a step's time, which falls with the period: bracketed by doubling, then by the rule of false position (Illinois)."""
        low = max(idle, self._least(math.inf))
        above = self._excess(low)
        high, below = low, above
        while below > _CLOSE * high:
            low, above = high, below
            high = min(low + above, 2 * low)  # where the excess is 0 or less
            below = self._excess(high)
        side = 0
        for _ in range(_MOST_TRIES if above > _CLOSE * low else 0):
            middle = low + (high - low) * above / (above - below)
            found = self._excess(middle)
            if abs(found) <= _CLOSE * middle:
                return middle
            if found > 0:
                low, above, below, side = middle, found, below / (1 + (side > 0)), 1
            else:
                high, below, above, side = middle, found, above / (1 + (side < 0)), -1
        return high

    def _excess(self, period: float) -> float:
        """Seconds by which a step takes longer than the period from which its waits were reckoned."""
        return max(self._simulated(self._waits(period)), self._least(period)) - period

    def _least(self, period: float) -> float:
        """The shortest period that the stations allow, next to the rounds of a period."""
        shares = self._sync_shares(period)
        return max(
            self._sharing(key[0]) * visits.seconds / servers_of(key, self.cluster) / max(0.05, 1 - shares.get(key, 0.0))
            for key, visits in self._step.items()
        )

    def _sharing(self, device: str) -> int:
        """Contexts that share the stations of a device."""
        return self._contexts if device == HOST else contexts_of(device, self.cluster, self.options)

    def _sync_visits(self, period: float) -> Iterator[tuple[Key, Visits, float]]:
        """What rounds ask of stations, and how often a second: of a holder its own group's, of dense PSs and of shared cores those of all."""
        rate = self._group_contexts / period / self.sync_steps(period)
        for key, visits in self._round.items():
            yield key, visits, rate * (1 if role_of(key[0]) in IN_GROUP else self.cluster.groups)

    def _sync_shares(self, period: float) -> dict[Key, float]:
        return {
            key: rate * visits.seconds / servers_of(key, self.cluster)
            for key, visits, rate in self._sync_visits(period)
        }

    def _waits(self, period: float) -> dict[Key, float]:
        """How long one waits at each station for all others, whose steps take a period each; at cores, how many times as long one's work takes."""
        rounds = {key: Visits() for key in self._step}
        for key, visits, rate in self._sync_visits(period):
            if key in rounds:
                rounds[key].take(visits, rate * period)
        delays = {}
        for key, visits in self._step.items():
            sharing, servers = self._sharing(key[0]), servers_of(key, self.cluster)
            if key[1] == CORES:
                delays[key] = stretch_of(visits, sharing - 1, rounds[key], servers, period)
            else:  # of several, each context has its own
                delays[key] = wait_at(visits, -(-sharing // servers) - 1, rounds[key], period)
        return delays

    def _simulated(self, waits: Mapping[Key, float]) -> float:
        """Seconds of a step of one replica that waits so long at each visit of a station."""
        return _Alone(self.plan, self._models, waits).period()


def wait_at(own: Visits, others: int, rounds: Visits, period: float) -> float:
    """The mean wait at a station that each of `others` contexts, and the rounds of the sync, visit so in a period; never longer than all of
    that takes."""
    asked = Visits()
    asked.take(own, others)
    asked.take(rounds, 1)
    if not asked.seconds:
        return 0.0
    busy = min(_FULL, asked.seconds / period)
    return min(asked.squares / asked.seconds / 2 * busy / (1 - busy), asked.seconds)


def stretch_of(own: Visits, others: int, rounds: Visits, cores: int, period: float) -> float:
    """How many times as long work takes on cores that are shared with `others` contexts, each on them for its own work's share of a period, and
    with the rounds of the sync: as many times as there are too many at once, on average."""
    jobs, stretch = max(1, others), 1.0
    if jobs < cores:
        return stretch
    at_once = np.arange(jobs + 1)
    ways = np.concatenate(
        [[0.0], np.cumsum(np.log((jobs - at_once[:-1]) / at_once[1:]))]
    )  # to be so many of all, logarithms
    for _ in range(_SETTLES):
        there = min(_FULL, max(_IDLE, (others * own.seconds + rounds.seconds) * stretch / period / jobs))
        chance = np.exp(ways + at_once * math.log(there) + (jobs - at_once) * math.log1p(-there))
        stretch = float(chance @ np.maximum(1.0, (at_once + 1) / cores))
    return stretch


def _rounds(plan: Plan) -> Iterator[tuple[str, DeviceModel]]:
    """The nets of a round of one group's background sync, each with its device."""
    for name, net in plan.nets_of_rounds().items() if plan.cluster.groups > 1 else ():
        yield str(name.run_by), device_model(net, plan.cluster, plan.options.batch_size)


class _Alone(Simulation):
    """One net replica of a plan, on a cluster whose stations keep it waiting."""

    def __init__(self, plan: Plan, models: Mapping[str, DeviceModel], waits: Mapping[Key, float]) -> None:
        self._plan, self._waits = plan, waits
        self._ends: list[float] = []
        lone = replace(
            plan, cluster=replace(plan.cluster, groups=1, trainers=1), options=replace(plan.options, net_replicas=1)
        )
        super().__init__(lone, models, reductions_of(plan), steps=_STEPS, python_lock=plan.cluster.python_lock)

    def period(self) -> float:
        """Seconds of a step, once steps follow each other."""
        self.run()
        return (self._ends[-1] - self._ends[_FIRST - 1]) / (len(self._ends) - _FIRST)

    def step_done(self) -> None:
        self._ends.append(self.env.now)
        super().step_done()

    def threads(self, device: str) -> int:
        return server_threads(device, self._plan.cluster, self._plan.options)

    def _host(self, role: str, shared: simpy.Resource | None) -> Host:
        cluster, device = self.plan.cluster, device_of(role)
        cores = shared or simpy.Resource(self.env, cluster.cores_of(device))
        host = _BusyHost(self.env, cores, cluster.bandwidth_of(device), one_lock=self._python_lock)
        host.delays = {kind: self._waits.get((device, kind), 0.0) for kind in (LOCK, MOVER, IN, OUT)}
        host.stretch = self._waits.get((HOST if shared else device, CORES), 1.0)
        return host


class _BusyHost(Host):
    """A role's hardware where others use it, too: each visit of a station begins with a wait, and work takes longer."""

    delays: Mapping[str, float]
    stretch: float

    def compute(self, locked_seconds: float, free_seconds: float) -> Process:
        lock = self.lock.request()
        yield lock
        yield self.env.timeout(self.delays[LOCK] if locked_seconds else 0.0)
        core = self.cores.request()
        yield core
        yield from self._hold(lock, core, locked_seconds * self.stretch, free_seconds * self.stretch)

    def transport(self, seconds: float) -> Process:
        moving = self.mover.request()
        yield moving
        core = self.cores.request()
        yield core
        yield self.env.timeout(self.delays[MOVER] + seconds * self.stretch)
        self.cores.release(core)
        self.mover.release(moving)

    def send(self, target: Host, connection: Hashable, num_bytes: float, then: Callable[[], None]) -> None:
        count, _ = pieces_of(num_bytes)
        assert isinstance(target, _BusyHost)
        wait = (2 * count - 1) * self.delays[OUT] + target.delays[IN]  # a piece of others' before each but the first
        self.env.timeout(wait).callbacks.append(
            lambda _: super(_BusyHost, self).send(target, connection, num_bytes, then)
        )
