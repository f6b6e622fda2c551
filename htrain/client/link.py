"""A worker's membership of all servers: it joins, asks in order, says that it lives, leaves (docs/reference/client-protocol.md)."""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from htrain.errors import DataError, PeerLost, RunError
from htrain.membership.messages import (
    VERSION,
    Answered,
    Array,
    Ask,
    Beat,
    FromServer,
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
    from_server,
    request_arrays,
)
from htrain.membership.served import Served, ServedCache
from htrain.membership.sockets import Caller
from htrain.sync.request import Request

_BEATS_PER_LEASE = 5
_SAY_AGAIN_SECONDS = 2.0  # what was lost with a connection is sent again
_KNOWN_SECONDS = 10.0  # until it is asked again whether a server that has a request still has it
_LEAVE_SECONDS = 2.0
_TURN_SECONDS = 0.5
_MOST_SECONDS = 1.0  # that count between two looks: a process that was stopped has not waited

CacheAnswer = tuple[Array, Array, Array]


@dataclass(frozen=True)
class Where:
    """Where to join, under what name; who does not answer for `deadline_seconds` is lost, and `round_seconds` are waited for other workers."""

    address: str
    token: str
    worker: str
    deadline_seconds: float
    round_seconds: float


class Link:
    """For one thread; another says now and then that the worker lives, with the number of `unsent` rows that is set here."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self.unsent = 0
        self._session = secrets.randbelow(2**62) + 1
        self._numbers: dict[int, int] = {}
        self._looks = 0
        self._waiting: dict[int, list[Any]] = {}
        self._early: list[tuple[int, FromServer, Sequence[Any]]] = []  # answers that came while others were waited for
        self._lost: RunError | None = None
        welcome = self._join_first()
        self.served: Served = welcome.served
        self._addresses = [_reachable(each, where.address) for each in welcome.addresses]
        self._caller = Caller(self._addresses)
        self._caches = [self.served.at(server) for server in range(len(self._addresses))]
        self._lease_seconds = welcome.lease_seconds
        try:
            self._join_all()
        except BaseException:
            for server in range(len(self._addresses)):  # those that have it as a member
                self._caller.send(server, encode(Leave(self._session)))
            self._caller.close()
            raise
        self._ended = threading.Event()
        self._pulse = threading.Thread(target=self._beat, name="beats of a worker", daemon=True)
        self._pulse.start()

    # -- requests ----------------------------------------------------------------------------------------------------

    def ask(self, requests: Mapping[str, Sequence[Request]], *, in_round: bool) -> None:
        """Send each cache's requests, one for each of its devices, in one message to each server. Requires: the one before was answered.

        `in_round` is the first after a step.
        """
        assert not self._waiting, "a request is under way"
        for server, caches in enumerate(self._caches):
            if not caches:
                continue
            parts = [requests[cache.name][cache.devices.index(server)] for cache in caches]
            number = self._numbers[server] = self._numbers.get(server, 0) + 1
            counts = [tuple(part.counts.tolist()) for part in parts]
            ask = Ask(self._session, number, counts, [part.keys.itemsize for part in parts], in_round)
            self._waiting[server] = encode(ask, request_arrays(parts))
            self._caller.send(server, self._waiting[server])

    def answers(self) -> dict[str, list[CacheAnswer]]:
        """Each cache's answers, in the order of its devices. Raises PeerLost where a server does not answer, or this worker is no member any more."""
        got: dict[int, list[CacheAnswer]] = {}
        waiting = self._waiting

        def take(server: int, message: FromServer, frames: Sequence[Any]) -> bool:
            if not isinstance(message, Answered) or message.number != self._numbers[server] or server not in waiting:
                return False
            got[server] = _answers(message, frames, self._caches[server])
            del waiting[server]
            return True

        early, self._early = self._early, []
        for each in early:
            take(*each)
        try:
            self._await(waiting, take)
        finally:
            self._waiting = {}
        return {
            cache.name: [got[device][self._caches[device].index(cache)] for device in cache.devices]
            for cache in self.served.caches
        }

    @property
    def is_waiting(self) -> bool:
        """Whether a request is under way."""
        return bool(self._waiting)

    def look(self, keys: Mapping[str, Sequence[Array]]) -> dict[str, list[Array]]:
        """Rows as they stand: each cache's, in the order of its devices, for rows of these. Raises PeerLost as `answers` does."""
        got: dict[int, list[Array]] = {}
        self._looks += 1
        waiting: dict[int, list[Any]] = {}
        for server, caches in enumerate(self._caches):
            if caches:
                rows = [keys[cache.name][cache.devices.index(server)] for cache in caches]
                look = Look(self._session, self._looks, [part.size for part in rows])
                waiting[server] = encode(look, rows)
                self._caller.send(server, waiting[server])

        def take(server: int, message: FromServer, frames: Sequence[Any]) -> bool:
            if isinstance(message, Answered):
                self._early.append((server, message, frames))
            if not isinstance(message, Seen) or message.number != self._looks or server not in waiting:
                return False
            wanted = [keys[cache.name][cache.devices.index(server)].size for cache in self._caches[server]]
            widths = [cache.width for cache in self._caches[server]]
            shapes = zip(frames, wanted, widths, strict=True)
            got[server] = [array_from(frame, "float32", (count, width)) for frame, count, width in shapes]
            del waiting[server]
            return True

        self._await(waiting, take)
        return {
            cache.name: [got[device][self._caches[device].index(cache)] for device in cache.devices]
            for cache in self.served.caches
        }

    def leave(self) -> None:
        """Be a member no more. Servers that do not hear of it find out when the lease runs out."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._pulse.join(_LEAVE_SECONDS)
        waiting = dict.fromkeys(range(len(self._addresses)))
        for server in waiting:
            self._caller.send(server, encode(Leave(self._session)))
        end = time.monotonic() + _LEAVE_SECONDS
        while waiting and time.monotonic() < end:
            got = self._caller.receive(end - time.monotonic())
            with suppress(RunError):
                if got and isinstance(from_server(got[1][0]), Left):
                    waiting.pop(got[0], None)
        self._caller.close()

    def drop(self) -> None:
        """End without a word: what the servers then say is of no interest."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._pulse.join(_LEAVE_SECONDS)
        self._caller.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _join_first(self) -> Welcome:
        """At the address that is known, which says where the others are."""
        caller = Caller([self.where.address])
        try:
            return self._joined(caller, {0: self.where.address})[0]
        finally:
            caller.close()

    def _join_all(self) -> None:
        self._joined(self._caller, dict(enumerate(self._addresses)))

    def _joined(self, caller: Caller, addresses: Mapping[int, str]) -> dict[int, Welcome]:
        join = Join(
            VERSION,
            self.where.token,
            self.where.worker,
            self._session,
            f"process {os.getpid()} on {socket.gethostname()}",
        )
        frames = encode(join)
        waiting, found = dict.fromkeys(addresses, frames), {}

        def take(server: int, message: FromServer, frames: Sequence[Any]) -> bool:
            if not isinstance(message, Welcome):
                return False
            found[server] = message
            waiting.pop(server, None)
            return True

        for server in addresses:
            caller.send(server, frames)
        _Wait(caller, lambda server: addresses[server], self.where).until(waiting, take)
        return found

    def _await(self, waiting: dict[int, list[Any]], take: "Take") -> None:
        _Wait(self._caller, lambda server: f"sparse_ps:{server} ({self._addresses[server]})", self.where).until(
            waiting, take, lambda: self._lost
        )

    def _beat(self) -> None:
        """Until the worker leaves. What ends it before, such as a socket that cannot be opened, is told to who waits next: servers give up who is silent."""
        try:
            self._beat_on(Caller(self._addresses))
        except Exception as error:
            self._lost = (
                error if isinstance(error, RunError) else RunError(f"its beats: {type(error).__name__}: {error}")
            )

    def _beat_on(self, caller: Caller) -> None:
        """On connections of this thread's own."""
        while not self._ended.wait(self._lease_seconds / _BEATS_PER_LEASE):
            for server in range(len(self._addresses)):
                caller.send(server, encode(Beat(self._session, min(self.unsent, 2**31 - 1))))
            while got := caller.receive(0):
                with suppress(RunError):
                    message = from_server(got[1][0])
                    if isinstance(message, Refused):
                        self._lost = _refusal(f"sparse_ps:{got[0]}", message)
        caller.close()


Take = Callable[[int, FromServer, Sequence[Any]], bool]


class _Wait:
    """Waiting for servers to answer, each of which may ask for patience: what it then waits for are other workers."""

    def __init__(self, caller: Caller, name: Callable[[int], str], where: Where) -> None:
        self._caller, self._name, self._where = caller, name, where

    def until(
        self, waiting: dict[int, list[Any]], take: Take, lost: Callable[[], RunError | None] = lambda: None
    ) -> None:
        """Until nothing is `waiting`; what is said again and again is what stands there. Raises PeerLost, RunError."""
        began = now = 0.0
        looked = time.monotonic()
        heard, again = dict.fromkeys(waiting, began), dict.fromkeys(waiting, began + _SAY_AGAIN_SECONDS)
        missing: list[str] = []
        if error := lost():
            raise error
        while waiting:
            got = self._caller.receive(_TURN_SECONDS)
            before, looked = looked, time.monotonic()
            now += min(looked - before, _MOST_SECONDS)
            if got:
                server, frames = got
                message = from_server(frames[0])
                heard[server] = now
                if isinstance(message, Refused):
                    raise _refusal(self._name(server), message)
                if isinstance(message, Waits):
                    missing = message.missing
                    again[server] = now + min(_KNOWN_SECONDS, self._where.deadline_seconds / 3)
                else:
                    take(server, message, frames[1:])
                continue
            if error := lost():
                raise error
            self._check(waiting, heard, now, missing if now - began > self._where.round_seconds else None)
            for server, frames in waiting.items():
                if now > again[server]:
                    again[server] = now + _SAY_AGAIN_SECONDS
                    self._caller.send(server, frames)

    def _check(
        self, waiting: Mapping[int, Any], heard: Mapping[int, float], now: float, missing: list[str] | None
    ) -> None:
        for server in waiting:
            if now - heard[server] > self._where.deadline_seconds:
                raise PeerLost(
                    f"{self._name(server)} did not answer within {self._where.deadline_seconds:g} s: {_unknown(self._where.address)}is 'htrain serve' "
                    "running there, and does it listen on an address that this host reaches?"
                )
            if missing is not None:
                raise PeerLost(
                    f"{self._name(server)} has waited {self._where.round_seconds:g} s for {', '.join(missing) or 'other workers'}: with a staleness of 0 all "
                    "workers step together; let those that are done leave (tables.close())"
                )


def _unknown(address: str) -> str:
    """That the name in an address is not known here; "" for one that is: it may have become so since."""
    host = address.removeprefix("tcp://").rpartition(":")[0]
    try:
        socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:
        return f"the name {host} is not known here ({getattr(error, 'strerror', None) or error}); "
    return ""


def _refusal(name: str, refused: Refused) -> RunError:
    if refused.kind == "member":
        return PeerLost(
            f"{name}: this worker cannot go on: {refused.reason}; tables.rejoin() begins anew with its rows"
        )
    return RunError(f"{name}: {refused.reason}")


def _answers(message: Answered, frames: Sequence[Any], caches: Sequence[ServedCache]) -> list[CacheAnswer]:
    if not len(message.sizes) * 3 == len(frames) == 3 * len(caches):
        raise DataError(
            f"an answer is for {len(message.sizes)} caches in {len(frames)} frames, {len(caches)} were asked for"
        )
    found = []
    for i, ((rows, stale), cache) in enumerate(zip(message.sizes, caches, strict=True)):
        values, clocks, places = frames[3 * i : 3 * i + 3]
        found.append(
            (
                array_from(values, "float32", (rows, cache.width + cache.state_width)),
                array_from(clocks, "int32", (rows,)),
                array_from(places, "int32", (stale,)),
            )
        )
    return found


def _reachable(address: str, known: str) -> str:
    """An address as it is reached from here: a server that listens everywhere does not know its host's name."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if host in ("0.0.0.0", "[::]", "*"):
        host = known.removeprefix("tcp://").rpartition(":")[0]
    return f"tcp://{host}:{port}"
