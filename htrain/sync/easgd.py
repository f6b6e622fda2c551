"""EASGD in the background (HT 2.2, ShadowSync): when to sync, and how strongly. The arithmetic is ops (htrain.ops.comm)."""

from dataclasses import dataclass

BETA = 0.9  # the EASGD authors' advice: alpha = beta / (number of replicas)


def default_alpha(groups: int) -> float:
    """The elastic rate for `groups` dense replicas: 0.9 / groups, at most 0.5, so that a round never crosses the centre."""
    return min(0.5, BETA / max(1, groups))


@dataclass
class SyncRounds:
    """The state of one background sync net: at most one round in flight, each reply taken once, quiet when asked.

    `period` counts the steps of the group between the starts of two rounds.
    """

    period: int
    _round: int = 0
    _synced_at: int = 0
    _in_flight: bool = False
    _paused: bool = False

    def on_steps(self, steps: int) -> int:
        """The group has done `steps` steps. Return the number of the round to start now, 0 for none."""
        if self._paused or self._in_flight or steps - self._synced_at < self.period:
            return 0
        self._round += 1
        self._synced_at = steps
        self._in_flight = True
        return self._round

    def on_reply(self, number: int) -> bool:
        """The differences of round `number` are here. Return whether to apply them: False for a repeated or stray reply."""
        expected = self._in_flight and number == self._round
        if expected:
            self._in_flight = False
        return expected

    def pause(self) -> None:
        """Start no more rounds."""
        self._paused = True

    def resume(self) -> None:
        """Rounds may start again."""
        self._paused = False

    @property
    def quiet(self) -> bool:
        """No round is in flight and none will start."""
        return self._paused and not self._in_flight
