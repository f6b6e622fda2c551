"""The thread of a sparse PS that serves workers from outside; who may do what is decided by `htrain.sync.membership`."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any, Protocol

import numpy as np

from htrain.errors import DataError, Error, RunError
from htrain.executor.host.bell import Bell
from htrain.executor.host.threads import begin_thread
from htrain.membership.messages import (
    VERSION,
    Answered,
    Array,
    Ask,
    Beat,
    FromWorker,
    Join,
    Leave,
    Left,
    Look,
    Refused,
    Seen,
    Waits,
    Welcome,
    array_from,
    encode,
    from_worker,
    requests_from,
)
from htrain.membership.served import Serving
from htrain.membership.sockets import Listener, Received
from htrain.sync.membership import (
    UNKNOWN,
    Answer,
    Drop,
    Instruction,
    Membership,
    Push,
    Refuse,
    Repeat,
    Vanished,
)
from htrain.sync.request import Request

MEMBERS = "members"  # of the name of the endpoint
_SPARE_BYTES = 1 << 20
_LONGEST_WAIT_SECONDS = 1.0
_MOST_SECONDS = 1.0  # that count between two times of listening
_MOST_NEWS = 50


class Holder(Protocol):
    """What holds the rows of one cache."""

    width: int

    def check(self, request: Request) -> None:
        """Raises DataError for a request that does not hold together."""

    def push(self, request: Request) -> None:
        """Take its updates."""

    def pull(self, request: Request) -> Any:
        """An answer with rows, clocks and stale, behind what was pushed."""

    def answer(self, request: Request) -> Any:
        """As `pull`, without what was pushed in a round that is not over."""

    def look(self, rows: Array) -> Array:
        """Rows as they stand."""


@dataclass
class _Kept:
    """What is kept for a member: where it is answered, the requests that wait, and the last answer."""

    sender: bytes = b""
    requests: list[Request] = field(default_factory=list)
    answer: list[Any] = field(default_factory=list)


@dataclass
class MemberCounts:
    """What a server has done for workers from outside."""

    joined: int = 0
    left: int = 0
    vanished: int = 0
    rows_lost: int = 0
    strangers: int = 0
    requests: int = 0
    rows_pushed: int = 0
    rows_fetched: int = 0
    rows_checked: int = 0
    rows_stale: int = 0
    rows_looked_at: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0


class Members:
    """Serves workers at one server, from `start` to `stop`. `holders` are what holds the rows of each cache that has some here."""

    def __init__(self, server: int, serving: Serving, holders: Sequence[Holder]) -> None:
        self.error: Exception | None = None
        self.on_change: Callable[[], None] = lambda: None
        self.sent_to: Mapping[str, int] = {}
        self.counts = MemberCounts()
        listening = serving.listening
        self.server = server
        self._serving = serving
        self._holders = holders
        self._listener = Listener(listening.host, listening.ports[server], _most_bytes(serving, server))
        self.address = self._listener.address
        self._membership = Membership(lease_seconds=listening.lease_seconds, barrier=serving.served.is_synchronous)
        self._kept: dict[int, _Kept] = {}
        self._news: deque[str] = deque(maxlen=_MOST_NEWS)
        self._num_news = 0
        self._addresses: list[str] = []
        self._working = threading.Lock()
        self._held: list[Received] = []
        self._now, self._listened = 0.0, time.monotonic()  # the seconds in which it has listened, and when it did last
        self._paused = self._stopping = False
        self._bell = Bell()
        self._thread = threading.Thread(target=self._guarded, name=f"{MEMBERS} {server}", daemon=True)

    def start(self, addresses: Sequence[str]) -> None:
        """Serve from now on. `addresses` are those of all servers, by number."""
        self._addresses = list(addresses)
        self._thread.start()

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """The one that serves."""
        return (self._thread,)

    def pause(self) -> None:
        """Carry out no request from now on; those that come are kept."""
        with self._working:
            self._paused = True

    def resume(self) -> None:
        """Carry them out again, first those that were kept."""
        with self._working:
            self._paused = False
        self._bell.ring()

    def report(self) -> dict[str, Any]:
        """For the metrics: counts, members now, and the latest of `num_news` pieces of news."""
        return {
            **vars(self.counts),
            "workers": sorted(member.worker for member in self._membership.members.copy().values()),
            "num_news": self._num_news,
            "news": list(self._news),
        }

    def stop(self) -> None:
        """End the thread. Workers that are members then learn of it by the next that they ask."""
        self._stopping = True
        self._bell.ring()
        if self._thread.ident is not None:
            self._thread.join(timeout=10)
        else:
            self._listener.close()
            self._bell.close()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _guarded(self) -> None:
        begin_thread()
        try:
            while not self._stopping:
                self._turn()
        except Exception as error:
            self.error = error if isinstance(error, Error) else RunError(f"{MEMBERS}: {type(error).__name__}: {error}")
            self.on_change()
        finally:
            self._listener.close()
            self._bell.close()

    def _turn(self) -> None:
        """Take a message, those that were held, or note that time has passed."""
        expiry = _LONGEST_WAIT_SECONDS if self._paused else self._membership.next_expiry - self._now
        seconds = min(_LONGEST_WAIT_SECONDS, max(0.0, expiry))
        got = self._listener.receive(seconds, (self._bell.descriptor,))
        self._count_time()
        self._bell.mute()
        with self._working:
            if got and self._paused and not self._is_of_worker(got):
                self._take(got)  # it changes nothing, and is not worth keeping
            elif got:
                self._held.append(got)
                self._have_patience(got)
            if self._paused:
                return
            held, self._held = self._held, []
            for received in held:
                self._take(received)
            self._carry_out(self._membership.expire(self._now))

    def _count_time(self) -> None:
        """Leases run while it listens. A server that stood still, as one that was stopped, or whose loops were compiled, has not heard what waits for it to be
        read: beats of all of its workers."""
        now = time.monotonic()
        self._now += min(now - self._listened, _MOST_SECONDS)
        self._listened = now

    def _is_of_worker(self, received: Received) -> bool:
        """Whether a message is of a member, or of who has the token to become one."""
        with suppress(RunError):
            message = from_worker(received.frames[0] if received.frames else b"")
            if isinstance(message, Join):
                return self._has_token(message)
            return message.session in self._membership.members
        return False

    def _has_token(self, join: Join) -> bool:
        return compare_digest(join.token.encode(), self._serving.listening.token.encode())

    def _have_patience(self, received: Received) -> None:
        """While nothing is carried out: whoever asks is told that it was heard."""
        with suppress(RunError):
            message = from_worker(received.frames[0]) if self._paused and received.frames else None
            if isinstance(message, Ask):
                self._say(received.sender, Waits(message.number, []))

    def _take(self, received: Received) -> None:
        """A message of anybody. What cannot be read is dropped, and counted."""
        try:
            message = from_worker(received.frames[0] if received.frames else b"")
        except RunError:
            self.counts.strangers += 1
            return
        self.counts.bytes_received += sum(frame.nbytes for frame in received.frames)
        try:
            self._answer(message, received)
        except (RunError, DataError) as error:
            self._say(received.sender, Refused("request", str(error)))

    def _answer(self, message: FromWorker, received: Received) -> None:
        now, sender, frames = self._now, received.sender, received.frames[1:]
        if isinstance(message, Join):
            self._join(message, sender, now)
        elif isinstance(message, Ask):
            self._ask(message, sender, frames, now)
        elif isinstance(message, Look):
            self._look(message, sender, frames, now)
        elif isinstance(message, Beat):
            self._carry_out(self._membership.heard(message.session, message.unsent, now), sender)
        else:
            self._leave(message, sender)

    def _join(self, join: Join, sender: bytes, now: float) -> None:
        listening = self._serving.listening
        if join.version != VERSION:
            reason = f"a worker speaks version {join.version} of the protocol, this server version {VERSION}: install the same htrain on both"
            self._say(sender, Refused("version", reason))
        elif not self._has_token(join):
            self.counts.strangers += 1
            self._say(
                sender,
                Refused(
                    "stranger", "the token is not the one of this server: it stands in serving.json of its run folder"
                ),
            )
        else:
            is_new = join.session not in self._membership.members
            self._carry_out(self._membership.joined(join.worker, join.session, join.place, now))
            self._kept.setdefault(join.session, _Kept()).sender = sender
            if is_new:
                self.counts.joined += 1
                self._tell(f"worker {join.worker} has joined ({join.place})")
            self._say(sender, Welcome(self._serving.served, self.server, self._addresses, listening.lease_seconds))

    def _ask(self, ask: Ask, sender: bytes, frames: Sequence[Any], now: float) -> None:
        """Whatever does not hold together is refused before anything has changed."""
        kept = self._kept.get(ask.session)
        if kept is None:
            self._say(sender, Refused("member", UNKNOWN))
            return
        requests = requests_from(ask, frames, [holder.width for holder in self._holders])
        for holder, request in zip(self._holders, requests, strict=True):
            holder.check(request)
        if self._serving.served.is_synchronous and not ask.in_round and any(counts[0] for counts in ask.counts):
            raise RunError("a request brings updates that is in no round: without staleness workers push together")
        instructions = self._membership.asked(ask.session, ask.number, now, in_round=ask.in_round)
        kept.sender = sender
        if any(isinstance(each, Push) for each in instructions):
            kept.requests = requests
        self._carry_out(instructions, sender)
        member = self._membership.members.get(ask.session)
        if member and member.waiting:
            self._say(sender, Waits(ask.number, self._membership.missing))

    def _look(self, look: Look, sender: bytes, frames: Sequence[Any], now: float) -> None:
        if look.session not in self._membership.members:
            self._say(sender, Refused("member", UNKNOWN))
            return
        if not len(look.counts) == len(frames) == len(self._holders):
            raise RunError(f"rows of {len(look.counts)} caches are looked at, {len(self._holders)} are here")
        keys = [array_from(frame, np.int64, (count,)) for frame, count in zip(frames, look.counts, strict=True)]
        values = [holder.look(rows) for holder, rows in zip(self._holders, keys, strict=True)]
        self.counts.rows_looked_at += sum(look.counts)
        self._say(sender, Seen(look.number), values)

    def _leave(self, leave: Leave, sender: bytes) -> None:
        member = self._membership.members.get(leave.session)
        if member:
            self.counts.left += 1
            self._tell(f"worker {member.worker} has left")
        self._carry_out(self._membership.left(leave.session))
        self._say(sender, Left(leave.session))

    def _carry_out(self, instructions: Sequence[Instruction], sender: bytes = b"") -> None:
        for each in instructions:
            if isinstance(each, Push):
                self._push(self._kept[each.member.session].requests)
            elif isinstance(each, Answer):
                self._pull(each)
            elif isinstance(each, Repeat):
                kept = self._kept[each.member.session]
                self._send(kept.sender, kept.answer)
            elif isinstance(each, Refuse):
                self._say(sender, Refused("member", each.reason))
            elif isinstance(each, Drop):
                self._kept.pop(each.member.session, None)
            else:
                self._vanished(each)

    def _push(self, requests: Sequence[Request]) -> None:
        for holder, request in zip(self._holders, requests, strict=True):
            holder.push(request)
        pushed, fetched, checked = (
            np.sum([request.counts for request in requests], axis=0).tolist() if requests else (0, 0, 0)
        )
        self.counts.requests += 1
        self.counts.rows_pushed += pushed
        self.counts.rows_fetched += fetched
        self.counts.rows_checked += checked

    def _pull(self, to: Answer) -> None:
        member, kept = to.member, self._kept[to.member.session]
        pairs = zip(self._holders, kept.requests, strict=True)
        answers = [holder.pull(request) if to.ends_round else holder.answer(request) for holder, request in pairs]
        self.counts.rows_stale += sum(answer.stale.size for answer in answers)
        sizes = [(answer.clocks.size, answer.stale.size) for answer in answers]
        arrays = [part for answer in answers for part in (answer.rows, answer.clocks, answer.stale)]
        kept.answer, kept.requests = encode(Answered(member.answered, sizes), arrays), []
        self._send(kept.sender, kept.answer)

    def _vanished(self, each: Vanished) -> None:
        member = each.member
        self.counts.vanished += 1
        self.counts.rows_lost += member.unsent
        bound = {cache.staleness for cache in self._serving.served.caches}
        most = f"at most {max(bound) + 1} of each" if min(bound, default=0) >= 0 else "without a bound"
        self._tell(
            f"worker {member.worker} ({member.place}) was not heard for {self._membership.lease_seconds:g} s and is a member no more: "
            f"updates of {member.unsent:,} rows that it had not sent are lost ({most})"
        )

    def _say(self, sender: bytes, message: Any, arrays: Sequence[Array] = ()) -> None:
        self._send(sender, encode(message, arrays))

    def _send(self, sender: bytes, frames: Sequence[Any]) -> None:
        self.counts.bytes_sent += sum(len(frame) if isinstance(frame, bytes) else frame.nbytes for frame in frames)
        self._listener.send(sender, frames)

    def _tell(self, text: str) -> None:
        self._num_news += 1
        self._news.append(text)


def _most_bytes(serving: Serving, server: int) -> int:
    """The longest frame that a worker may send: keys of every row of a cache that is here, pushed, fetched and checked, or gradients of all."""
    longest = _SPARE_BYTES
    for cache in serving.served.at(server):
        own = cache.devices.index(server)
        shards = zip(cache.bounds, cache.bounds[1:], cache.servers, strict=False)
        longest = max(longest, sum(end - begin for begin, end, at in shards if at == own) * max(24, 4 * cache.width))
    return longest


def addresses_in(book: Mapping[str, str], servers: int) -> list[str]:
    """Where each server takes messages of workers, by the endpoints of a run."""
    return [book[members_endpoint(server)] for server in range(servers)]


def members_endpoint(server: int) -> str:
    """The name of a server's endpoint for workers."""
    return f"sparse_ps:{server}/{MEMBERS}"
