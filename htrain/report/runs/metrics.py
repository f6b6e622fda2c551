"""What metrics.jsonl of a run folder tells: the run over time, and the reports of its roles around the steady part.

Each report of a run is a line of its sums and a line for each role. A resumed run appends: where its seconds begin again, another part begins.
The file may be large, and is untrusted: it is read line by line, and of a long run every second, fourth, ... point is kept.
"""

import math
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec

from htrain.decoding import from_json
from htrain.errors import CheckpointError
from htrain.executor.record.figures import SHORTEST_STEADY_SECONDS
from htrain.files import require_regular

FILE = "metrics.jsonl"
_RUN = "run"
_MOST_POINTS = 2048  # beyond, every other one is left out: a file of weeks is shown like one of minutes
_LONGEST_LINE = 1 << 22  # bytes: a line of metrics has some KB
_WINDOW_SECONDS = 5.0  # over which rates are taken: single reports jump

Count = Annotated[float, msgspec.Meta(ge=0, le=1e300)]


class Caches(msgspec.Struct, frozen=True):
    """Rows that steps asked for, of all caches, and the seconds that trainers waited for rows to be brought in ahead."""

    hits: Count = 0
    misses: Count = 0
    stall_seconds: Count = 0


class _Head(msgspec.Struct, frozen=True):
    role: str


class RunLine(msgspec.Struct, frozen=True):
    """The sums of a run, as far as a report needs them; `eps`, `window_loss` and `window_ne` are over the seconds before."""

    seconds: Count = 0
    examples: Count = 0
    eps: float = math.nan
    window_loss: float | None = None
    window_ne: float | None = None
    staleness: dict[int, Count] = {}
    sync_rounds: Count = 0
    caches: Caches = Caches()


class RoleCaches(msgspec.Struct, frozen=True):
    """What a role's caches needed of each worker, where workers hold each other's tables: distinct rows, summed over its batches."""

    needed: tuple[Count, ...] = ()


class RoleLine(msgspec.Struct, frozen=True):
    """One role's part of a report."""

    role: str
    examples: Count = 0
    steps: Count = 0
    cpu_seconds: Count = 0
    memory_bytes: Count = 0
    sent_to: dict[str, Count] = {}
    seconds_waited: Count = 0
    caches: RoleCaches = RoleCaches()


Line = RunLine | RoleLine


@dataclass(frozen=True)
class Point:
    """A run after `seconds` of all its parts: EPS, loss, NE, hit rate and staleness over the seconds before, nan where there is none;
    `sync_rounds` since the run began, and `examples` that it had trained."""

    seconds: float
    eps: float
    loss: float
    ne: float
    mean_staleness: float
    max_staleness: float
    hit_rate: float
    sync_rounds: float
    examples: float


@dataclass(frozen=True)
class Moment:
    """One report: the sums of the run, and each role's part."""

    run: RunLine
    roles: Mapping[str, RoleLine]

    @property
    def reports(self) -> dict[str, dict[str, Any]]:
        """What each role said, as JSON has it."""
        return {role: msgspec.to_builtins(line) for role, line in self.roles.items()}


@dataclass(frozen=True)
class History:
    """`resumed_at` are the seconds at which the parts after the first began; `num_damaged` lines could not be read, the last was cut off
    where `is_cut`. `before` and `after` enclose the steady part of the last part, the same moment where there is none; where that trained nothing, as one
    that went on with nothing left, they are of the last that did, with the same roles, and `trained_nothing` is true. `roles` are those of the last part: one
    before may have had another cluster.
    """

    points: tuple[Point, ...]
    resumed_at: tuple[float, ...]
    examples: int
    roles: frozenset[str]
    num_damaged: int
    is_cut: bool
    before: Moment
    after: Moment
    trained_nothing: bool = False

    @property
    def seconds(self) -> float:
        """Seconds of the steady part."""
        return self.after.run.seconds - self.before.run.seconds


def read_history(folder: Path, trainers: Sequence[str]) -> History | None:
    """The history of a run of these trainers, without a steady part where none are named; None where the folder has no metrics, or none that can be read.

    Raises CheckpointError for a metrics.jsonl that is no file.
    """
    path = folder / FILE
    try:
        require_regular(path)
        with path.open("rb") as file:
            reader = _Reader(trainers)
            for offset, line in _lines(file):
                reader.take(offset, line)
            return reader.history(file) if reader.offsets else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


def _lines(file: BinaryIO) -> Iterator[tuple[int, Line | None]]:
    """Each line with its place; None for one that cannot be read."""
    offset = 0
    while data := file.readline(_LONGEST_LINE):
        try:
            yield offset, _line(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            yield offset, None
        offset += len(data)


def _line(data: bytes) -> Line | None:
    """Raises msgspec.MsgspecError, UnicodeDecodeError, RecursionError for what is no line of metrics."""
    if not data.endswith(b"\n"):
        return None
    is_run = from_json(data, _Head).role == _RUN
    return from_json(data, RunLine) if is_run else from_json(data, RoleLine)


@dataclass
class _Part:
    """A part of a run: where its reports begin in the file, and at which second, and, of each trainer, when its steps began and its examples last grew.
    It begins behind so many `examples`, at most, and whether it `trains` its reports say."""

    began: float
    sync_rounds: float
    examples: float = 0.0
    trains: bool = False
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    stepped: dict[str, int] = field(default_factory=dict)
    first_steps: dict[str, float] = field(default_factory=dict)
    grew: dict[str, tuple[float, int]] = field(default_factory=dict)


class _Reader:
    """Takes lines in their order. `offsets` are the places of the last part's reports."""

    def __init__(self, trainers: Sequence[str]) -> None:
        self._trainers = frozenset(trainers)
        self._part = _Part(0.0, 0.0)
        self._trained: _Part | None = None  # the last before this that did
        self._resumed_at: list[float] = []
        self._points: list[Point] = []
        self._stride, self._count = 1, 0
        self._window: deque[RunLine] = deque()
        self._roles: set[str] = set()
        self._damaged, self._is_cut = 0, False
        self._last = RunLine()

    @property
    def offsets(self) -> Sequence[int]:
        return self._part.offsets

    def take(self, offset: int, line: Line | None) -> None:
        self._damaged += self._is_cut
        self._is_cut = line is None
        if isinstance(line, RunLine):
            self._take_run(offset, line)
        elif line and self._part.offsets:
            self._roles.add(line.role)
            if line.role in self._trainers:
                self._take_trainer(line)

    def _take_run(self, offset: int, line: RunLine) -> None:
        if line.seconds < self._last.seconds:
            began = self._part.began + self._last.seconds
            self._resumed_at.append(began)
            self._trained = self._part if self._part.trains else self._trained
            examples = min(self._last.examples, line.examples)  # a checkpoint is behind what was reported after it
            self._part = _Part(began, self._part.sync_rounds + self._last.sync_rounds, examples)
            self._window.clear()
            self._roles.clear()
        self._part.trains |= line.examples > self._part.examples
        self._part.offsets.append(offset)
        self._part.seconds.append(line.seconds)
        self._window.append(line)
        while len(self._window) > 2 and line.seconds - self._window[1].seconds > _WINDOW_SECONDS:
            self._window.popleft()
        self._last = line
        if self._count % self._stride == 0:
            self._points.append(_point(self._part, self._window[0], line))
        self._count += 1
        if len(self._points) > _MOST_POINTS:
            self._points, self._stride = self._points[::2], 2 * self._stride

    def _take_trainer(self, line: RoleLine) -> None:
        part, number = self._part, len(self._part.offsets) - 1
        first = part.first_steps.setdefault(line.role, line.steps if self._resumed_at else 0.0)
        if line.steps > first:
            part.stepped.setdefault(line.role, number)
        if line.examples > part.grew.get(line.role, (-1.0, 0))[0]:
            part.grew[line.role] = line.examples, number

    def history(self, file: BinaryIO) -> History:
        """The history as far as it has been read. Requires: a report was taken."""
        before, after = self._ends(file, self._part)
        trained_nothing = False
        if self._trained and not self._part.trains:
            earlier = self._ends(file, self._trained)
            trained_nothing = earlier[1].roles.keys() == after.roles.keys()
            before, after = earlier if trained_nothing else (before, after)
        return History(
            tuple(self._points),
            resumed_at=tuple(self._resumed_at),
            examples=int(self._last.examples),
            roles=frozenset(self._roles),
            num_damaged=self._damaged,
            is_cut=self._is_cut,
            before=before,
            after=after,
            trained_nothing=trained_nothing,
        )

    def _ends(self, file: BinaryIO, part: _Part) -> tuple[Moment, Moment]:
        """What encloses the steady part of a part."""
        begin, end = self._steady(part)
        return _moment(file, part.offsets[begin]), _moment(file, part.offsets[end])

    def _steady(self, part: _Part) -> tuple[int, int]:
        """The reports from which on all trainers had made a step, and until which none was at its end; the first and the last where there
        are no such, or they are close to each other, as a run's own figures have it."""
        last = len(part.offsets) - 1
        if self._trainers and self._trainers <= part.stepped.keys():
            begin, end = max(part.stepped.values()), min(number for _, number in part.grew.values()) - 1
            if begin < end and part.seconds[end] - part.seconds[begin] >= SHORTEST_STEADY_SECONDS:
                return begin, end
        return 0, last


def _point(part: _Part, before: RunLine, line: RunLine) -> Point:
    fresh = {value: count - before.staleness.get(value, 0) for value, count in line.staleness.items()}
    fresh = {value: count for value, count in fresh.items() if count > 0}
    updates = sum(fresh.values())
    hits, misses = line.caches.hits - before.caches.hits, line.caches.misses - before.caches.misses
    return Point(
        part.began + line.seconds,
        eps=line.eps,
        loss=math.nan if line.window_loss is None else line.window_loss,
        ne=math.nan if line.window_ne is None else line.window_ne,
        mean_staleness=sum(value * count for value, count in fresh.items()) / updates if updates else math.nan,
        max_staleness=max(fresh, default=math.nan),
        hit_rate=hits / (hits + misses) if hits + misses > 0 else math.nan,
        sync_rounds=part.sync_rounds + line.sync_rounds,
        examples=line.examples,
    )


def _moment(file: BinaryIO, offset: int) -> Moment:
    """The report that begins at `offset`."""
    file.seek(offset)
    lines = (line for _, line in _lines(file))
    run = next(lines)
    assert isinstance(run, RunLine)
    roles: dict[str, RoleLine] = {}
    for line in lines:
        if isinstance(line, RunLine):
            break
        if line:
            roles[line.role] = line
    return Moment(run, roles)
