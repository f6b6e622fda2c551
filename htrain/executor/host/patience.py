"""How long a role waits for others before it gives up."""


class Patience:
    """`deadline_seconds` once the role is warm, and `warm_up_seconds` until then: in the first steps loops are compiled and connections made, by every
    role at once. Thread-safe."""

    def __init__(self, deadline_seconds: float, warm_up_seconds: float) -> None:
        self._deadline_seconds = deadline_seconds
        self._warm_up_seconds = max(deadline_seconds, warm_up_seconds)
        self._is_warm = False

    def warm(self) -> None:
        """The role has done its first step."""
        self._is_warm = True

    @property
    def seconds(self) -> float:
        """The longest wait that begins now."""
        return self._deadline_seconds if self._is_warm else self._warm_up_seconds
