"""A bell: what one thread, or a signal's handler, rings, and another waits for beside sockets and pipes."""

import socket
from contextlib import suppress


class Bell:
    """`descriptor` can be read from the first ring until `mute`. Rings in between are one."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self.descriptor = self._near.fileno()

    def ring(self) -> None:
        """From any thread, at any time: a bell that is full has been rung, and nobody waits for one that is closed."""
        with suppress(OSError):
            self._far.send(b"\0")

    def mute(self) -> None:
        """Forget the rings so far. What they may have told of is to be looked at after that, not before."""
        with suppress(BlockingIOError):
            while len(self._near.recv(4096)) == 4096:
                pass

    def close(self) -> None:
        """For the thread that waits."""
        self._near.close()
        self._far.close()
