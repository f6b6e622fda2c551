"""Messages over connections that break at any moment come once, in order, and memory is bounded by what was not heard."""

import math
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from htrain.sync.sessions import SETTLING_SECONDS, Arrivals, Sent

SESSION = b"12345678"


@dataclass
class Wire:
    """A sender and a receiver, a connection that may stand or not, and another by which messages are said again."""

    sent: Sent[int] = field(default_factory=Sent)
    arrivals: Arrivals[int] = field(default_factory=Arrivals)
    carried: list[tuple[int, int]] = field(default_factory=list)
    again: list[tuple[int, int]] = field(default_factory=list)
    read_late: list[tuple[int, int]] = field(
        default_factory=list
    )  # come to the receiver's system by connections that are lost
    acknowledged: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    stands: bool = False
    has_stood: bool = False  # until then, whoever sends waits
    way_stands: bool = False
    now: float = 0.0
    said: int = 0

    def _keep(self) -> None:
        self.said += 1
        self.sent.keep(self.said, 1, self.now)
        self.wanted.append(self.said)

    def say(self) -> None:
        self._keep()
        if self.stands:  # what is given to a connection that is lost goes with it
            self.carried.append((self.sent.last, self.said))

    def post(self, *, is_taken: bool) -> None:
        """Say it, and do not wait for the connection, which may have broken at this moment."""
        self._keep()
        if not is_taken:
            self.sent.untaken(self.now)
        elif self.stands:  # otherwise it is lost already
            self.carried.append((self.sent.last, self.said))

    def despair(self) -> None:
        """A message that the connection has not taken for long: it is taken back, or comes in its turn."""
        self._keep()
        if self.sent.take_back():
            self.wanted.pop()

    def lose(self, count: int) -> None:
        """The connection breaks; the first `count` messages on it had come into the receiver's hands, but not to its ears."""
        self.read_late.extend(self.carried[:count])
        self.carried = []
        self.stands = False
        self.sent.broke(self.now)

    def mend(self) -> None:
        self.stands = self.has_stood = True
        self.sent.stood(self.now)

    def lose_way(self, count: int) -> None:
        """The same of that by which messages are said again."""
        self.read_late.extend(self.again[:count])
        self.again = []
        self.way_stands = False
        self.sent.way_broke(self.now)

    def mend_way(self) -> None:
        self.way_stands = True
        self.sent.way_broke(self.now)

    def hear(self, which: int) -> None:
        """One of the connections brings its next message."""
        queues = [self.carried, self.again, self.read_late]
        for queue in (*queues[which:], *queues[:which]):
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
                self.sent.heard(number, self.now)

    def pass_time(self, seconds: float, *, is_taken: bool) -> None:
        """What is due is offered to the other connection, which may not be known to have broken."""
        self.now += seconds
        for number, message in self.sent.due(self.now):
            if not self.way_stands and not is_taken:
                return
            self.sent.said_again(number)
            if self.way_stands:
                self.again.append((number, message))


STEPS = st.one_of(
    st.tuples(st.just("say")),
    st.tuples(st.just("post"), st.booleans()),
    st.tuples(st.just("despair")),
    st.tuples(st.just("lose"), st.integers(0, 3)),
    st.tuples(st.just("mend")),
    st.tuples(st.just("lose way"), st.integers(0, 3)),
    st.tuples(st.just("mend way")),
    st.tuples(st.just("hear"), st.integers(0, 2)),
    st.tuples(st.just("acknowledge"), st.booleans()),
    st.tuples(st.just("pass"), st.floats(0, 1), st.booleans()),
)


def take(wire: Wire, step: tuple[object, ...]) -> None:
    """One step of those drawn."""
    match step:
        case ("say",) if wire.has_stood:
            wire.say()
        case ("post", bool(is_taken)):
            wire.post(is_taken=is_taken and wire.has_stood)
        case ("despair",):
            wire.despair()
        case ("lose", int(count)) if wire.stands:
            wire.lose(count)
        case ("mend",) if not wire.stands:
            wire.mend()
        case ("lose way", int(count)) if wire.way_stands:
            wire.lose_way(count)
        case ("mend way",) if not wire.way_stands:
            wire.mend_way()
        case ("hear", int(which)):
            wire.hear(which)
        case ("acknowledge", bool(comes)):
            wire.acknowledge(comes=comes)
        case ("pass", float(seconds), bool(is_taken)):
            wire.pass_time(seconds, is_taken=is_taken)


@given(st.lists(STEPS, max_size=80))
def test_all_come_once_and_in_order_whatever_is_lost_on_the_way(steps: list[tuple[object, ...]]) -> None:
    wire = Wire()
    for step in steps:
        take(wire, step)
        assert wire.taken == wire.wanted[: len(wire.taken)]
        assert wire.sent.num_bytes <= wire.said
    if not wire.stands:
        wire.mend()
    if not wire.way_stands:
        wire.mend_way()
    wire.acknowledged.append(
        wire.arrivals.heard.get(SESSION, 0)
    )  # the keeper tells it again, where its own way has broken
    for _ in range(3):  # from now on all goes well
        wire.pass_time(1.0, is_taken=True)
        while wire.carried or wire.again or wire.read_late:
            wire.hear(0)
        wire.acknowledge(comes=True)
        wire.acknowledged.clear()
    assert wire.taken == wire.wanted
    assert wire.sent.num_bytes == 0
    assert wire.sent.next_due == math.inf


@given(st.lists(STEPS.filter(lambda step: step[0] not in ("hear", "acknowledge")), max_size=80), st.integers(1, 20))
def test_what_a_receiver_does_not_read_is_said_again_once_for_each_connection(
    steps: list[tuple[object, ...]], most_seconds: int
) -> None:
    """However often the other breaks, and however long it takes."""
    wire = Wire()
    for step in steps:
        take(wire, step)
        wire.pass_time(most_seconds, is_taken=True)
        numbers = [number for number, _ in wire.again]
        assert len(numbers) == len(set(numbers)), "twice by one connection"


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
    sent.stood(0.0)  # it is made
    sent.keep("a", 1, 0.0)
    assert sent.next_due == math.inf
    assert sent.due(1e9) == ()


def test_what_was_said_between_two_connections_is_said_again_once_it_settles() -> None:
    sent: Sent[str] = Sent()
    sent.stood(0.0)
    sent.keep("a", 1, 0.0)
    sent.broke(1.0)
    assert sent.due(1.0) == [(1, "a")]
    sent.said_again(1)
    assert sent.next_due == math.inf
    sent.keep("b", 1, 1.0)  # to a connection that is lost already
    sent.stood(2.0)
    assert sent.next_due == 2.0 + SETTLING_SECONDS
    assert sent.due(2.0 + SETTLING_SECONDS) == [(2, "b")], "a was said by a connection that stands"


def test_what_was_taken_back_leaves_no_gap_and_what_was_said_again_is_not_taken_back() -> None:
    sent: Sent[str] = Sent()
    sent.keep("a", 1, 0.0)
    assert sent.take_back()
    assert sent.num_bytes == 0
    sent.keep("b", 1, 0.0)
    assert sent.last == 1
    sent.broke(0.0)
    (due,) = sent.due(0.0)
    sent.said_again(due[0])
    assert not sent.take_back()
    sent.way_broke(0.0)
    assert sent.due(0.0) == [(1, "b")]


def test_who_hears_steadily_is_behind_and_not_silent() -> None:
    sent: Sent[int] = Sent()
    for number in range(1, 101):
        sent.keep(number, 1, number / 100)
    assert sent.unheard_seconds(10.0) == 10.0 - 0.01
    for number in range(1, 100):
        sent.heard(number, 10.0 * number)
        sent.heard(number, 10.0 * number + 5)  # told again
        assert sent.unheard_seconds(10.0 * number + 9) == 9.0
    sent.heard(100, 2000.0)
    assert sent.unheard_seconds(1e9) == 0.0
    sent.keep(101, 1, 3000.0)
    assert sent.unheard_seconds(3001.0) == 1.0
