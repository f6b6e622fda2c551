"""Members of a server against a plain model, under arbitrary interleavings: each request once, in order, and rounds that wait for nobody who has left."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from htrain.sync.membership import Answer, Drop, Instruction, Membership, Push, Refuse, Repeat, Vanished

LEASE = 10.0


@dataclass
class Worker:
    """One incarnation: `asked` requests have been sent, `answered` of them answered."""

    session: int
    in_round: bool = True
    asked: int = 0
    answered: int = 0
    heard: float = 0.0


@dataclass
class World:
    """What has happened, in order: (what, session, number)."""

    membership: Membership
    barrier: bool
    now: float = 0.0
    workers: dict[int, Worker] = field(default_factory=dict)
    history: list[tuple[str, int, int]] = field(default_factory=list)

    def note(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, Push):
                self.history.append(("push", each.member.session, self.workers[each.member.session].asked))
            elif isinstance(each, Answer):
                worker = self.workers[each.member.session]
                worker.answered += 1
                assert each.ends_round == (worker.in_round or not self.barrier)
                assert worker.answered == worker.asked == each.member.answered
                self.history.append(("answer", worker.session, worker.answered))
            elif isinstance(each, Vanished):
                assert self.now - self.workers[each.member.session].heard > LEASE
                self.workers.pop(each.member.session)
            elif isinstance(each, Drop):
                self.workers.pop(each.member.session, None)


class Members(RuleBasedStateMachine):
    """Draws who does what next."""

    @initialize(barrier=st.booleans())
    def begin(self, barrier: bool) -> None:
        self.world = World(Membership(lease_seconds=LEASE, barrier=barrier), barrier)
        self.sessions = 0

    def one(self, which: int) -> Worker | None:
        workers = list(self.world.workers.values())
        return workers[which % len(workers)] if workers else None

    @rule(name=st.integers(0, 3))
    def join(self, name: int) -> None:
        world = self.world
        self.sessions += 1
        instructions = world.membership.joined(f"w{name}", self.sessions, "here", world.now)
        assert all(isinstance(each, Drop | Answer) for each in instructions)
        world.note(instructions)
        world.workers[self.sessions] = Worker(self.sessions, heard=world.now)
        assert not world.membership.joined(f"w{name}", self.sessions, "here", world.now)

    @rule(which=st.integers(0, 9), in_round=st.booleans())
    def ask(self, which: int, in_round: bool) -> None:
        worker = self.one(which)
        if not worker or worker.asked > worker.answered:
            return
        worker.asked += 1
        worker.in_round = in_round
        worker.heard = self.world.now
        self.world.note(
            self.world.membership.asked(worker.session, worker.asked, self.world.now, in_round=worker.in_round)
        )

    @rule(which=st.integers(0, 9))
    def ask_again(self, which: int) -> None:
        """A request whose answer is late, or was lost, comes again: nothing is pushed, and what was answered is said again."""
        worker = self.one(which)
        if not worker or not worker.asked:
            return
        worker.heard = self.world.now
        again = self.world.membership.asked(worker.session, worker.asked, self.world.now, in_round=worker.in_round)
        assert [type(each) for each in again] == ([Repeat] if worker.answered == worker.asked else [])

    @rule(which=st.integers(0, 9), off=st.sampled_from([-1, 2, 5]))
    def ask_out_of_turn(self, which: int, off: int) -> None:
        worker = self.one(which)
        if worker and worker.asked + off not in (worker.asked, worker.answered, worker.answered + 1):
            worker.heard = self.world.now
            (refused,) = self.world.membership.asked(worker.session, worker.asked + off, self.world.now, in_round=True)
            assert isinstance(refused, Refuse)

    @rule(which=st.integers(0, 9))
    def leave(self, which: int) -> None:
        worker = self.one(which)
        if worker:
            del self.world.workers[worker.session]
            self.world.note(self.world.membership.left(worker.session))
            (refused,) = self.world.membership.asked(worker.session, worker.asked + 1, self.world.now, in_round=True)
            assert isinstance(refused, Refuse)

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        world = self.world
        world.now += seconds
        assert (world.membership.next_expiry < world.now) == any(
            world.now - w.heard > LEASE for w in world.workers.values()
        )
        world.note(world.membership.expire(world.now))

    @rule(which=st.integers(0, 9))
    def beat(self, which: int) -> None:
        worker = self.one(which)
        if worker:
            worker.heard = self.world.now
            assert not self.world.membership.heard(worker.session, 3, self.world.now)

    @invariant()
    def nobody_waits_for_somebody_who_is_not_there(self) -> None:
        if not hasattr(self, "world"):
            return
        workers = self.world.workers.values()
        waiting = [worker for worker in workers if worker.asked > worker.answered]
        assert all(worker.in_round for worker in waiting)
        if not self.world.barrier:
            assert not waiting
        else:
            stepping = [worker for worker in workers if worker.asked]
            assert len(waiting) < len(stepping) or not stepping
            assert set(self.world.membership.members) == set(self.world.workers)
            assert len(self.world.membership.missing) == (len(stepping) - len(waiting) if waiting else 0)

    @invariant()
    def each_request_is_pushed_once_and_before_its_answer(self) -> None:
        if hasattr(self, "world"):
            history = self.world.history
            assert len(set(history)) == len(history)
            places = {event: place for place, event in enumerate(history)}
            assert all(
                places["push", session, number] < place
                for (what, session, number), place in places.items()
                if what == "answer"
            )


Members.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestMembers = Members.TestCase


def test_behind_a_barrier_all_push_before_anybody_is_answered() -> None:
    membership = Membership(lease_seconds=LEASE, barrier=True)
    membership.joined("looks", 4, "here", 0.0)
    for session, worker in ((1, "a"), (2, "b"), (3, "c")):
        membership.joined(worker, session, "here", 0.0)
        assert [type(each) for each in membership.asked(session, 1, 0.0, in_round=False)] == [Push, Answer]
    first, second = membership.asked(1, 2, 0.0, in_round=True), membership.asked(2, 2, 0.0, in_round=True)
    assert [type(each) for each in (*first, *second)] == [Push, Push]
    assert membership.missing == ["c"]
    assert [type(each) for each in membership.asked(3, 2, 0.0, in_round=True)] == [Push, Answer, Answer, Answer]


@pytest.mark.parametrize("how", ["left", "expire"])
def test_a_round_goes_on_without_whoever_is_no_member_any_more(how: str) -> None:
    membership = Membership(lease_seconds=LEASE, barrier=True)
    membership.joined("a", 1, "here", 0.0)
    membership.joined("b", 2, "here", 0.0)
    membership.asked(2, 1, 0.0, in_round=False)
    membership.asked(1, 1, 5.0, in_round=True)
    told = membership.left(2) if how == "left" else membership.expire(12.0)
    assert [type(each) for each in told] == [*([Vanished] if how == "expire" else []), Drop, Answer]
