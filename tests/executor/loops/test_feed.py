"""What a trainer has trained of its data, and where another process of it goes on, against a plain model: whatever order steps end in, and whenever it dies."""

from collections import Counter
from collections.abc import Collection, Iterator

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.data import Batch, Position
from htrain.executor.host.watch import Activity
from htrain.executor.loops.feed import Feed
from htrain.executor.roles.handed import GoesOn

ROWS = 3  # of a batch; a chunk has two
quick = settings(max_examples=100, deadline=None, derandomize=True)


def end_of(number: int) -> Position:
    """Where the batch of this number ends."""
    return Position(number // 4, number // 2 % 2, ROWS * (number % 2 + 1))


def batches_from(start: Position, count: int) -> Iterator[Batch]:
    """Those of the data behind a position."""
    first = next(n for n in range(count + 1) if start == (end_of(n - 1) if n else Position(0, 0, 0)))
    for number in range(first, count):
        yield Batch({"label": np.full(ROWS, number, np.float32)}, ROWS, end_of(number))


def number_of(batch: Batch) -> int:
    return int(batch.columns["label"][0])


class Trained:
    """A trainer whose process may be killed: the batches that it has `open`, and how often each was trained. `open_at_kills` are those open at each."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.trained: Counter[int] = Counter()
        self.open_at_kills: Counter[int] = Counter()
        self.word, self.num_open = b"", 0
        self.begin(Position(0, 0, 0))

    def begin(self, position: Position, trained: Collection[Position] = ()) -> None:
        self.open: list[int] = []
        self.is_over = False
        self.feed = Feed(batches_from(position, self.count), position, 2, Activity("reader"), trained)

    def take(self) -> None:
        batch = self.feed.next()
        if batch is None:
            self.is_over = True
            return
        self.open.append(number_of(batch))
        self.feed.taken(batch.position)
        self.note()

    def end(self, which: int) -> None:
        """One of its steps ends; another process would know of that."""
        number = self.open.pop(which % len(self.open))
        self.trained[number] += 1
        self.feed.ended(end_of(number))
        self.note()

    def note(self) -> None:
        self.word, self.num_open = self.feed.word({"steps": self.trained.total()}), len(self.open)

    def kill(self) -> None:
        """Another process goes on, by the last word of this one."""
        self.open_at_kills.update(self.open)
        self.feed.stop()
        if not self.word:
            self.begin(Position(0, 0, 0))
            return
        word = msgspec.msgpack.decode(self.word, type=GoesOn)
        assert word.open == self.num_open, "as many as it is told to train again"
        assert word.totals == {"steps": self.trained.total()}
        assert len(word.trained) <= self.most_open
        self.begin(word.position, word.trained)

    most_open = 0

    def check(self) -> None:
        """What must hold at any time; at rest, a run that goes on from its position skips nothing, and trains nothing again."""
        for number, times in self.trained.items():
            assert times <= 1 + self.open_at_kills[number]
        if not self.open and not self.feed.is_behind:
            done = {number for number in range(self.count) if self.trained[number]}
            before = {number for number in range(self.count) if _order(end_of(number)) <= _order(self.feed.position)}
            assert done == before


def _order(position: Position) -> tuple[int, int, int]:
    return position.epoch, position.chunk, position.row


@quick
@given(
    count=st.integers(0, 12),
    replicas=st.integers(1, 4),
    actions=st.lists(st.one_of(st.just("take"), st.just("take"), st.integers(0, 7), st.just("kill")), max_size=50),
)
def test_whenever_a_trainer_dies_each_batch_is_trained_and_again_only_what_was_open_then(
    count: int, replicas: int, actions: list[str | int]
) -> None:
    trainer = Trained(count)
    trainer.most_open = max(0, 2 * replicas * (1 + actions.count("kill")) - 1)
    try:
        for action in actions:
            if action == "kill":
                trainer.kill()
            elif action == "take" and len(trainer.open) < 2 * replicas:
                trainer.take()
            elif isinstance(action, int) and trainer.open:
                trainer.end(action)
            trainer.check()
        while not trainer.is_over or trainer.open:
            if trainer.open:
                trainer.end(0)
            else:
                trainer.take()
            trainer.check()
        assert set(trainer.trained) == set(range(count))
        assert not trainer.feed.is_behind
        assert trainer.feed.position == (end_of(count - 1) if count else Position(0, 0, 0))
    finally:
        trainer.feed.stop()


def test_a_trainer_that_is_begun_again_is_behind_until_it_has_come_to_what_was_trained_before() -> None:
    feed = Feed(batches_from(end_of(0), 4), end_of(0), 2, Activity("reader"), [end_of(2)])
    try:
        first = feed.next()
        assert first
        assert number_of(first) == 1
        feed.taken(first.position)
        feed.ended(first.position)
        assert feed.is_behind
        assert feed.position == end_of(1), "a run that went on from here would train batch 2 again"
        second = feed.next()
        assert second
        assert number_of(second) == 3, "batch 2 was trained"
        assert not feed.is_behind
        assert feed.position == end_of(2)
    finally:
        feed.stop()
