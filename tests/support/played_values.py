"""What a played run is made of: its roles, what happens to it, and what it has come to (played.py plays it)."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from htrain.errors import Error
from htrain.executor.roles.coordination import CloseCheckpoint, Instruction, RunResult, TellAll


@dataclass
class Played:
    """A role: what has become of it, and what it leaves undone. `at_rest` is between pause and resume."""

    name: str
    dead: bool = False
    frozen: bool = False
    mute: str = ""  # the step of the run at which it says nothing more: hello, ready, pause, save (never at rest enough for it), saved (never done with it)
    training: bool = False
    at_rest: bool = False
    finished: bool = False
    owes_the_end: bool = False  # its data ended while it was at rest
    steps: int = 0
    spoke: float = 0.0  # what it says comes in order
    said: int = 0  # states
    heard: int = 0  # orders
    loses: bool = False  # the next state that it says
    incarnation: int = 0
    is_away: bool = False  # it was begun again, and does not train yet

    @property
    def is_trainer(self) -> bool:
        return self.name.startswith("trainer")

    @property
    def is_sparse_ps(self) -> bool:
        return self.name.startswith("sparse_ps")

    @property
    def acts(self) -> bool:
        return not self.dead and not self.frozen

    @property
    def steps_on(self) -> bool:
        """Whether it does steps: it trains, and has something to train."""
        return self.training and self.mute not in ("data", "rows")

    def metrics(self) -> dict[str, Any]:
        of_trainer = {"examples": 8 * self.steps, "log_loss": 4.0 * self.steps, "positives": 2.0, "malformed": 0}
        return {"steps": self.steps, "cpu_seconds": 0.0, **(of_trainer if self.is_trainer else {})}

    def state(self) -> dict[str, Any]:
        return {"totals": {"examples": 8 * self.steps}} if self.is_trainer else {}


@dataclass(frozen=True)
class Troubles:
    """What happens to a run. Times are seconds from its begin.

    `faults` are a time, a role and one of: dies, freezes, fails, loses (the next that it says), unreadable, or the step of the run at which it falls mute;
    for a trainer that may be data: then it cannot read a single row; or rows: then it has done two steps before it cannot read on, sooner than it tells of
    them.
    The disk refuses within `full`; the launcher sleeps a minute at `sleeps`.
    """

    asks: float | None = None
    faults: tuple[tuple[float, str, str], ...] = ()
    full: tuple[float, float] = (0.0, 0.0)
    sleeps: tuple[float, ...] = ()
    tells_of_ends: bool = True
    replaces: int = 0  # how often a role may be begun again alone: a trainer
    partial: bool = False  # or a sparse PS, too
    stops: str = ""  # what the validation number `ends_at`, from 1, says
    fails: Error | None = None
    ends_at: int = 0
    away: tuple[float, float] = (0.0, 0.0)  # the storage of versions


@dataclass
class Seen:
    """What a run has come to. `guilty` are the roles that an error may name."""

    result: RunResult | None = None
    error: Error | None = None
    log: list[tuple[float, Instruction]] = field(default_factory=list)
    valid: list[CloseCheckpoint] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    guilty: set[str] = field(default_factory=set)
    seconds: float = 0.0
    examples: int = 0  # trained by all
    refusals: list[float] = field(default_factory=list)
    asked_at: float | None = None
    asked_in_training: bool = (
        False  # the machine has heard of it while roles trained, and not all at the end of their data
    )
    valid_at: list[float] = field(default_factory=list)
    idle_waits: int = 0  # that nothing but their time has ended
    validated: list[Path] = field(default_factory=list)  # the checkpoints that were to be, in their order
    heard_of: int = 0  # of how many of these the machine has heard
    versions: list[tuple[int, bool, float]] = field(
        default_factory=list
    )  # there for readers: examples, whether the last
    unpublished: int = 0  # that could not be
    begun_again: list[str] = field(default_factory=list)  # while others went on
    unreadable: bool = False  # the machine has heard that a role cannot read on

    @property
    def orders(self) -> list[str]:
        return [each.order.verb for _, each in self.log if isinstance(each, TellAll)]
