"""Rounds between holders of weights and dense PSs, with the threads and messages of a run, against the formulas of the papers."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import torch

import htrain.executor.loops.sync as module
from htrain.errors import PeerLost
from htrain.executor.engine.context import SYNC_REPLICA, Context
from htrain.executor.engine.engine import Engine
from htrain.executor.engine.gate import WriteGates
from htrain.executor.engine.program import build_program
from htrain.executor.engine.store import Store, allocate, fill
from htrain.executor.host.patience import Patience
from htrain.executor.host.watch import Watch
from htrain.executor.loops.server import Server
from htrain.executor.loops.sync import SyncLoop
from htrain.executor.roles.endpoints import sync_endpoint
from htrain.executor.roles.server import Centre, ServerMachine
from htrain.executor.roles.sync import SyncMachine
from htrain.executor.strategies.strategy import RunsSync
from htrain.executor.transport.port import Network
from htrain.executor.transport.wire import Values
from htrain.net.net import Init, Net, Parameter
from htrain.spec.centres import EACH
from htrain.spec.cluster import Cluster
from htrain.spec.dense_sync import Bmuf, DenseSync, Easgd, ModelAveraging
from htrain.spec.options import Options
from htrain.strategies.bmuf import Filtered
from htrain.strategies.easgd import Elastic
from htrain.strategies.model_averaging import Averaged
from htrain.sync.rounds import SyncRounds

HALVES: dict[type[DenseSync], Any] = {Easgd: Elastic, ModelAveraging: Averaged, Bmuf: Filtered}
WEIGHTS = (
    Parameter("a", (40, 3), "float32", "weight", Init("constant", (1.0,))),
    Parameter("b", (7,), "float32", "weight", Init("constant", (1.0,))),
)


class Weights:
    """The weights of a holder behind gates, as a trainer or a server has them."""

    def __init__(self) -> None:
        self.gates: WriteGates[Callable[[], None]] = WriteGates(1, 0)
        self.number = 0

    def write(self, change: Callable[[], None]) -> None:
        """A step's write: now, or when the gates let it through."""
        context = Context(0, 0, 0, self.number)
        self.number += 1

        def run() -> None:
            change()
            self.gates.end(0, context)

        self.gates.begin((0,), context)
        for job in self.gates.commit(0, context, run):
            job()

    def hold_writes(self) -> None:
        self.gates.hold()

    def await_rest(self, seconds: float) -> bool:
        return self.gates.await_rest(seconds)

    def release_writes(self) -> None:
        for job in self.gates.release():
            job()


class Groups:
    """Groups of one group PS each, and their dense PSs, in this process. `answering` says whether dense PSs are there."""

    def __init__(self, network: Network, sync: DenseSync, groups: int, dense_ps: int, seconds: float) -> None:
        self.network = network
        cluster = Cluster(groups=groups, dense_ps=dense_ps)
        part = Net("group_ps_0", (), (), (), {}, {w.name: w for w in WEIGHTS})
        strategy = HALVES[type(sync)](sync, cluster, Options(dense_sync=sync))
        nets = strategy.nets({"group_ps:0": part})
        patience = Patience(seconds, seconds)
        self.stores: list[Store] = []
        self.loops: list[SyncLoop] = []
        self.weights: list[Weights] = []
        self.centres: Store = {}
        self.servers: list[Server] = []
        members = [sync_endpoint(f"group_ps:{group}:0") for group in range(groups)]
        for k in range(dense_ps):
            net = nets[f"center_dense_ps_{k}_group_ps_0"]
            engines = []
            store = allocate(net)
            for group in range(groups):
                store |= {name: tensor for name, tensor in allocate(net).items() if name.endswith(EACH)}
                fill(store, nets["init_" + net.name], None)  # type: ignore[arg-type]  # no files
                engines.append(Engine(build_program(net, store)))
                self.centres |= {
                    f"{name}:{group}" if name.endswith(EACH) else name: tensor for name, tensor in store.items()
                }
            empty = Engine(build_program(Net("", (), (), (), {}, {}), {}))
            centre = Centre(engines, members)
            machine = ServerMachine(empty, centers={0: centre}, apart=empty, bound=0, trainers=1)
            self.servers.append(Server(f"dense_ps:{k}", network, machine, workers=1, watch=Watch(patience)))
        for group in range(groups):
            store = allocate(nets["sync_group_ps_0"])
            if "init_sync_group_ps_0" in nets:
                fill(store, nets["init_sync_group_ps_0"], None)  # type: ignore[arg-type]
            for weight in WEIGHTS:
                store[weight.name].fill_(float(group))
            engine, rounds = Engine(build_program(nets["sync_group_ps_0"], store)), RunsSync(sync, None, "").rounds()  # type: ignore[arg-type]
            weights = Weights()
            held = weights if sync.holds_writes else None
            machine = SyncMachine(f"group_ps:{group}:0", engine, rounds, holds_writes=sync.holds_writes)
            self.stores.append(store)
            self.weights.append(weights)
            self.loops.append(
                SyncLoop(machine, network, held, patience, Watch(patience).activity("sync")),
            )

    def start(self, *, serving: bool = True) -> None:
        book = {
            inbox.name: inbox.address
            for inbox in (*(s.inbox for s in self.servers), *(loop.inbox for loop in self.loops))
        }
        for part in (*(self.servers if serving else ()), *self.loops):
            part.start(book)

    def stop(self) -> None:
        for part in (*self.loops, *self.servers):
            part.stop()

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not done():
            assert time.monotonic() < deadline, [loop.rounds_done for loop in self.loops]
            assert not any(part.error for part in (*self.loops, *self.servers)), [
                part.error for part in (*self.loops, *self.servers)
            ]
            time.sleep(0.002)

    def round(self, number: int) -> None:
        """A step of the first group, which opens a round; until all are through."""
        self.loops[0].steps_done(number + 1)
        self.until(lambda: all(loop.rounds_done == number + 1 for loop in self.loops))


@contextmanager
def groups_of(
    sync: DenseSync, groups: int = 3, dense_ps: int = 2, *, serving: bool = True, seconds: float = 20.0
) -> Iterator[Groups]:
    network = Network("inproc")
    made = Groups(network, sync, groups, dense_ps, seconds)
    try:
        made.start(serving=serving)
        yield made
    finally:
        made.stop()
        network.close()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> set[SyncLoop]:
    """The loops that have sent what a round sends, and have begun to wait for its answers."""
    await_answer, found = SyncLoop._await, set()

    def noted(loop: SyncLoop, state: Any) -> Any:
        if state:
            found.add(loop)
        return await_answer(loop, state)

    monkeypatch.setattr(SyncLoop, "_await", noted)
    return found


@pytest.mark.parametrize("mode", ["background", "fixed_rate"])
@pytest.mark.parametrize(("groups", "dense_ps"), [(2, 1), (3, 2)])
def test_groups_meet_at_their_mean(groups: int, dense_ps: int, mode: Any) -> None:
    with groups_of(ModelAveraging(period=1, mode=mode), groups, dense_ps) as made:
        for number in range(3):
            made.round(number)
            mean = (groups - 1) / 2 + number * 5.0
            for store in made.stores:
                torch.testing.assert_close(store, {w.name: torch.full(w.shape, mean) for w in WEIGHTS})
            for group, store in enumerate(made.stores):
                for weight in store.values():
                    weight += 5.0 + group - (groups - 1) / 2


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_centre_goes_on_with_what_groups_have_learned(nesterov: bool) -> None:
    """Each group learns 1 in a block: the first step of the centre is 1, the next one 1 and half of the last, and so on."""
    with groups_of(Bmuf(period=1, nesterov=nesterov), 2) as made:
        model, step, start = 1.0, 0.0, 1.0
        for store in made.stores:
            for weight in store.values():
                weight.fill_(start)
        for number in range(4):
            for store in made.stores:
                for weight in store.values():
                    weight += 1.0
            made.round(number)
            step = 0.5 * step + 1.0
            model += step
            start = model + 0.5 * step * nesterov
            for store in made.stores:
                torch.testing.assert_close(store, {w.name: torch.full(w.shape, start) for w in WEIGHTS})


@pytest.mark.parametrize("short", [{"dtype": "bfloat16"}, {"dtype": "int8"}, {"top_k": 0.1}])
@pytest.mark.parametrize(
    "sync",
    [Easgd(0.25, period=1), ModelAveraging(period=1), Bmuf(period=1), Bmuf(period=1, nesterov=True)],
    ids=lambda s: s.kind,
)
def test_what_is_left_out_of_a_message_comes_with_a_later_one(sync: DenseSync, short: dict[str, Any]) -> None:
    """Groups learn for some rounds and then rest: they come to their centre, and it to where it would be if weights had travelled whole."""
    torch.manual_seed(0)
    learned = torch.randn(6, 2, 40, 3) + torch.linspace(0, 3, 120).view(40, 3)
    ends = []
    for asked in (sync, replace(sync, **short)):
        with groups_of(asked, 2) as made:
            for number in range(60):
                for group, store in enumerate(made.stores):
                    store["a"] += learned[number, group] if number < 6 else 0.0
                for loop in made.loops if sync.kind == "easgd" else made.loops[:1]:  # others are invited
                    loop.steps_done(number + 1)
                made.until(lambda number=number: all(loop.rounds_done == number + 1 for loop in made.loops))  # type: ignore[misc]
            centre = made.centres["a"].clone()
            for store in made.stores:
                torch.testing.assert_close(store["a"], centre, rtol=1e-3, atol=2e-3)
            ends.append(centre)
    if sync.kind != "easgd":  # whose groups come one by one, and where they end depends on their order
        torch.testing.assert_close(ends[0], ends[1], rtol=5e-3, atol=2e-2)


def test_one_by_one_groups_and_their_centre_keep_their_sum() -> None:
    with groups_of(Easgd(0.25, period=1), 3) as made:
        before = sum(float(store["a"].sum()) for store in (*made.stores, made.centres))
        made.loops[1].steps_done(1)
        made.until(lambda: made.loops[1].rounds_done == 1)
        made.loops[2].steps_done(1)
        made.until(lambda: made.loops[2].rounds_done == 1)
        assert [loop.rounds_done for loop in made.loops] == [0, 1, 1]  # nobody is invited
        assert sum(float(store["a"].sum()) for store in (*made.stores, made.centres)) == pytest.approx(before)


def test_at_a_fixed_rate_no_step_writes_until_the_round_has_ended() -> None:
    """Groups whose steps write all the time are equal after a round, but for what was held back until then."""
    with groups_of(ModelAveraging(period=1, mode="fixed_rate"), 2, serving=False) as made:
        book = {
            inbox.name: inbox.address
            for inbox in (*(s.inbox for s in made.servers), *(loop.inbox for loop in made.loops))
        }
        made.loops[0].steps_done(1)
        done: list[str] = []

        def change(name: str, store: Store) -> Callable[[], None]:
            return lambda: (done.append(name), store["a"].add_(100.0))  # type: ignore[return-value]

        made.weights[0].write(change("first", made.stores[0]))
        made.weights[1].write(change("second", made.stores[1]))
        assert done == ["second"]  # which has not been invited yet
        for server in made.servers:
            server.start(book)
        made.until(lambda: done == ["second", "first"])
        made.until(lambda: all(loop.rounds_done == 1 for loop in made.loops))
        mean = (0.0 + 101.0) / 2
        assert (made.stores[0]["a"][0, 0].item(), made.stores[1]["a"][0, 0].item()) == (mean + 100.0, mean)


def test_in_the_background_what_steps_write_during_a_round_stays(waiting: set[SyncLoop]) -> None:
    with groups_of(ModelAveraging(period=1), 2, serving=False) as made:
        book = {
            inbox.name: inbox.address
            for inbox in (*(s.inbox for s in made.servers), *(loop.inbox for loop in made.loops))
        }
        made.loops[0].steps_done(1)
        made.loops[1].steps_done(1)
        made.until(lambda: len(waiting) == 2)  # their snapshots have been sent
        made.weights[0].write(lambda: made.stores[0]["a"].add_(100.0))  # type: ignore[arg-type, return-value]
        assert made.stores[0]["a"][0, 0] == 100.0
        for server in made.servers:
            server.start(book)
        made.until(lambda: all(loop.rounds_done == 1 for loop in made.loops))
        assert (made.stores[0]["a"][0, 0].item(), made.stores[1]["a"][0, 0].item()) == (100.5, 0.5)


@pytest.mark.parametrize("mode", ["background", "fixed_rate"])
def test_a_round_that_nobody_answers_is_a_peer_lost_and_lets_steps_write_again(mode: Any) -> None:
    with groups_of(ModelAveraging(period=1, mode=mode), 2, serving=False, seconds=0.5) as made:
        made.loops[0].steps_done(1)
        deadline = time.monotonic() + 20
        while not made.loops[0].error and time.monotonic() < deadline:
            time.sleep(0.01)
        assert isinstance(made.loops[0].error, PeerLost)
        assert "no answer from dense_ps:0, dense_ps:1 to round 0" in str(made.loops[0].error)
        done: list[bool] = []
        made.weights[0].write(lambda: done.append(True))
        assert done == [True]


def test_a_round_that_nobody_answers_ends_at_its_deadline_though_others_invite() -> None:
    """Messages of other rounds are no answer, however many come."""
    with groups_of(ModelAveraging(period=1), 2, serving=False, seconds=0.5) as made:
        loop = made.loops[0]
        outbox = made.network.outbox({loop.inbox.name: loop.inbox.address}, deadline_seconds=2.0)
        loop.steps_done(1)
        deadline = time.monotonic() + 20
        with suppress(PeerLost):  # its inbox goes with it, between two sends
            while not loop.error and time.monotonic() < deadline:
                outbox.send_values(loop.inbox.name, Values("dense_ps:0", Context(0, 0, SYNC_REPLICA, 0), 0), (), ())
                outbox.send_values(loop.inbox.name, Values("dense_ps:0", Context(0, 0, SYNC_REPLICA, 7), 0), (), ())
                time.sleep(0.01)
        outbox.close()
        assert "no answer from dense_ps:0, dense_ps:1 to round 0" in str(loop.error)


def test_a_loop_that_waits_for_an_answer_stops_at_once(waiting: set[SyncLoop], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_SECONDS", 1000.0)  # it is woken, and does not look by itself
    with groups_of(ModelAveraging(period=1), 2, serving=False, seconds=1000.0) as made:
        made.loops[0].steps_done(1)
        made.until(lambda: len(waiting) == 1)
        made.loops[0].stop()
        assert not any(thread.is_alive() for thread in made.loops[0].threads)
        assert made.loops[0].error is None


def test_rounds_are_started_by_steps_not_by_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread sleeps while nothing is due: no polling."""
    monkeypatch.setattr(module, "_IDLE_SECONDS", 1000.0)
    looked: list[int] = []

    class Counting(SyncRounds):
        def invited(self, round: int) -> Any:
            looked.append(round)
            return super().invited(round)

        def steps_done(self, n: int) -> Any:
            looked.append(n)
            return super().steps_done(n)

    with groups_of(Easgd(period=4), 2, seconds=1000.0) as made:
        made.loops[0].machine._rounds = Counting(4)
        for steps in range(1, 4):
            made.loops[0].steps_done(steps)
        time.sleep(0.1)
        assert (looked, made.loops[0].rounds_done) == ([1, 2, 3], 0)
        made.loops[0].steps_done(4)
        made.until(lambda: made.loops[0].rounds_done == 1)
