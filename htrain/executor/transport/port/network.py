"""Where the endpoints of one process live."""

import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import zmq

from htrain.executor.engine.context import Spread
from htrain.executor.host.sockets import folder_of
from htrain.executor.transport.port.inbox import Inbox
from htrain.executor.transport.port.keeper import Keeper
from htrain.executor.transport.port.keys import Keys, new_token
from htrain.executor.transport.port.outbox import SEND_SECONDS, Outbox
from htrain.executor.transport.port.sockets import LINGER_MILLISECONDS
from htrain.net.names import role_at

_MOST_HEARD_BYTES = 16 << 20  # of a message that says what has come: some bytes for each session
_LEFT_OPEN: list[zmq.Context] = []


class Network:
    """Where endpoints of one process live: `scheme` is `inproc` for roles that share a process, `ipc` for those that share a host and a `folder`, which nobody
    else can look into, `tcp` for others. `spread` says which process of a role takes a pass, where it has several; `is_shared` whether several roles are in
    this process. Others reach it at `host`, trainers each other at `trainers_host`, which may be on a network of their own. With `keys`, what goes by `tcp` is
    encrypted, and comes from nobody who does not have them. `token` is what all processes of one try of a run have in common: where it is not given, that of
    the keys, or a new one. Of `hosts`, where they are said, come all connections by `tcp`: those of others are closed at once. Inboxes that are made afterwards
    take no frame of more than `most_bytes`, 0 for any. What goes by `tcp` comes once and in order, whatever becomes of connections."""

    def __init__(
        self,
        scheme: str = "tcp",
        host: str = "127.0.0.1",
        trainers_host: str = "",
        folder: Path | None = None,
        keys: Keys | None = None,
        token: bytes = b"",
        hosts: Collection[str] = (),
    ) -> None:
        self.scheme = scheme
        self.hosts = hosts
        self.keys = keys
        self.token = token or (keys.token if keys else new_token())
        self.most_bytes = 0
        self.folder = folder
        self.is_shared = scheme == "inproc"
        self.host = host
        self.trainers_host = trainers_host or host
        self.spread = Spread()
        self.context = zmq.Context(io_threads=1)
        self.context.set(zmq.MAX_SOCKETS, 65_000)
        self._number = 0
        self._shared: dict[str, Any] = {}
        self._near: dict[str, str] = {}
        self._found: dict[str, str] = {}
        self._ends: list[Inbox | Outbox] = []
        self._keeper: Keeper | None = None
        self._lock = threading.Lock()

    @classmethod
    def beside(cls, address: str, token: bytes) -> "Network":
        """That of another process of this host, which can reach an endpoint of this address."""
        folder = folder_of(address)
        return cls("ipc", folder=folder, token=token) if folder else cls("tcp", token=token)

    def another(self) -> "Network":
        """That of another process of this one's role."""
        other = Network(
            self.scheme, self.host, self.trainers_host, self.folder, keys=self.keys, token=self.token, hosts=self.hosts
        )
        other.spread, other.most_bytes = self.spread, self.most_bytes
        return other

    def inbox(self, name: str, *, port: int = 0) -> Inbox:
        """A new endpoint called `name`, of `tcp` at this port, or at any that is free. Raises RunError when `host` is not an address of this machine, or its
        port is taken."""
        with self._lock:
            self._number += 1
            near = f"inproc://{self._number}"
            self._near[name] = near
            keeper = self._sessions(role_at(name))
        bind, near = (near, "") if self.scheme == "inproc" else (self._bound(name, port), near)
        inbox = self._make_inbox(name, bind, near, self.most_bytes, keeper)
        with self._lock:
            self._ends.append(inbox)
        return inbox

    def _make_inbox(self, name: str, bind: str, near: str, most_bytes: int, keeper: Keeper | None) -> Inbox:
        return Inbox(
            self.context,
            name,
            bind,
            near,
            keys=self.keys,
            token=self.token,
            hosts=self.hosts,
            most_bytes=most_bytes,
            keeper=keeper,
        )

    def _sessions(self, role: str) -> Keeper | None:
        """The keeper of this process's sessions, which begins with the first endpoint; None where all are on this host, and nothing comes between."""
        if self._keeper is None and self.scheme == "tcp":
            name = f"{role}/sessions"
            self._keeper = Keeper(
                self.context,
                name,
                self.token,
                lambda: self._make_inbox(name, f"tcp://{self.host}:*", "", _MOST_HEARD_BYTES, None),
                lambda book, watches: Outbox(self.context, book, keys=self.keys, token=self.token, keeper=watches),
            )
        return self._keeper

    def strangers(self, role: str) -> int:
        """Messages of strangers that a role's inboxes in this process have dropped."""
        inboxes = [end for end in self._ends.copy() if isinstance(end, Inbox)]
        own = sum(inbox.strangers for inbox in inboxes if role_at(inbox.name) == role)
        return own + (self._keeper.strangers if self._keeper and role_at(self._keeper.name) == role else 0)

    def _bound(self, name: str, port: int) -> str:
        """Where an endpoint listens for other processes. One of a folder is found where it was, by its name, when its process is begun again."""
        if self.folder:
            return f"ipc://{self.folder / name.replace(':', '_').replace('/', '.')}"
        return f"tcp://{self.host}:{port or '*'}"

    def outbox(self, book: Mapping[str, str], *, deadline_seconds: float = SEND_SECONDS) -> Outbox:
        """A sender to the endpoints of `book`, name -> address, for one thread; to those of this process it goes without the network."""
        with self._lock:
            near = {name: address for name, address in {**self._found, **self._near}.items() if name in book}
            keeper = self._sessions("outbox")
        outbox = Outbox(
            self.context, {**book, **near}, deadline_seconds=deadline_seconds, spread=self.spread, keys=self.keys,
            token=self.token, most_bytes=self.most_bytes, keeper=keeper,
        )  # fmt: skip
        with self._lock:  # agents come and go as long as a run lasts
            self._ends = [end for end in self._ends if isinstance(end, Inbox) or not end.closed] + [outbox]
        return outbox

    def lost(self, role: str) -> None:
        """A role of another process is gone, and will be begun again: what is said to it meanwhile is dropped."""
        for outbox in self._outboxes():
            outbox.lost(role)

    def found(self, role: str, book: Mapping[str, str]) -> None:
        """A role of another process has been begun again, and its endpoints are at these addresses."""
        with self._lock:
            self._found |= book
        for outbox in self._outboxes():
            outbox.found(role, book)

    def _outboxes(self) -> list[Outbox]:
        with self._lock:
            return [end for end in self._ends if isinstance(end, Outbox)]

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        """What roles of this process share under a name; the first to ask makes it."""
        with self._lock:
            if name not in self._shared:
                self._shared[name] = make()
            return self._shared[name]

    def close(self) -> None:
        """End; what is not sent within a second is dropped.

        An inbox or outbox that is still open belongs to a thread that hangs. It stays, and the network with it, until the process ends: libzmq ends the
        process at once where a socket is closed under a thread that uses it.
        """
        are_closed = all(end.closed for end in self._ends)
        if (self._keeper is None or self._keeper.close(leaves_open=not are_closed)) and are_closed:
            self.context.destroy(linger=LINGER_MILLISECONDS)
        else:
            _LEFT_OPEN.append(self.context)  # when it is collected it would wait for these threads
