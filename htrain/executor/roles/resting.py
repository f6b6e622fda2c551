"""When the net replicas of a trainer rest between two steps, and when all of them do; decided without threads (docs/decisions/recovery.md).

told       the trainer is to pause, or to go on
ended      a step has ended                          -> a pause may begin that had to wait
is_told    a replica has come to its place of rest       -> whether it may look, or waits for an order
rests      it looks at what the trainer was told        -> the pause in which it rests, None where it goes on
is_over    it looks again                               -> whether it goes on
"""

from htrain.executor.roles.replica import Orders, Rest


class Resting:
    """The rests of one trainer. `num_idle` replicas rest. Not thread-safe.

    A replica is idle for as long as nobody has told the trainer to go on, not until it has seen that: where the trainer is paused again before, others in
    lockstep have begun the next step, and wait for this one. So one that still sleeps then is not idle: it is about to take a batch.

    A trainer that was begun again, and `owes` batches before those that an earlier process of it has trained, pauses behind these: the one position that a
    checkpoint keeps would not say which were.
    """

    def __init__(self, orders: Orders) -> None:
        self.num_idle = 0
        self._orders = orders
        self._pauses = 0
        self._pauses_later = False

    def told(self, *, paused: bool, owes: bool = False) -> None:
        """The trainer is to pause, or to go on."""
        self._pauses_later = paused and owes
        if self._pauses_later:
            return
        self._pauses += paused and not self._orders.paused
        self._orders.paused = paused
        self.num_idle = self.num_idle if paused else 0

    def ended(self, *, owes: bool) -> None:
        """A step has ended: the trainer, which may have been told to pause, owes batches still, or none."""
        if self._pauses_later and not owes:
            self.told(paused=True)

    def is_told(self, rest: Rest) -> bool:
        """Whether a replica that has come to rest may look: it need not wait for an order that is still on its way."""
        return self._orders.paused or self._orders.stopping or not rest.is_to_come

    def rests(self) -> int | None:
        """A replica looks: the number of the pause in which it rests from now on, None where it goes on at once. Requires: `is_told`."""
        if not self._orders.paused:
            return None
        self.num_idle += 1
        return self._pauses

    def is_over(self, pause: int) -> bool:
        """Whether a replica that rests in this pause goes on."""
        return not self._orders.paused or self._pauses != pause
