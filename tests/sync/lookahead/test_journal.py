"""Prefetching, caching and writing back in any order of events: no row is stale, none is lost (cDLRM 5)."""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.net.placement import CacheGeometry
from htrain.sync.lookahead.journal import Ids, Journal, Rows, Written
from htrain.sync.lookahead.occupancy import Occupancy

NUM_ROWS, WIDTH = 40, 3


@dataclass
class Prefetched:
    """A window on its way: rows are read from the store one by one, at any time."""

    keys: Ids
    read: int
    rows: Rows
    unread: list[int]


@dataclass
class World:
    """One table, trained through a cache; `truth` is the same training on the whole table."""

    batches: list[list[list[int]]]  # of each window
    geometry: CacheGeometry
    ahead: int
    patches: bool
    random: random.Random
    store: Rows = field(default_factory=lambda: np.arange(NUM_ROWS * WIDTH, dtype=np.float32).reshape(NUM_ROWS, WIDTH))
    reading: list[Prefetched] = field(default_factory=list)
    writing: list[tuple[Written, list[int]]] = field(default_factory=list)
    stale: int = 0
    begun: int = 0
    step: int = 0
    wrong: int = 0

    def __post_init__(self) -> None:
        self.truth = self.store.copy()
        self.journal = Journal()
        self.occupancy = Occupancy(self.geometry, 1)
        self.cache = np.full((self.geometry.num_slots, WIDTH), np.nan, np.float32)

    def run(self) -> None:
        for window, batches in enumerate(self.batches):
            while self.begun <= window or (self.reading and self.reading[0].unread):
                self.work(window)
            self.place(self.reading.pop(0))
            for batch in batches:
                for _ in range(self.random.randrange(6)):
                    self.work(window)
                self.train(np.array(batch, np.int64))
        keys, slots = self.occupancy.residents()
        self.write_back(keys, self.cache[slots])
        while self.writing:
            self.write_some()

    def work(self, window: int) -> None:
        """Something that other threads do."""
        chance = self.random.random()
        if chance < 0.3 and self.begun < min(len(self.batches), window + 1 + self.ahead):
            keys = np.array(sorted({k for batch in self.batches[self.begun] for k in batch}), np.int64)
            unread = self.random.sample(range(keys.size), keys.size)
            self.reading.append(
                Prefetched(keys, self.journal.begin_read(), np.full((keys.size, WIDTH), np.nan, np.float32), unread)
            )
            self.begun += 1
        elif chance < 0.7 and (unread := [p for p in self.reading if p.unread]):
            prefetched = self.random.choice(unread)
            for place in [prefetched.unread.pop() for _ in range(min(7, len(prefetched.unread)))]:
                prefetched.rows[place] = self.store[prefetched.keys[place]]
        elif self.writing:
            self.write_some()

    def write_some(self) -> None:
        written, unwritten = self.writing[0]
        for place in [unwritten.pop() for _ in range(min(5, len(unwritten)))]:
            self.store[written.keys[place]] = written.rows[place]
        if not unwritten:
            self.writing.pop(0)
            self.journal.stored(written.number)

    def write_back(self, keys: Ids, rows: Rows) -> None:
        self.writing.append((self.journal.add(keys, rows), list(range(keys.size))))

    def place(self, window: Prefetched) -> None:
        placement = self.occupancy.place(window.keys)
        self.write_back(placement.evicted_keys, self.cache[placement.evicted_slots].copy())
        keys, rows = window.keys[placement.fresh], window.rows[placement.fresh]
        stale = self.journal.patch(window.read, keys, rows if self.patches else rows.copy())
        self.stale += int(stale.sum())
        if not self.patches:
            self.wrong += int((rows != self.truth[keys]).any(axis=1).sum())
        self.cache[placement.slots[placement.fresh]] = rows
        self.journal.end_read(window.read)

    def train(self, keys: Ids) -> None:
        self.step += 1
        slots = self.occupancy.find(keys)
        victims = keys[slots < 0]
        read, rows = self.journal.begin_read(), np.full((victims.size, WIDTH), np.nan, np.float32)
        for place, victim in enumerate(victims):
            rows[place] = self.store[victim]
            if self.writing and self.random.random() < 0.5:
                self.write_some()
        if self.patches:
            self.journal.patch(read, victims, rows)
        self.journal.end_read(read)
        if self.patches:
            np.testing.assert_array_equal(rows, self.truth[victims])
            np.testing.assert_array_equal(self.cache[slots[slots >= 0]], self.truth[keys[slots >= 0]])
        self.cache[slots[slots >= 0]] += self.step
        self.truth[keys] += self.step
        if victims.size:
            self.write_back(victims, rows + self.step)


batches = st.lists(st.lists(st.integers(0, NUM_ROWS - 1), unique=True, max_size=8), min_size=1, max_size=4)
windows = st.lists(batches, max_size=8)


@settings(max_examples=300, deadline=None)
@given(windows, st.integers(1, 9), st.integers(1, 3), st.integers(0, 3), st.integers(0, 2**32))
def test_training_through_a_cache_is_training_on_the_table(
    drawn: list[list[list[int]]], sets: int, ways: int, ahead: int, seed: int
) -> None:
    world = World(drawn, CacheGeometry(sets, ways), ahead, patches=True, random=random.Random(seed))
    world.run()
    np.testing.assert_array_equal(world.store, world.truth)
    assert world.journal.num_rows == world.journal.num_pending == 0


@pytest.mark.parametrize("seed", range(20))
def test_without_the_patch_every_stale_row_is_counted(seed: int) -> None:
    source = random.Random(seed)
    drawn = [[source.sample(range(NUM_ROWS), 6) for _ in range(3)]]  # later windows start from a store that is right
    drawn += [[source.sample(range(NUM_ROWS), 6) for _ in range(3)]]
    world = World(drawn, CacheGeometry(5, 2), 2, patches=False, random=source)
    world.run()
    assert world.stale == world.wrong


def test_stale_rows_happen_and_are_put_right() -> None:
    found = []
    for seed in range(40):
        source = random.Random(seed)
        drawn = [[source.sample(range(NUM_ROWS), 6) for _ in range(3)] for _ in range(6)]
        world = World(drawn, CacheGeometry(5, 2), 3, patches=True, random=source)
        world.run()
        found.append(world.stale)
    assert sum(found) > 10
