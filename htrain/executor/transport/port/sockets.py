"""Opening sockets of ZeroMQ, where that may abort the process, or lead nowhere."""

import errno
import os
import threading
from weakref import WeakSet

import zmq
from zmq.utils.garbage import gc as sent_memory

from htrain.errors import RunError

LINGER_MILLISECONDS = 1000
BUFFER_BYTES = (
    4 << 20
)  # of a folder's socket, or what the system allows: unlike those of TCP they do not grow by themselves
_FILES_OF_A_SOCKET = 8  # its mailbox, the listener or connection, the resolver's, and some for the other threads
_THREADS_OF_A_CONTEXT = 2  # that for IO, and that which closes sockets: they begin with its first socket
_KEEPER_LOCK = threading.Lock()
_BEGUN: "WeakSet[zmq.Context]" = WeakSet()  # contexts that have their threads
_keeps_in: int | None = None  # the process whose memory the thread of pyzmq keeps; its forks have none


def open_socket(context: zmq.Context, kind: int, name: str) -> zmq.Socket:
    """A socket for the endpoint `name`. Raises RunError where the system gives none."""
    try:
        _keep_sent_memory()
        _reserve_files()
        if context not in _BEGUN:
            _reserve_threads(_THREADS_OF_A_CONTEXT)
        socket = context.socket(kind)
        _BEGUN.add(context)
        return socket
    except zmq.ZMQError as error:
        raise RunError(f"{name}: no socket can be opened: {reason(error)}") from error


def descriptor_of(socket: zmq.Socket) -> int:
    """What can be read as soon as something becomes of a socket. It tells of the first event only, until the socket is asked for all."""
    return int(socket.get(zmq.FD))


def reason(error: zmq.ZMQError) -> str:
    """What went wrong, and what helps."""
    return zmq.strerror(error.errno or 0) + _CURES.get(error.errno or 0, "")


_CURES = {
    errno.EMFILE: "; allow this process more open files (ulimit -n)",
    errno.EAGAIN: "; allow this user, or its container, more processes and threads (ulimit -u)",
}


def _keep_sent_memory() -> None:
    """Begin pyzmq's thread that holds what is sent without a copy until ZeroMQ is done with it, where this process has none yet.

    pyzmq begins it by itself, at the first such message, and unguarded: of two threads that send their first at once, one may be left with a socket that leads
    nowhere. ZeroMQ's own thread then waits on it for ever, and the process falls silent.
    """
    global _keeps_in
    # Hundreds of threads that open sockets would wait for each other at the lock.
    if _keeps_in == os.getpid() and sent_memory.is_alive():
        return
    with _KEEPER_LOCK:
        if not sent_memory.is_alive():
            _reserve_files()
            _reserve_threads(1 + _THREADS_OF_A_CONTEXT)
            sent_memory.start()
            zmq.Frame(
                bytes(1), copy=False, copy_threshold=0
            )  # makes what all later messages share: a socket to that thread, and its lock
        _keeps_in = os.getpid()


def _reserve_files() -> None:
    """Raises ZMQError when fewer files can be opened than a socket needs: ZeroMQ aborts the process where it finds out itself."""
    files: list[int] = []
    try:
        for _ in range(_FILES_OF_A_SOCKET):
            files.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise zmq.ZMQError(error.errno or errno.EMFILE) from error
    finally:
        for file in files:
            os.close(file)


def _reserve_threads(count: int) -> None:
    """Raises ZMQError when fewer threads can be begun than a context needs: ZeroMQ aborts the process where it finds out itself."""
    end = threading.Event()
    begun: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            begun.append(thread)
    except RuntimeError as error:
        raise zmq.ZMQError(errno.EAGAIN) from error
    finally:
        end.set()
        for thread in begun:
            thread.join()
