"""A stretch of road between a sender and an address, on which connections are reset as a router or a firewall does it."""

import contextlib
import selectors
import socket
import struct
import threading

_RESET = struct.pack("ii", 1, 0)  # linger for no time: what was not delivered is dropped, and the other end is told
_READ_BYTES = 1 << 16


class Road:
    """Who connects to `address` reaches `target` (both tcp://host:port). `reset` breaks all connections, and loses what is on its way; `cut` lets nothing pass
    until `mend`."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._lock = threading.Lock()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._open = threading.Event()
        self._open.set()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        with self._lock:
            for each in self._pairs:
                with contextlib.suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                each.close()
            self._pairs.clear()

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._stopping = True
        self.mend()
        self._thread.join(10)
        self.reset()
        self._listener.close()

    def _run(self) -> None:
        while not self._stopping:
            self._open.wait()
            with self._lock, selectors.DefaultSelector() as selector:
                selector.register(self._listener, selectors.EVENT_READ)
                for each in self._pairs:
                    selector.register(each, selectors.EVENT_READ)
                for key, _ in selector.select(0.005):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj in self._pairs:
                        self._carry(key.fileobj)  # type: ignore[arg-type]

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        self.connections += 1
        self._pairs |= {near: far, far: near}

    def _carry(self, source: socket.socket) -> None:
        target = self._pairs[source]
        try:
            data = source.recv(_READ_BYTES)
            if data:
                target.sendall(data)
                return
        except OSError:
            pass
        for each in (source, target):
            del self._pairs[each]
            each.close()
