"""When windows are read, brought ahead and trained on, and when rows are written back: what stands behind look-ahead caches, as machines (cDLRM 4, 5).

Four things are done beside each other, each by a generator that yields an instruction and is sent what came of it:

    planning()                 reads the next windows' batches, and gives their rows slots, a window ahead of what is in the caches
    prefetching()              reads a window's rows once the window before is in the caches (Algorithm 1)
    writing()                  puts into the store what has left the caches, in the order in which it left
    next(), ended(), flush()   the trainer's, one of them at a time: its windows, its steps, the end

They share a `Pipeline`, and wait for each other by it alone. Whoever carries their instructions out has threads, simulates them, or lets a test draw
who goes on: he sends to one of them at a time, and after each send looks again at all that are at an `Await`.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from htrain.sync.lookahead.window import WindowChoice

WRITES_WAITING = 64  # that the writer has not begun; more make training wait
_PLANNED = 2  # windows that are not in the caches: the rows of one are read, and another is planned beside it
T = TypeVar("T")


class ReadBatches(NamedTuple):
    """Planner: read this many batches, and announce their ids; answered by how many there are, fewer at the end of the data."""

    batches: int


class Agree(NamedTuple):
    """Planner: say these two to all trainers with the same caches; answered by what each has said, the first one's first."""

    batches: int
    next_batches: int


class Plan(NamedTuple):
    """Planner: make a window of what was read and announced, of so many batches, empty ones where this trainer has no more, and give its rows their slots;
    answered by the window."""

    batches: int


class Prefetch(NamedTuple):
    """Prefetcher: read the rows of a window from the store; answered when they are here."""

    window: Any


class Store(NamedTuple):
    """Writer: write this job's rows to the store; answered when they are there."""

    job: Any


class Place(NamedTuple):
    """Trainer: put a window's rows into the caches; answered by the jobs of writing what made room."""

    window: Any


@dataclass(frozen=True)
class BeginStep:
    """Trainer: take the next batch of the window that was placed last; answered by the step, and what of its rows is not in the caches; or by None where the
    run is stopped."""


class FetchVictims(NamedTuple):
    """Trainer: read these rows from the store, for this step alone."""

    victims: Any


@dataclass(frozen=True)
class EndStep:
    """Trainer: let the victims of the step leave; answered by the jobs of writing them."""


@dataclass(frozen=True)
class LeaveCopies:
    """Trainer: answered by the jobs of writing all rows that are in the caches."""


@dataclass(frozen=True)
class Now:
    """Anybody: answered by the seconds of a clock that never goes back."""


class Await(NamedTuple):
    """Anybody: wait until this holds. Where `late` says what to call it if it does not, there is a deadline."""

    holds: Callable[[], bool]
    late: str = ""


Instruction = (
    ReadBatches
    | Agree
    | Plan
    | Prefetch
    | Store
    | Place
    | BeginStep
    | FetchVictims
    | EndStep
    | LeaveCopies
    | Now
    | Await
)
Machine = Generator[Instruction, Any, T]


class Made(NamedTuple):
    """A window that was planned, of so many batches; then its rows have been read, too."""

    window: Any
    batches: int
    plan_seconds: float
    prefetch_seconds: float = 0.0


class Pipeline:
    """What planner, prefetcher, writer and trainer know of each other. Not thread-safe: its machines are sent to by one at a time.

    - `agreed` windows are those that some trainer has batches for.
    - `planned` windows, `made` ones and `placed` ones: rows of a window are read when all before it are placed, so that at most one waits. Where rows that have
      left the caches are not `patched` from memory, what they drove out has been stored before.
    - `handed` writes and `stored` ones, which are the first of them; those between are in `jobs`, in order.
    - `batches` is the size of the next window, which all trainers have agreed on.
    - `stall_seconds` is for how long training has waited for windows, `place_seconds` how long it took to put them into the caches, and
      `prefetch_seconds`, which training does not wait for, to find and read their rows; of the two, one window is planned while another one's are read.
    - `error` is why one of them could not go on. The others end, and the trainer raises it.
    """

    def __init__(self, choice: WindowChoice, *, patched: bool = True) -> None:
        self.choice = choice
        self.batches = choice.batches
        self.agreed = self.planned = self.made = self.placed = 0
        self.handed = self.stored = 0
        self.jobs: deque[Any] = deque()
        self.stall_seconds = self.place_seconds = self.prefetch_seconds = 0.0
        self.error: Exception | None = None
        self._stopped = False
        self._patched = patched
        self._to_read: deque[Made] = deque()  # planned
        self._waiting: deque[Made] = deque()
        self._is_planned = False  # all data
        self._is_read = False  # the rows of all windows
        self._is_last = False  # no trainer has batches for another window
        self._is_over = False  # all windows have been trained on
        self._steps = 0  # left of the window in the caches
        self._training_began = 0.0
        self._stalled = 0.0  # that the last step of the window in the caches has waited for word of the next one
        self._victim_seconds = 0.0  # that steps of the window in the caches have waited for rows beside it

    def stop(self) -> None:
        """All machines end where they wait next."""
        self._stopped = True

    def fail(self, error: Exception) -> None:
        """One of the machines could not go on; the first reason counts."""
        self.error = self.error or error

    @property
    def news(self) -> tuple[object, ...]:
        """What its machines wait for changes only with this."""
        return (
            self.agreed,
            self._is_last,
            self.planned,
            self._is_planned,
            self.made,
            self.placed,
            self.handed,
            self.stored,
            len(self.jobs),
            self._is_read,
            self.error,
            self._stopped,
        )

    @property
    def is_between(self) -> bool:
        """Whether no step is left of the window in the caches."""
        return not self._steps

    # -- ahead of training -------------------------------------------------------------------------------------------

    def planning(self) -> Machine[None]:
        """Window after window, to the end of the data of all trainers. Its batches are read beforehand; it is planned when no more than another one waits."""
        while window := (yield from self._next_planned()):
            self._to_read.append(window)
            self.planned += 1
        self._is_planned = True

    def _next_planned(self) -> Machine[Made | None]:
        own = yield ReadBatches(self.batches)
        if not (yield from self._until(lambda: self.planned - self.placed < _PLANNED)):
            return None
        began = yield Now()
        said: Sequence[tuple[int, int]] = yield Agree(own, self.choice.batches)
        batches, self.batches = max(read for read, _ in said), said[0][1]
        self.agreed, self._is_last = self.agreed + bool(batches), not batches
        if not batches:
            return None
        window = yield Plan(batches)
        return Made(window, batches, (yield Now()) - began)

    def prefetching(self) -> Machine[None]:
        """The rows of window after window, to the end.

        They are read when the window before is in the caches: then a row that is read changes only where a conflict victim has it, or where it has left the
        caches and is not in the store yet. Those who read it see that, and take it from memory; where they do not, it is read when it is there.
        """
        while (yield from self._until(lambda: bool(self._to_read) or self._is_planned)) and self._to_read:
            planned = self._to_read.popleft()
            if not (yield from self._until(lambda: self.placed == self.made)):
                break
            driven_out = 0 if self._patched else self.handed
            if not (yield from self._until(lambda: self.stored >= driven_out)):  # noqa: B023 - it is asked before the next turn
                break
            began = yield Now()
            yield Prefetch(planned.window)
            self._waiting.append(planned._replace(prefetch_seconds=(yield Now()) - began))
            self.made += 1
        self._is_read = True

    # -- behind training ---------------------------------------------------------------------------------------------

    def writing(self) -> Machine[None]:
        """Write after write, until it is stopped."""
        while (yield from self._until(lambda: bool(self.jobs))):
            yield Store(self.jobs[0])
            self.jobs.popleft()
            self.stored += 1

    # -- training ----------------------------------------------------------------------------------------------------

    def next(self) -> Machine[Any]:
        """The next step, its rows in the caches; None at the end of the data, or where the run is stopped. Raises the error of another machine."""
        if not self._steps and not (yield from self._next_window()):
            return None
        self._steps -= 1
        begun = yield BeginStep()
        if begun is None:
            return None
        step, victims = begun
        if victims:
            began = yield Now()
            yield FetchVictims(victims)
            self._victim_seconds += (yield Now()) - began
        return step

    def has_more(self) -> Machine[bool]:
        """Whether there is another step: at the end of a window it waits until trainers have agreed on the next one. Raises the error of another machine."""
        if not self._steps:
            began = yield Now()
            yield from self._wait(lambda: self.agreed > self.placed or self._is_last)
            self._stalled += (yield Now()) - began
        return bool(self._steps) or self.agreed > self.placed

    def ended(self) -> Machine[None]:
        """The step has been run: its victims leave. Raises the error of another machine."""
        yield from self._hand_over((yield EndStep()))

    def flush(self) -> Machine[None]:
        """Every row of the caches is in the store when this ends; it stays in the cache as well. Raises the error of another machine."""
        yield from self._hand_over((yield LeaveCopies()))
        handed = self.handed
        yield from self._wait(lambda: self.stored >= handed, late="rows of the look-ahead caches were not written back")

    def _next_window(self) -> Machine[bool]:
        """Put the next window into the caches; False at the end."""
        began = yield Now()
        if self._is_over or not (yield from self._wait(lambda: bool(self._waiting) or self._is_read)):
            return False
        if not self._waiting:
            self._is_over = True
            return False
        made = self._waiting.popleft()
        placing = yield Now()
        yield from self._hand_over((yield Place(made.window)))
        self.placed += 1  # behind the writes: who sees it knows of all that were driven out
        ended = yield Now()
        self._steps = made.batches
        self._count(made, began=began, placing=placing, ended=ended)
        return True

    def _count(self, made: Made, *, began: float, placing: float, ended: float) -> None:
        stalled, placed = placing - began + self._stalled, ended - placing
        self.stall_seconds += stalled
        self.place_seconds += placed
        self.prefetch_seconds += made.plan_seconds + made.prefetch_seconds
        trained, self._training_began = began - self._training_began - self._stalled, ended
        self.choice.trained(
            batches=made.batches, train_seconds=trained, prefetch_seconds=max(made.plan_seconds, made.prefetch_seconds), place_seconds=placed,
            stall_seconds=stalled, victim_seconds=self._victim_seconds,
        )  # fmt: skip
        self._victim_seconds = self._stalled = 0.0

    def _hand_over(self, jobs: Sequence[Any]) -> Machine[None]:
        """Give the writer what has left the caches."""
        for job in jobs:
            if (yield from self._wait(lambda: len(self.jobs) < WRITES_WAITING)):
                self.jobs.append(job)
                self.handed += 1

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _wait(self, holds: Callable[[], bool], late: str = "") -> Machine[bool]:
        """As `_until`, for the trainer, which raises the error of another machine."""
        going_on = yield from self._until(holds, late)
        if self.error:
            raise self.error
        return going_on

    def _until(self, holds: Callable[[], bool], late: str = "") -> Machine[bool]:
        """Wait until this holds; False where the run has been stopped, or a machine has failed."""
        yield Await(lambda: self._stopped or self.error is not None or holds(), late)
        return not self._stopped and self.error is None
