"""The gates of a device: one per clock, jobs handed back when they may write, and staleness as a recorded history counts it."""

import random
import threading
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.executor.engine.context import Context
from htrain.executor.engine.gate import WriteGates

quick = settings(max_examples=60, deadline=None, derandomize=True)
Job = tuple[int, Context]


class History:
    """Replicas that walk through steps over some clocks, one action at a time, and what they read and wrote.

    A step begins all its clocks, then commits to them one after another, as backward stages do; it writes when it is granted.
    """

    def __init__(self, replicas: int, clocks: int, bound: int, draw: random.Random) -> None:
        self.gates: WriteGates[Job] = WriteGates(clocks, bound)
        self.clocks = range(clocks)
        self.draw = draw
        self.steps = [Context(0, 0, replica, 0) for replica in range(replicas)]
        self.ahead: dict[Context, list[int]] = {}
        self.granted: set[Job] = set()
        self.waiting: set[Job] = set()
        self.writes: list[list[Context]] = [[] for _ in self.clocks]
        self.seen: dict[Job, int] = {}
        self.staleness: Counter[int] = Counter()

    def advance(self, replica: int) -> bool:
        """One action of a replica; False when it waits for a grant."""
        step = self.steps[replica]
        if step not in self.ahead:
            self.ahead[step] = list(self.clocks)
            self.seen.update({(clock, step): len(self.writes[clock]) for clock in self.clocks})
            self.gates.begin(self.clocks, step)
        elif not self.ahead[step]:
            self.steps[replica] = Context(0, 0, replica, step.step + 1)
            del self.ahead[step]
        elif (job := (self.ahead[step][0], step)) in self.granted:
            self.write(job)
        elif job in self.waiting:
            return False
        else:
            self.waiting.add(job)
            self.grant(self.gates.commit(job[0], step, job))
        return True

    def write(self, job: Job) -> None:
        clock, step = job
        self.granted.remove(job)
        if job in self.seen:
            self.staleness[len(self.writes[clock]) - self.seen[job]] += 1
        self.writes[clock].append(step)
        self.ahead[step].pop(0)
        self.grant(self.gates.end(clock, step))

    def forget(self, replica: int) -> None:
        """A step comes from a trainer that is gone: it writes where it has asked for that, and nowhere else. The next begins behind it."""
        step = self.steps[replica]
        ahead = self.ahead.get(step, [])
        asked = [clock for clock in ahead if (clock, step) in self.granted | self.waiting]
        jobs = self.gates.forget(step)
        if step in self.ahead:
            self.ahead[step] = asked
        self.grant(jobs)
        bounded = self.gates.is_bounded
        assert self.gates.knows(step) == (bounded and bool(asked))
        assert all(self.gates.knows(step, clock) == (bounded and clock in asked) for clock in self.clocks)
        if not bounded:  # what it had read is forgotten, too
            self.seen = {job: seen for job, seen in self.seen.items() if job[1] != step}

    def grant(self, jobs: list[Job]) -> None:
        assert len(jobs) == len(set(jobs))
        assert self.waiting.issuperset(jobs), "a job is handed back once, and only when it has been committed"
        self.waiting.difference_update(jobs)
        self.granted.update(jobs)

    def run(self, actions: int, forgets: float = 0.0) -> None:
        """Replicas act in a random order; a replica that waits lets another one act. Now and then one's step is forgotten. Fails when all wait."""
        for _ in range(actions):
            if self.draw.random() < forgets:
                self.forget(self.draw.randrange(len(self.steps)))
            replicas = self.draw.sample(range(len(self.steps)), len(self.steps))
            assert any(self.advance(replica) for replica in replicas), "all wait"


@quick
@given(replicas=st.integers(1, 5), clocks=st.integers(1, 2), draw=st.randoms(use_true_random=False))
def test_staleness_stays_within_the_bound_and_is_counted_as_it_was(
    replicas: int, clocks: int, draw: random.Random
) -> None:
    history = History(replicas, clocks, replicas, draw)
    history.run(80)
    assert max(history.staleness, default=0) <= replicas
    assert history.gates.histogram == history.staleness


@quick
@given(
    replicas=st.integers(1, 5),
    clocks=st.integers(1, 2),
    bounded=st.booleans(),
    draw=st.randoms(use_true_random=False),
)
def test_steps_that_are_forgotten_hold_up_nobody_and_the_bound_stays(
    replicas: int, clocks: int, bounded: bool, draw: random.Random
) -> None:
    history = History(replicas, clocks, replicas if bounded else 0, draw)
    history.run(120, forgets=0.2)
    assert not bounded or max(history.staleness, default=0) <= replicas
    assert history.gates.histogram == history.staleness


@quick
@given(replicas=st.integers(1, 5), draw=st.randoms(use_true_random=False))
def test_without_a_bound_nobody_waits_and_staleness_is_counted_all_the_same(replicas: int, draw: random.Random) -> None:
    history = History(replicas, 2, 0, draw)
    for _ in range(200):
        assert history.advance(draw.randrange(replicas))
    assert history.gates.histogram == history.staleness


def steps(count: int) -> list[Context]:
    return [Context(0, 0, replica, 0) for replica in range(count)]


def test_a_step_that_waits_for_an_older_one_gets_its_job_back_when_that_has_written() -> None:
    """Bound 2: the slow step has room for two writes of others, then the third waits until it has written itself."""
    gates: WriteGates[str] = WriteGates(1, 2)
    slow, *fast = [Context(0, 0, 0, 0), *(Context(0, 0, 1, number) for number in range(3))]
    gates.begin([0], slow)
    for number in range(2):
        gates.begin([0], fast[number])
        assert gates.commit(0, fast[number], f"fast {number}") == [f"fast {number}"]
        assert gates.end(0, fast[number]) == []
    gates.begin([0], fast[2])
    assert gates.commit(0, fast[2], "fast 2") == []
    assert gates.commit(0, slow, "slow") == ["slow"]
    assert gates.end(0, slow) == ["fast 2"]
    assert gates.end(0, fast[2]) == []
    assert gates.histogram == {0: 2, 2: 1, 1: 1}


def test_clocks_do_not_hold_up_each_other() -> None:
    gates: WriteGates[str] = WriteGates(2, 2)
    first, second = steps(2)
    gates.begin([0, 1], first)
    gates.begin([0, 1], second)
    assert gates.commit(0, first, "first at 0") == ["first at 0"]
    assert gates.commit(0, second, "second at 0") == ["second at 0"]
    assert gates.commit(1, second, "second at 1") == ["second at 1"]
    assert gates.commit(1, first, "first at 1") == ["first at 1"]


@pytest.mark.parametrize("bound", [0, 2])
def test_a_step_begins_with_the_first_of_its_reads_and_only_once(bound: int) -> None:
    gates: WriteGates[str] = WriteGates(1, bound)
    slow, fast = steps(2)
    gates.begin([0], slow)
    gates.begin([0], fast)
    assert gates.commit(0, fast, "fast") == ["fast"]
    assert gates.end(0, fast) == []
    gates.begin([0], slow)
    assert gates.commit(0, slow, "slow") == ["slow"]
    gates.end(0, slow)
    assert gates.histogram == {0: 1, 1: 1}


def test_a_step_that_reads_no_clock_passes_no_gate() -> None:
    gates: WriteGates[str] = WriteGates(0, 3)
    gates.begin([], steps(1)[0])
    assert gates.histogram == {}


@pytest.mark.parametrize("bound", [0, 4])
def test_steps_of_many_threads_are_all_granted_and_counted(bound: int) -> None:
    gates: WriteGates[threading.Event] = WriteGates(2, bound)
    inside = Counter[int]()

    def replica(number: int) -> None:
        for step in range(100):
            context = Context(0, 0, number, step)
            gates.begin([0, 1], context)
            for clock in (0, 1):
                granted = threading.Event()
                for event in gates.commit(clock, context, granted):
                    event.set()
                assert granted.wait(10)
                inside[number] += 1
                for event in gates.end(clock, context):
                    event.set()

    threads = [threading.Thread(target=replica, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert inside == dict.fromkeys(range(4), 200)
    assert sum(gates.histogram.values()) == 800
    assert not bound or max(gates.histogram) <= bound


@pytest.mark.parametrize("bound", [0, 2])
def test_held_gates_let_nobody_write_until_they_are_released(bound: int) -> None:
    gates: WriteGates[str] = WriteGates(1, bound)
    first, second = Context(0, 0, 0, 0), Context(0, 0, 1, 0)
    for context in (first, second):
        gates.begin((0,), context)
    assert gates.commit(0, first, "first") == ["first"]
    gates.hold()
    assert not gates.await_rest(0.01)  # the first still writes
    assert gates.commit(0, second, "second") == []
    assert gates.end(0, first) == []
    assert gates.await_rest(0)
    assert gates.release() == ["second"]
    gates.hold()
    assert not gates.await_rest(0.01)
    gates.end(0, second)
    assert gates.await_rest(0)
    assert gates.release() == []


def test_waiting_for_rest_ends_with_the_last_write() -> None:
    gates: WriteGates[str] = WriteGates(1, 0)
    context = Context(0, 0, 0, 0)
    gates.begin((0,), context)
    gates.commit(0, context, "job")
    gates.hold()
    writer = threading.Timer(0.05, lambda: gates.end(0, context))
    writer.start()
    assert gates.await_rest(30)
    writer.join()
