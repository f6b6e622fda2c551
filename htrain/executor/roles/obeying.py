"""What a role does about its launcher's orders, and what it tells it by itself; decided without threads or sockets (docs/decisions/roles.md).

told     an order has come                            -> it is carried out, or kept until the role is at rest; whether the role goes on
look     something of the role may have changed       -> the launcher is told, and orders are answered that had to wait
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from htrain.errors import Error, PeerLost
from htrain.executor.roles.limits import is_checkpoint_of, is_name, may_be_alone
from htrain.executor.settings import RunSettings
from htrain.executor.transport.wire import Order
from htrain.sync.exchanges import Numbers


class Obedient(Protocol):
    """The role, as its main thread sees it (htrain.executor.launch.role)."""

    @property
    def name(self) -> str:
        """Which one it is."""

    @property
    def settings(self) -> RunSettings:
        """Those of its run."""

    @property
    def quiet(self) -> bool:
        """Whether a paused role has no step and no round under way."""

    @property
    def finished(self) -> bool:
        """Whether a trainer has trained all data, or all that could be read."""

    @property
    def error(self) -> Exception | None:
        """What has gone wrong in the role."""

    @property
    def reader_error(self) -> Exception | None:
        """Why a trainer cannot read on."""

    def start(self, book: dict[str, str]) -> None:
        """Begin to work with those who are at these addresses."""

    def lost(self, role: str, incarnation: int) -> None:
        """A role is gone, and will be begun again as this incarnation: wait for nothing of it."""

    def found(self, role: str, book: dict[str, str]) -> None:
        """It has been begun again, at these addresses."""

    def pause(self) -> None:
        """Begin no more steps or rounds."""

    def resume(self) -> None:
        """Begin steps and rounds again."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it besides parameters."""

    def metrics(self) -> dict[str, Any]:
        """What it has measured."""

    def save(self, folder: Path, last: str) -> None:
        """Begin to write its parameters as they are now, whole or on top of the checkpoint `last`. Requires: it is at rest."""

    def saved(self) -> dict[str, Any]:
        """What it has written, once, under "saved"."""

    def publish(self, version: str, base: str) -> None:
        """Begin to write what it has of a version of the model. Requires: it is at rest."""

    def published(self) -> dict[str, Any]:
        """What it has written of a version, once."""


class Line(Protocol):
    """The way to the launcher (htrain.executor.transport.link)."""

    def beat(self, metrics: dict[str, Any]) -> None:
        """Report what the role has measured."""

    def state(self, state: str, details: dict[str, Any], number: int, place: int) -> None:
        """Report a state: the number is that of the order which it answers, 0 for none; the place counts reports."""

    def refuse(self) -> None:
        """The last order is none that the launcher gives."""


class Obeying:
    """The orders of one role, and what it has told of itself. `book` has the addresses of what it sends to; `ordered` is how many orders others were
    given before. For one thread."""

    def __init__(self, role: Obedient, line: Line, book: Mapping[str, str], ordered: int = 0) -> None:
        self._role = role
        self._line = line
        self._book = dict(book)
        self._pause: Order | None = None
        self._save: Order | None = None
        self._saving = 0  # the number of the order whose share is written
        self._is_finished = self._is_unreadable = False
        self._said = 0
        self._heard = Numbers(ordered)

    def exchanged(self) -> tuple[int, int]:
        """How much the role has said to the launcher, and how much it has heard. From any thread."""
        return self._said, self._heard.last

    def told(self, order: Order) -> bool:
        """Carry out an order, or begin to. False where it is the last. Raises PeerLost where one before it is lost."""
        role = self._role
        if order.verb in ("stop", "abort"):
            self._line.beat(role.metrics())
            return False
        is_next = self._heard.admit(order.number)
        if is_next is None:
            raise PeerLost(
                f"an order of the launcher before that to {order.verb} is lost, with the connection that it came by"
            )
        if not is_next:  # it comes again
            return True
        if order.verb == "start":
            if not order.role or order.role == role.name:
                role.start(self._book)
        elif order.verb in ("lost", "found"):
            self._told_of(order)
        elif order.verb == "pause":
            role.pause()
            self._pause = order
        elif order.verb == "resume":
            role.resume()
        elif order.verb == "save":
            if is_checkpoint_of(order.folder, role.settings.run_folder) and (not order.base or is_name(order.base)):
                self._save = order
            else:
                self._line.refuse()
        elif order.verb == "publish":
            if is_name(order.folder) and is_name(order.base):
                role.publish(order.folder, order.base)
                self._say("publishing", {}, order.number)
            else:
                self._line.refuse()
        return True

    def _told_of(self, order: Order) -> None:
        """A role is gone, or has been begun again, which may be this one itself. It begins to work once all others have answered that they know of it."""
        if not may_be_alone(order.role):
            self._line.refuse()
        elif order.verb == "lost":
            self._role.lost(order.role, order.incarnation)
        else:
            if order.role != self._role.name:
                self._role.lost(
                    order.role, order.incarnation
                )  # a role that was begun again meanwhile has not heard of that
                self._role.found(order.role, order.book)
            self._say("found", {}, order.number)

    def look(self) -> None:
        """Tell what has changed. Raises the error of any of the role's threads."""
        role, line = self._role, self._line
        # Before the reader's error, which comes first: else a run that could not read on is told of as finished.
        is_finished = role.finished
        if role.error:
            raise role.error
        if role.reader_error and not self._is_unreadable:
            self._is_unreadable = True
            self._say("unreadable", _told(role.reader_error))
        if is_finished and not self._is_finished:
            self._is_finished = True
            line.beat(role.metrics())
            self._say("finished", role.state())
        if published := role.published():
            self._say("published", published)
        if self._pause and role.quiet:
            self._say("paused", role.state(), self._pause.number)
            self._pause = None
        # A round that others had opened before they were at rest may have begun here since.
        if self._save and role.quiet:
            line.beat(role.metrics())  # at rest: the reports of all roles are of the same moment
            role.save(Path(self._save.folder), self._save.base)
            self._say("saving", {}, self._save.number)
            self._saving, self._save = self._save.number, None
        if saved := role.saved():
            self._say("saved", saved["saved"], self._saving)

    def _say(self, state: str, details: dict[str, Any], number: int = 0) -> None:
        self._line.state(state, details, number, self._said + 1)
        self._said += 1


def _told(error: Exception) -> dict[str, Any]:
    """An error as a message carries it."""
    return {
        "kind": type(error).__name__,
        "error": str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}",
    }
