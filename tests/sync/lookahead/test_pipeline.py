"""The machines behind look-ahead caches, whoever of them is heard next: a seed draws it, and there is no clock, thread or sleep (cDLRM 4, 5).

Each of these changes was made on purpose, and a test here failed with it: rows read before the window before is placed (without the patch), or before what it
drove out is stored, and not put right; a flush that takes windows that are planned for placed; a window told to be placed before its writes are handed over;
the writer taking its last job first, or counting a write before it is stored; a flush that does not wait, or does not hand over; victims that are not fetched;
a window of its own number of batches, or of the trainer's own choice; a wait that heeds no stop, no error, or raises none on the trainer's side; no bound on
writes that wait; a prefetcher that does not say that all is read.
"""

import random
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.executor.strategies.lookahead.joint_caches import JointCaches
from htrain.executor.strategies.lookahead.slot_rows import HostRows
from htrain.executor.strategies.lookahead.table_cache import TableCache, WindowOfTable
from htrain.executor.transport.peers import Ids, Peers, Rows
from htrain.net.placement import CacheGeometry
from htrain.sync.lookahead import pipeline as of
from htrain.sync.lookahead.averaging import EverySteps
from htrain.sync.lookahead.journal import Written
from htrain.sync.lookahead.pipeline import WRITES_WAITING, Pipeline
from htrain.sync.lookahead.window import WindowChoice

quick = settings(max_examples=80, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
Carried = Generator[
    Callable[[], bool] | None, None, Any
]  # yields where others may go on; what must hold before it goes on itself
ROWS = 24
_MOST_EVENTS = 50_000


@dataclass
class Actor:
    """A machine of a pipeline: what it waits for, or what is being carried out for it, of which something can happen at each turn."""

    name: str
    machine: Generator[Any, Any, Any]
    carry_out: Callable[[Any], Carried]
    holds: Callable[[], bool] | None = None
    carried: Carried | None = None
    ended: bool = False
    error: Exception | None = None

    @property
    def can_go_on(self) -> bool:
        return not self.ended and (self.holds is None or self.holds())

    def go_on(self) -> None:
        """One thing happens: what is carried out goes on, or the machine is sent what came of it."""
        answer = None
        try:
            if self.carried:
                try:
                    self.holds = next(self.carried)
                    return
                except StopIteration as end:
                    self.carried, answer = None, end.value
            said = self.machine.send(answer)
            self.holds = said.holds if isinstance(said, of.Await) else None
            self.carried = None if isinstance(said, of.Await) else self.carry_out(said)
        except StopIteration:
            self.ended = True
        except Broken as error:
            self.ended, self.error = True, error


class Broken(Exception):
    """What a test breaks a machine with."""


class Drawn:
    """Lets actors go on in an order that a seed draws: some a thousand times as often as others."""

    def __init__(self, seed: int, actors: Sequence[Actor]) -> None:
        self.draw = random.Random(seed)
        self._actors = [(actor, 10 ** self.draw.uniform(-3, 0)) for actor in actors]
        self.events = 0

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """As long as something can happen."""
        while not until() and (possible := [(a, pace) for a, pace in self._actors if a.can_go_on]):
            actors, paces = zip(*possible, strict=True)
            self.draw.choices(actors, paces)[0].go_on()
            self.events += 1
            assert self.events < _MOST_EVENTS, "it goes on for ever"


@dataclass
class Planned:
    """A window, and its steps."""

    table: WindowOfTable
    steps: deque[tuple[int, Ids]]
    turnover: Any = None


@dataclass
class World:
    """One trainer with a small cache over a store of rows of one number: a step adds 1 to each of its rows. `pauses` are the steps after which all is
    flushed; `broken` says who breaks at which of the things that it carries out."""

    batches: Sequence[Sequence[int]]
    most: int
    sets: int
    ways: int
    patch: bool = True
    pauses: frozenset[int] = frozenset()
    broken: tuple[str, int] = ("", 0)
    seed: int = 0
    steps: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    caught: Exception | None = None

    def __post_init__(self) -> None:
        parts = (torch.zeros(self.sets * self.ways + ROWS, 1),)
        self.cache = TableCache(CacheGeometry(self.sets, self.ways), HostRows(parts), patch=self.patch)
        self.joint = JointCaches({"c": self.cache}, Peers(None), EverySteps(1))
        self.pipeline = Pipeline(WindowChoice(self.most), patched=self.patch)
        self.store: Rows = np.zeros((ROWS, 1), np.float32)
        self.wanted = np.zeros(ROWS)  # what each row is
        self.driven_out: list[Ids] = []  # by windows, and not in the store
        self._unread = deque(enumerate(self.batches))
        self._steps: deque[tuple[int, Ids]] = deque()
        self._read: deque[tuple[int, Ids]] = deque()
        self._clock = random.Random(self.seed + 1)
        self._now = 0.0
        self._num_carried: dict[str, int] = {}
        self.actors = {
            name: Actor(name, machine, lambda said, name=name: self._carried(name, said))  # type: ignore[misc]
            for name, machine in (
                ("planner", self.pipeline.planning()),
                ("prefetcher", self.pipeline.prefetching()),
                ("writer", self.pipeline.writing()),
                ("trainer", self._training()),
            )
        }
        self.drawn = Drawn(self.seed, list(self.actors.values()))

    def run(self) -> "World":
        """To the end of the data; nobody but the writer may wait then, and it ends when it is told to."""
        self.drawn.run()
        stuck = [name for name, actor in self.actors.items() if not actor.ended and name != "writer"]
        assert not stuck, f"nothing can happen, and {stuck} wait"
        self.pipeline.stop()
        self.drawn.run()
        assert all(actor.ended for actor in self.actors.values())
        return self

    def _training(self) -> Generator[Any, Any, None]:
        try:
            while step := (yield from self.pipeline.next()):
                number, ids = step
                self._train(number, ids)
                yield from self.pipeline.ended()
                if number in self.pauses:
                    yield from self._flush()
            yield from self._flush()
        except Broken as error:
            self.caught = error

    def _flush(self) -> Generator[Any, Any, None]:
        yield from self.pipeline.flush()
        if not self.pipeline._stopped and not self.pipeline.error:
            assert self.pipeline.stored == self.pipeline.handed
            if self.patch:
                np.testing.assert_array_equal(self.store[:, 0], self.wanted)

    def _train(self, number: int, ids: Ids) -> None:
        slots = self.cache.slots(ids)
        rows = self.cache.rows_at(slots)
        assert not np.isnan(rows).any(), "a row is used that nobody has read"
        if self.patch:
            np.testing.assert_array_equal(rows[:, 0], self.wanted[ids])
        self.cache.put(slots, rows + 1)
        self.wanted[ids] += 1
        self.steps.append(number)
        self.cache.flush_victims()

    # -- what is carried out -----------------------------------------------------------------------------------------

    def _carried(self, name: str, said: Any) -> Carried:
        count = self._num_carried[name] = self._num_carried.get(name, 0) + 1
        yield
        if self.broken == (name, count):
            self.pipeline.fail(Broken(name))
            raise Broken(name)
        self._now += 10 ** self._clock.uniform(-3, 0)
        assert len(self.pipeline.jobs) <= WRITES_WAITING
        return (yield from getattr(self, f"_{type(said).__name__}")(said))

    def _Now(self, said: of.Now) -> Carried:
        return self._now
        yield

    def _ReadBatches(self, said: of.ReadBatches) -> Carried:
        self._read = deque()
        while len(self._read) < said.batches and self._unread:
            yield
            number, batch = self._unread.popleft()
            self._read.append((number, np.array(batch, np.int64)))
            self.cache.announce(self._read[-1][1])
        return len(self._read)

    def _Agree(self, said: of.Agree) -> Carried:
        return [tuple(said)]
        yield

    def _Plan(self, said: of.Plan) -> Carried:
        assert said.batches == len(self._read)
        return Planned(self.cache.plan([self.cache.announced()]), self._read)
        yield

    def _Prefetch(self, said: of.Prefetch) -> Carried:
        window: Planned = said.window
        self.cache.begin_read(window.table)
        wanted = window.table.fresh_keys
        for gone in () if self.patch else self.driven_out:
            assert not np.isin(wanted, gone).any(), (
                "a row is read between its eviction and its store, and not put right"
            )
        window.table.rows = yield from self._fetched(wanted)
        self.cache.put_right(window.table, window.table.rows)
        yield
        window.turnover = self.joint.turnover({"c": window.table})

    def _fetched(self, keys: Ids) -> Carried:
        """Rows of the store, one by one."""
        rows = np.zeros((keys.size, 1), np.float32)
        for place, key in enumerate(keys):
            yield
            rows[place] = self.store[key]
        return rows

    def _Store(self, said: of.Store) -> Carried:
        written: Written = said.job["c"]
        for key, row in zip(written.keys, written.rows, strict=True):
            yield
            self.store[key] = row
        self.order.append(written.number)
        self.driven_out = [gone for gone in self.driven_out if gone is not written.keys]
        self.cache.stored(written.number)

    def _Place(self, said: of.Place) -> Carried:
        window: Planned = said.window
        self._steps = window.steps
        self.joint.place({"c": window.table}, window.turnover)
        yield
        jobs = self.joint.leaving()
        self.driven_out += [job["c"].keys for job in jobs]
        return jobs

    def _BeginStep(self, said: of.BeginStep) -> Carried:
        return self._steps.popleft(), self.joint.begin_step()
        yield

    def _FetchVictims(self, said: of.FetchVictims) -> Carried:
        fetched = yield from self._fetched(said.victims["c"])
        self.joint.take_victims({"c": fetched})

    def _EndStep(self, said: of.EndStep) -> Carried:
        self.joint.end_step()
        return self.joint.leaving()
        yield

    def _LeaveCopies(self, said: of.LeaveCopies) -> Carried:
        self.joint.leave_copies()
        return self.joint.leaving()
        yield


def batches_of(seed: int, count: int) -> list[list[int]]:
    """Batches of one to five rows: longer data than hypothesis likes to draw."""
    draw = random.Random(seed)
    return [draw.sample(range(ROWS), draw.randint(1, 5)) for _ in range(count)]


data = st.builds(batches_of, seeds, st.integers(0, 24))
pauses = st.frozensets(st.integers(0, 20), max_size=3)
SHAPES = {"most": st.integers(1, 9), "sets": st.sampled_from([1, 3, 7]), "ways": st.integers(1, 3)}


@given(batches=data, pauses=pauses, seed=seeds, **SHAPES)
@quick
def test_every_batch_is_trained_once_in_order_on_rows_as_they_are_and_all_are_stored(
    batches: list[list[int]], pauses: frozenset[int], seed: int, most: int, sets: int, ways: int
) -> None:
    world = World(batches, most, sets, ways, pauses=pauses, seed=seed).run()
    assert world.steps == list(range(len(batches)))
    assert world.order == sorted(world.order)
    np.testing.assert_array_equal(world.store[:, 0], world.wanted)


@given(batches=data, seed=seeds, **SHAPES)
@quick
def test_without_the_patch_what_windows_drive_out_is_stored_before_it_is_read_again(
    batches: list[list[int]], seed: int, most: int, sets: int, ways: int
) -> None:
    world = World(batches, most, sets, ways, patch=False, seed=seed).run()
    assert world.steps == list(range(len(batches)))


@given(batches=data, seed=seeds, events=st.integers(0, 400), **SHAPES)
@quick
def test_a_stop_ends_all_whatever_they_wait_for(
    batches: list[list[int]], seed: int, events: int, most: int, sets: int, ways: int
) -> None:
    world = World(batches, most, sets, ways, seed=seed)
    world.drawn.run(until=lambda: world.drawn.events >= events)
    world.pipeline.stop()
    world.drawn.run()
    assert [name for name, actor in world.actors.items() if not actor.ended] == []
    assert world.steps == list(range(len(world.steps)))


@given(
    batches=data,
    seed=seeds,
    who=st.sampled_from(["planner", "prefetcher", "writer"]),
    when=st.integers(1, 12),
    **SHAPES,
)
@quick
def test_what_breaks_a_thread_ends_the_others_and_reaches_the_trainer(
    batches: list[list[int]], seed: int, who: str, when: int, most: int, sets: int, ways: int
) -> None:
    world = World(batches, most, sets, ways, broken=(who, when), seed=seed)
    world.drawn.run()
    if isinstance(world.pipeline.error, Broken):
        assert all(actor.ended for actor in world.actors.values())
        assert world.caught is world.pipeline.error
    else:
        assert world.steps == list(range(len(batches)))


def test_training_waits_where_the_writer_is_far_behind() -> None:
    """The writer has begun nothing: a step with victims after the other, until as many writes wait as may."""
    batches = [[n % ROWS, (n + 1) % ROWS] for n in range(4 * WRITES_WAITING)]
    world = World(batches, most=len(batches), sets=1, ways=1)
    world.pipeline.batches = len(batches)
    others = [actor for name, actor in world.actors.items() if name != "writer"]
    while able := [actor for actor in others if actor.can_go_on]:
        able[-1].go_on()
    assert len(world.pipeline.jobs) == WRITES_WAITING == len(world.steps) - 1
    world.run()


# -- several trainers --------------------------------------------------------------------------------------------------


class Alike:
    """Trainers with the same caches, which have as many batches as `counts` say: what they agree on, without rows."""

    def __init__(self, counts: Sequence[int], most: int, seed: int) -> None:
        self.windows: list[list[int]] = [[] for _ in counts]
        self.steps: list[list[int | None]] = [[] for _ in counts]
        self._unread = [deque(range(count)) for count in counts]
        self._said: list[list[tuple[int, int]]] = [[] for _ in counts]
        self._read: list[list[int | None]] = [[] for _ in counts]
        self._now, self._draw = 0.0, random.Random(seed + 1)
        self._placed: dict[int, deque[int | None]] = {}
        self.pipelines = [Pipeline(WindowChoice(most)) for _ in counts]
        actors = [actor for rank in range(len(counts)) for actor in self._actors(rank)]
        self.actors = {actor.name: actor for actor in actors}
        self.drawn = Drawn(seed, actors)

    def _actors(self, rank: int) -> Sequence[Actor]:
        pipeline = self.pipelines[rank]
        machines = {
            "planner": pipeline.planning(),
            "prefetcher": pipeline.prefetching(),
            "writer": pipeline.writing(),
            "trainer": self._training(rank),
        }
        return [
            Actor(f"{name} {rank}", machine, lambda said: self._carried(rank, said))
            for name, machine in machines.items()
        ]

    def _training(self, rank: int) -> Generator[Any, Any, None]:
        pipeline = self.pipelines[rank]
        while step := (yield from pipeline.next()):
            self.steps[rank].append(step[0])
            yield from pipeline.ended()
        yield from pipeline.flush()

    def _carried(self, rank: int, said: Any) -> Carried:
        yield
        self._now += 10 ** self._draw.uniform(-3, 0)
        if isinstance(said, of.Agree):
            meeting = len(self._said[rank])
            self._said[rank].append((said.batches, said.next_batches))
            yield lambda: all(len(own) > meeting for own in self._said)
            return [own[meeting] for own in self._said]
        return self._answer(rank, said)

    def _answer(self, rank: int, said: Any) -> Any:
        if isinstance(said, of.Now):
            return self._now
        if isinstance(said, of.ReadBatches):
            count = min(said.batches, len(self._unread[rank]))
            self._read[rank] = [self._unread[rank].popleft() for _ in range(count)]
            return count
        if isinstance(said, of.Plan):
            self.windows[rank].append(said.batches)
            return self._read[rank] + [None] * (said.batches - len(self._read[rank]))
        if isinstance(said, of.Place):
            self._placed[rank] = deque(said.window)
            return [{}] if rank == 0 else []
        if isinstance(said, of.BeginStep):
            return (self._placed[rank].popleft(),), {}
        return [] if isinstance(said, of.EndStep | of.LeaveCopies) else None


@pytest.mark.parametrize("trainers", [2, 3])
@given(seed=seeds, most=st.integers(1, 40), given_counts=st.data())
@quick
def test_trainers_have_the_same_windows_and_each_batch_of_their_own_once(
    trainers: int, seed: int, most: int, given_counts: st.DataObject
) -> None:
    counts = given_counts.draw(st.lists(st.integers(0, 60), min_size=trainers, max_size=trainers))
    alike = Alike(counts, most, seed)
    alike.drawn.run(until=lambda: all(a.ended for a in alike.actors.values() if not a.name.startswith("writer")))
    assert all(windows == alike.windows[0] for windows in alike.windows)
    assert all(pipeline.placed == len(alike.windows[0]) for pipeline in alike.pipelines)
    assert len({len(steps) for steps in alike.steps}) == 1
    for count, steps in zip(counts, alike.steps, strict=True):
        assert steps == [*range(count), *[None] * (len(steps) - count)]
