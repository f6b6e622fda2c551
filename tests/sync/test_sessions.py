"""Messages over connections that break at any moment come once, in order, and memory is bounded by what was not heard."""

import math
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from htrain.sync.sessions import MOST_PAUSE_SECONDS, SETTLING_SECONDS, Arrivals, Sent

SESSION = b"12345678"


@dataclass
class Wire:
    """A sender and a receiver, a connection that may stand or not, and another by which messages are said again."""

    sent: Sent[int] = field(default_factory=Sent)
    arrivals: Arrivals[int] = field(default_factory=Arrivals)
    carried: list[tuple[int, int]] = field(default_factory=list)
    again: list[tuple[int, int]] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    stands: bool = True
    now: float = 0.0
    said: int = 0

    def say(self) -> None:
        self.said += 1
        self.sent.keep(self.said, 1, self.now)
        if self.stands:  # what is given to a connection that is lost goes with it
            self.carried.append((self.sent.last, self.said))

    def lose(self, count: int) -> None:
        """The connection breaks; the first `count` messages on it had come into the receiver's hands, but not to its ears."""
        came, self.carried = self.carried[:count], []
        self.again.extend(came)
        self.stands = False
        self.sent.broke(self.now)

    def mend(self) -> None:
        self.stands = True
        self.sent.stands(self.now)

    def hear(self, which: int) -> None:
        """One of the connections brings its next message."""
        for queue in (self.carried, self.again) if which % 2 else (self.again, self.carried):
            if queue:
                number, message = queue.pop(0)
                self.taken.extend(self.arrivals.arrived(SESSION, number, message))
                self.acknowledged.append(self.arrivals.heard.get(SESSION, 0))
                return

    def acknowledge(self, *, comes: bool) -> None:
        """What has come is told to the sender, or is lost on the way."""
        if self.acknowledged:
            number = self.acknowledged.pop()
            if comes:
                self.sent.heard(number)

    def pass_time(self, seconds: float, *, reaches: bool) -> None:
        """What is due is said again, and its own connection loses it or not."""
        self.now += seconds
        due = self.sent.due(self.now)
        if due:
            self.sent.said_again(self.now)
            if reaches:
                self.again.extend((message, message) for message in due)


STEPS = st.one_of(
    st.tuples(st.just("say")),
    st.tuples(st.just("lose"), st.integers(0, 3)),
    st.tuples(st.just("mend")),
    st.tuples(st.just("hear"), st.integers(0, 1)),
    st.tuples(st.just("acknowledge"), st.booleans()),
    st.tuples(st.just("pass"), st.floats(0, 1), st.booleans()),
)


@given(st.lists(STEPS, max_size=80))
def test_all_come_once_and_in_order_whatever_is_lost_on_the_way(steps: list[tuple[object, ...]]) -> None:
    wire = Wire()
    for step in steps:
        match step:
            case ("say",):
                wire.say()
            case ("lose", int(count)):
                if wire.stands:
                    wire.lose(count)
            case ("mend",):
                if not wire.stands:
                    wire.mend()
            case ("hear", int(which)):
                wire.hear(which)
            case ("acknowledge", bool(comes)):
                wire.acknowledge(comes=comes)
            case ("pass", float(seconds), bool(reaches)):
                wire.pass_time(seconds, reaches=reaches)
        assert wire.taken == list(range(1, len(wire.taken) + 1))
        assert wire.sent.num_bytes <= wire.said
    if not wire.stands:
        wire.mend()
    wire.acknowledged.append(
        wire.arrivals.heard.get(SESSION, 0)
    )  # the keeper tells it again, where its own way has broken
    for _ in range(200):  # from now on all goes well
        while wire.carried or wire.again:
            wire.hear(0)
        wire.acknowledge(comes=True)
        wire.acknowledged.clear()
        wire.pass_time(1.0, reaches=True)
    assert wire.taken == list(range(1, wire.said + 1))
    assert wire.sent.num_bytes == 0
    assert wire.sent.next_due == math.inf


@given(st.lists(st.integers(1, 12), max_size=60))
def test_what_comes_again_or_too_early_is_not_taken_out_of_turn(numbers: list[int]) -> None:
    arrivals: Arrivals[int] = Arrivals()
    taken = [message for number in numbers for message in arrivals.arrived(SESSION, number, number)]
    wanted = next(number for number in range(1, 14) if number not in numbers) - 1
    assert taken == list(range(1, wanted + 1))
    assert arrivals.heard.get(SESSION, 0) == wanted


def test_sessions_are_numbered_apart() -> None:
    arrivals: Arrivals[str] = Arrivals()
    assert arrivals.arrived(b"a", 1, "a1") == ["a1"]
    assert arrivals.arrived(b"b", 2, "b2") == ()
    assert arrivals.arrived(b"b", 1, "b1") == ["b1", "b2"]


def test_a_connection_that_stands_says_nothing_again_however_late_it_is_heard() -> None:
    sent: Sent[str] = Sent()
    sent.stands(0.0)  # it is made
    sent.keep("a", 1, 0.0)
    assert sent.next_due == math.inf
    assert sent.due(1e9) == ()


def test_pauses_grow_and_what_takes_long_to_send_is_not_sent_over_itself() -> None:
    sent: Sent[str] = Sent()
    sent.keep("large", 1 << 30, 0.0)
    sent.broke(1.0)
    assert sent.due(1.0) == ["large"]
    sent.said_again(1.0)
    assert sent.next_due > 1.0 + 10  # a GiB, by a slow link
    small: Sent[str] = Sent()
    small.keep("small", 1, 0.0)
    small.broke(0.0)
    small.stands(0.0)
    assert small.next_due <= SETTLING_SECONDS
    pauses, now = [], 0.0
    for _ in range(8):
        small.said_again(now)
        pauses.append(small.next_due - now)
        now = small.next_due
    assert pauses == sorted(pauses)
    assert pauses[-1] == MOST_PAUSE_SECONDS
