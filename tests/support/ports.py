"""What tests of ports send, and how they wait for it."""

import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import torch

from htrain.executor.engine.context import Context
from htrain.executor.host.sockets import sockets_folder
from htrain.executor.transport.port import Inbox, Network, Outbox
from htrain.executor.transport.wire import Values

SCHEMES = ("inproc", "ipc", "tcp")
WAIT_SECONDS = 20.0
MakeNetwork = Callable[[str], Network]


def network_of(scheme: str) -> Network:
    """A network of this scheme; sockets of a folder lie in a new one."""
    return Network(scheme, folder=sockets_folder() if scheme == "ipc" else None)


def remove(folder: Path | None) -> None:
    """What the sockets of a network have left."""
    if folder:
        shutil.rmtree(folder)


def send_tensors(outbox: Outbox, peer: str, step: int, tensors: dict[str, torch.Tensor]) -> None:
    outbox.send_values(peer, Values("a", Context(0, 0, 0, step), 1), list(tensors), list(tensors.values()))


def receive(inbox: Inbox) -> tuple[object, dict[str, torch.Tensor]]:
    """The next message. One call of the inbox may come back from many that it has dropped."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (got := inbox.receive(max(0.0, deadline - time.monotonic()))) is None:
        assert time.monotonic() < deadline, "nothing came"
    return got


def receive_step(inbox: Inbox) -> int:
    message, _ = receive(inbox)
    assert isinstance(message, Values)
    return message.context.step


def closed_port() -> str:
    """A TCP address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"
