"""Whether a sparse PS, or a group PS, that dies is to be begun again alone by what its launcher was told and has said: the decision, written once more."""

from collections import Counter
from collections.abc import Collection

from htrain.executor.roles import coordination as said
from htrain.executor.transport.wire import State
from htrain.net.names import GROUP_PS, TRAINER, role_of


class GoingOn:
    """What a launcher has heard and said in one try of `roles`. `most` is how often one of them may die without a checkpoint between."""

    def __init__(self, roles: Collection[str], *, most: int, has_checkpoint: bool) -> None:
        self._trainers = {role for role in roles if role_of(role) == TRAINER}
        self._most, self._has_checkpoint = most, has_checkpoint
        self._trains = self._is_open = self._asked = False
        self._finished: set[str] = set()
        self._away: set[str] = set()
        self._lost: Counter[str] = Counter()

    def may_without(self, role: str) -> bool:
        """Others may go on while this one begins again: all train, nobody is away, there is a checkpoint with rows for a sparse PS, and none is written."""
        has_its_own = role_of(role) == GROUP_PS or self._has_checkpoint
        is_whole = self._trains and has_its_own and not self._is_open and not self._away
        return is_whole and self._lost[role] < self._most

    def must_without(self, role: str) -> bool:
        """They have to. Whoever comes to rest for the last time need not."""
        return self.may_without(role) and not self._asked and not self._trainers <= self._finished

    def heard(self, event: said.Event) -> None:
        """The launcher hears this. Of trainers that were begun again nothing comes of the processes before."""
        if isinstance(event, said.Asked):
            self._asked = True
        elif isinstance(event, said.Came) and isinstance(event.message, State) and event.message.state == "finished":
            self._finished.add(event.message.source)

    def does(self, instruction: said.Instruction, answer: object) -> None:
        """The launcher has had this done."""
        if isinstance(instruction, said.TellAll):
            self._has_told(instruction)
        elif isinstance(instruction, said.BeginAgain):
            self._away.add(instruction.role)
            self._finished.discard(instruction.role)
        elif isinstance(instruction, said.OpenCheckpoint):  # all are at rest, be it in vain
            self._trains, self._is_open = False, not isinstance(answer, said.Refused)
        elif isinstance(instruction, said.CloseCheckpoint) and not isinstance(answer, said.Refused):
            self._is_open, self._has_checkpoint = False, True
            self._lost.clear()
        elif isinstance(instruction, said.DropCheckpoint):
            self._is_open = False

    def has_lost(self, role: str) -> None:
        """A role has died, and is begun again."""
        self._lost[role] += 1

    def _has_told(self, instruction: said.TellAll) -> None:
        order = instruction.order
        if order.role and order.verb == "start":
            self._away.discard(order.role)
        elif order.verb in ("start", "resume"):
            self._trains = True
