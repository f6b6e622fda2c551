"""What the machine of a run's coordinator is told, and what it says: events, instructions, and how a run went (htrain.executor.roles.coordinator).

An Await is answered by an event:

    Came(message)     a role has said something
    Ended(what)       the process of a role has ended by itself, whose name the text begins with
    Asked()           the user asks the run to stop
    Validated(...)    what was to be validated is known, or could not be
    VersionEnded(...) a version has been published, or could not be
    Listened()        all that has come by now has been heard: only then does silence count
"""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from htrain.errors import Error
from htrain.executor.record.measured import Measured
from htrain.executor.record.totals import RunTotals
from htrain.executor.record.validations import Validation
from htrain.executor.transport.wire import Message, Order

Reports = dict[str, dict[str, Any]]
States = dict[str, dict[str, Any]]


# -- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Came:
    """A role has said something."""

    message: Message


@dataclass(frozen=True)
class Ended:
    """What happened to the process of a role, or of several; the text begins with whose it was. Where that `is_replaceable`, another can go on with what it
    did, while others do."""

    what: str
    is_replaceable: bool = False


@dataclass(frozen=True)
class Leaves:
    """Who is to leave once all is saved, and that it does, in words: the run goes on without it, or with who comes in its place."""

    what: str


@dataclass(frozen=True)
class Asked:
    """The user asks the run to stop."""


@dataclass(frozen=True)
class Validated:
    """What Validate asked for is known. `stops` says why the run is to end, "" where it goes on; an `error` ends it, too."""

    stops: str = ""
    error: Error | None = None


@dataclass(frozen=True)
class VersionEnded:
    """The version that CloseVersion was about is there for readers, `news` of it in words; or it is not, for this `error`."""

    news: str
    error: str = ""


@dataclass(frozen=True)
class Listened:
    """All that has come by now has been heard."""


Event = Came | Ended | Leaves | Asked | Validated | VersionEnded | Listened


# -- instructions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Await:
    """Instruction: wait for an event, until the time `until` at most; answered by it. By then at the latest it is Listened."""

    until: float


@dataclass(frozen=True)
class Connect:
    """Instruction: all roles are up, at the endpoints of `book`. Tell everybody where the others are, and the user, in which `places` they run."""

    book: dict[str, str]
    places: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class TellAll:
    """Instruction: give every role an order. One that cannot take it is gone, of which an event will come."""

    order: Order


@dataclass(frozen=True)
class BeginAgain:
    """Instruction: begin the process of a role anew; one that has not ended is ended before. Parameters are those of a `checkpoint`, if it has any."""

    role: str
    checkpoint: str = ""


@dataclass(frozen=True)
class Reach:
    """Instruction: a role that was begun again, as this `incarnation`, is up, at its `endpoints`; all roles are in these `places` now. Tell it where the
    others are, and how many orders they were given."""

    role: str
    endpoints: dict[str, str]
    book: dict[str, str]
    places: dict[str, dict[str, Any]]
    ordered: int
    incarnation: int


@dataclass(frozen=True)
class AskWhetherLives:
    """Instruction: look whether the process of a role is known to live; answered by a bool."""

    role: str


@dataclass(frozen=True)
class AskWhetherReplaceable:
    """Instruction: look whether another process can go on with what a role does, while others do, once its own is ended; answered by a bool."""

    role: str


@dataclass(frozen=True)
class OpenCheckpoint:
    """Instruction: make a folder for a checkpoint of trainers in these states; answered by it, or by Refused."""

    trainers: States


@dataclass(frozen=True)
class CloseCheckpoint:
    """Instruction: all roles have saved into the open checkpoint: make it valid; answered by Refused where the disk does not take it."""

    trainers: States
    saved: States
    finished: bool


@dataclass(frozen=True)
class DropCheckpoint:
    """Instruction: remove the beginnings of the checkpoint that is open, if any."""


@dataclass(frozen=True)
class Validate:
    """Instruction: evaluate a checkpoint beside training; a Validated will come."""

    checkpoint: Path


@dataclass(frozen=True)
class OpenVersion:
    """Instruction: begin a version of the model after so many examples; answered by its name, and that of the one which it is based on."""

    examples: int
    is_final: bool


@dataclass(frozen=True)
class CloseVersion:
    """Instruction: all roles have written their share of the open version, as `published` says, or could not: finish it; a VersionEnded will come."""

    published: States


@dataclass(frozen=True)
class Refused:
    """An answer: the disk has refused."""

    error: str


@dataclass(frozen=True)
class Tell:
    """Instruction: tell the user some news."""

    text: str


@dataclass(frozen=True)
class ShowTotals:
    """Instruction: show and keep the totals so far, and each role's report."""

    totals: RunTotals
    reports: Reports


@dataclass(frozen=True)
class KeepMeasured:
    """Instruction: keep what a run to the end of its data has measured."""

    measured: Measured


Instruction = (
    Await | Connect | TellAll | BeginAgain | Reach
    | AskWhetherLives | AskWhetherReplaceable | OpenCheckpoint | CloseCheckpoint | DropCheckpoint | Validate | OpenVersion | CloseVersion | Tell
    | ShowTotals | KeepMeasured
)  # fmt: skip
Result = TypeVar("Result")
Machine = Generator[Instruction, tuple[float, Any], Result]


@dataclass(frozen=True)
class RunResult:
    """How a run went. `checkpoint` is the folder of the last one, `stopped` says why the run ended before its data did, `retries` how often it was begun again
    by itself, `begun_again` how often a role was while others went on, and `set_back` of about how many examples rows have lost what they had learnt, which
    went back with one. `train_examples` are those of `train_seconds`; `totals` are of all that its parts have trained, before it was resumed or begun again,
    too.

    `validations` are those of the whole run on its validation data, those before it was resumed included.
    """

    totals: RunTotals
    checkpoint: Path
    train_seconds: float
    train_examples: int
    measured: Measured
    stopped: str = ""
    validations: tuple[Validation, ...] = ()
    retries: int = 0
    begun_again: int = 0
    set_back: int = 0

    @property
    def eps(self) -> float:
        """Examples per second of the part that has trained here, its first steps included, and the checkpoint at its end left out; 0 where nothing was left
        to train. `totals.eps` is of the last seconds alone, with that checkpoint in them."""
        return self.train_examples / self.train_seconds if self.train_examples else 0.0
