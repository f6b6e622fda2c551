"""How long a role waits for others before it gives up."""

import time

LOOK_SECONDS = 0.5  # between two looks at a wait
_MOST_SECONDS = 1.0  # that count between two looks


class Patience:
    """`deadline_seconds` once the role is warm, and `warm_up_seconds` until then: in the first steps loops are compiled and connections made, by every
    role at once. Thread-safe."""

    def __init__(self, deadline_seconds: float, warm_up_seconds: float) -> None:
        self._deadline_seconds = deadline_seconds
        self._warm_up_seconds = max(deadline_seconds, warm_up_seconds)
        self._is_warm = False
        self._renewals = 0

    def warm(self) -> None:
        """The role has done its first step."""
        self._is_warm = True

    @property
    def seconds(self) -> float:
        """The longest wait that begins now."""
        return self._deadline_seconds if self._is_warm else self._warm_up_seconds

    def renew(self) -> None:
        """Waits that are under way begin anew: what they wait for may have waited for a role that was lost, which is only now begun again."""
        self._renewals += 1

    @property
    def renewals(self) -> int:
        """How often that was so."""
        return self._renewals

    def begin(self) -> "Wait":
        """A wait that begins now."""
        return Wait(self.seconds, self)


class Wait:
    """A wait of `seconds` at most, for one thread, which looks at it each half second. A process that was stopped has not waited: as one whose container was
    frozen, whose batch system has suspended it, or whose host was, and those that it waits for with it."""

    def __init__(self, seconds: float, patience: Patience | None = None) -> None:
        self.seconds = seconds
        self._patience, self._renewals = patience, patience.renewals if patience else 0
        self._waited = 0.0
        self._looked = time.monotonic()

    @property
    def is_over(self) -> bool:
        """A look: whether it has been waited for longer."""
        now = time.monotonic()
        if self._patience and self._patience.renewals != self._renewals:
            self._renewals, self._waited = self._patience.renewals, 0.0
        self._waited += min(now - self._looked, _MOST_SECONDS)
        self._looked = now
        return self._waited >= self.seconds

    @property
    def until_next_look(self) -> float:
        """Seconds to wait for, before it is to be looked at again."""
        return max(0.0, min(LOOK_SECONDS, self.seconds - self._waited))
