"""Roles as MPI ranks: the only door to mpi4py (docs/decisions/collectives.md).

Rank 0 is the launcher; rank i > 0 takes role i - 1. The launcher's address and the run's settings go to all ranks over MPI; values then
travel over ZeroMQ and gloo as in a local run: over Ethernet, MPICH's own AllReduce takes two to three times as long (tools/bench/collectives.py).
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from mpi4py import MPI

from htrain.decoding import from_json
from htrain.errors import Error, Interrupted, RunError, UsageError, error_named
from htrain.executor.host.address import address_of_name, address_within
from htrain.executor.host.process import settle
from htrain.executor.launch.interrupt import Interrupt
from htrain.executor.launch.play import part_of, play_all
from htrain.executor.launch.rank import call_role, leave, new_folder
from htrain.executor.launch.reach import Needed, require_needed
from htrain.executor.launch.supervisor import Assignment, decode_assignment, encode_assignment
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import Launcher
from htrain.executor.transport.port import Keys, Network, new_token

_REACH_SECONDS = 600.0  # for each rank to read what it is to know data by
_TURN_SECONDS = 0.01
_SAID_BYTES = 4096
_LAST_SECONDS = 10.0  # for all ranks to end that have been told to


def rank() -> int:
    """This process's rank."""
    return int(MPI.COMM_WORLD.Get_rank())


def meet(settings: RunSettings) -> Network:
    """Where the other ranks reach this one: in a folder of sockets when all are on one host, unless networks are said; else over TCP, encrypted unless the
    user trusts the network, and with whoever has the keys that rank 0 makes. All have the token that it makes. Every rank calls it.

    Raises RunError, on all ranks, for a host that is not in these networks, or whose own name is no address.
    """
    alone = len(set(_gather(socket.gethostname()))) == 1
    in_folder = alone and not (settings.network or settings.trainer_network)
    hosts, wrong, told = ("", ""), "", b""
    try:
        hosts = _hosts(settings, alone=alone)
        if rank() == 0:
            told = str(new_folder()).encode() if in_folder else b"".join(Keys.new())
    except RunError as error:
        wrong = str(error)
    if said := list(filter(None, _gather(wrong))):
        raise RunError(said[0])
    told, token = _broadcast(told), _broadcast(new_token() if rank() == 0 else b"")
    if in_folder:
        return Network("ipc", folder=Path(told.decode()), token=token)
    half = len(told) // 2
    keys = Keys(told[:half], told[half:]) if settings.encrypts else None
    # Under its own name a host may be reached at an address that it does not come from; in the network that the user has said it has one.
    everybody = sorted(set(_gather(hosts[0]))) if settings.network else ()
    return Network("tcp", *hosts, keys=keys, token=token, hosts=everybody)


def _hosts(settings: RunSettings, *, alone: bool) -> tuple[str, str]:
    """This host's address, and that at which other trainers reach it."""
    if settings.network:
        host = address_within("--network", settings.network)
    else:
        host = "127.0.0.1" if alone else address_of_name()
    return host, address_within("--trainer-network", settings.trainer_network) if settings.trainer_network else host


def require_ranks(processes: Sequence[Sequence[str]]) -> None:
    """Raises UsageError when there are not as many ranks as processes of roles and one more."""
    size = MPI.COMM_WORLD.Get_size()
    if size != len(processes) + 1:
        each = "role" if all(len(roles) == 1 for roles in processes) else "worker"
        raise UsageError(
            f"mpiexec started {size} ranks; this plan wants {len(processes) + 1}: one per {each} and one for the launcher"
        )


class RoleRanks:
    """The other ranks. `assign` gives each its role; a run that fails before that dismisses them."""

    def __init__(self) -> None:
        self._waiting = True

    def require_reach(self, needed: Needed, interrupt: Interrupt, keep_folder: Callable[[], None]) -> None:
        """Have each rank see whether it reaches what its role needs. Raises what the first of them does not reach; RunError where one does not say so in time;
        Interrupted."""
        _broadcast(msgspec.json.encode(needed))
        request, answers = _all_told(("", ""))
        deadline = time.monotonic() + _REACH_SECONDS
        while not request.Test():
            late = time.monotonic() > deadline
            if late or interrupt.is_asked:
                self._waiting = False  # for what comes next: some are not there yet
                raise (
                    RunError(
                        f"not all ranks have said within {_REACH_SECONDS:.0f} s whether they reach data and folders"
                    )
                    if late
                    else Interrupted("stopped before all ranks had said whether they reach data and folders")
                )
            keep_folder()
            time.sleep(_TURN_SECONDS)
        if wrong := [(kind, said) for kind, said in answers() if kind]:
            raise error_named(*wrong[0])

    def assign(self, processes: Sequence[Sequence[str]], settings: RunSettings, launcher: Launcher) -> None:
        """Requires: there are as many ranks as `require_ranks` asks for."""
        self._waiting = False
        _broadcast(encode_assignment(Assignment(list(map(list, processes)), settings, launcher)))

    def dismiss(self) -> None:
        """Send the other ranks home, unless they have their roles."""
        if self._waiting:
            self._waiting = False
            _broadcast(b"")

    @property
    def descriptors(self) -> Sequence[int]:
        """Nothing: MPI does not tell when a rank ends."""
        return ()

    def lost(self) -> str:
        """Always empty."""
        return ""  # mpiexec ends all ranks when one dies; silence is noticed by the launcher

    def leaving(self) -> str:
        """Always empty: ranks come and go together."""
        return ""

    def can_begin_again(self, role: str) -> bool:
        """None can: see `lost`."""
        return False

    def begin_again(self, role: str, checkpoint: str) -> None:
        """Not to be called. Raises AssertionError."""
        raise AssertionError(f"{role} is a rank of MPI's")

    def lives(self, role: str) -> bool:
        """Always False."""
        return False  # as far as is known: it may be on another host

    def end(self) -> None:
        """Dismiss ranks that have no role; those that have one end when the launcher tells their roles to stop."""
        self.dismiss()

    def abandon(self) -> None:
        """The same: mpiexec ends ranks that stay."""
        self.end()

    def has_left(self) -> bool:
        """Whether all ranks are done, or will be in a moment. One that hangs would have MPI's own end wait for ever."""
        return self._waiting or _meet()

    def kill(self) -> bool:
        """Abort all ranks, this one included, with status 130: that of a process which Ctrl-C has ended."""
        MPI.COMM_WORLD.Abort(128 + signal.SIGINT)
        return True


def follow(network: Network) -> None:
    """Be the role that rank 0 gives this rank, to the end of the run, once all have said that they reach what they need; others reach it over `network`."""
    needed = _broadcast(b"")
    if not needed:
        return
    request, _ = _all_told(_unreached(from_json(needed, Needed)))
    while not request.Test():
        time.sleep(_TURN_SECONDS)
    data = _broadcast(b"")
    if not data:
        return
    assignment = decode_assignment(data)
    roles = assignment.processes[rank() - 1]
    call_role(roles[0])
    settle()
    play_all(roles, partial(part_of, assignment.settings), assignment.settings, network, assignment.launcher)
    network.close()
    _meet()
    leave()


def _unreached(needed: Needed) -> tuple[str, str]:
    """The kind and the words of what is wrong with what this rank's role needs; "" where nothing is."""
    roles = needed.processes[rank() - 1]
    try:
        require_needed(needed, roles, f"rank-{rank()}")
    except Exception as error:  # whatever it is, the others wait for this rank's word
        text = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
        return type(error).__name__, f"{roles[0]} (process {os.getpid()} on {socket.gethostname()}): {text}"
    return "", ""


def _all_told(mine: tuple[str, str]) -> tuple[MPI.Request, Callable[[], list[tuple[str, str]]]]:
    """Begin to tell all ranks, in at most 4096 bytes, and to hear from all; what they have said once the request is done."""
    said = np.frombuffer("\0".join(mine).encode()[:_SAID_BYTES], np.uint8)
    own = np.zeros(_SAID_BYTES, np.uint8)
    own[: said.size] = said
    everybody = np.empty((MPI.COMM_WORLD.Get_size(), _SAID_BYTES), np.uint8)
    request = MPI.COMM_WORLD.Iallgather(own, everybody)

    def answers() -> list[tuple[str, str]]:
        texts = (row.tobytes().rstrip(b"\0").decode(errors="replace") for row in everybody)
        return [(kind, text) for kind, _, text in (each.partition("\0") for each in texts)]

    return request, answers


def _meet() -> bool:
    """Whether all ranks come here, too, within some seconds."""
    request, deadline = MPI.COMM_WORLD.Ibarrier(), time.monotonic() + _LAST_SECONDS
    while not request.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(_TURN_SECONDS)
    return True


def _broadcast(data: bytes) -> bytes:
    """Rank 0's bytes, on every rank."""
    size = np.array([len(data)], np.int64)
    MPI.COMM_WORLD.Bcast(size, root=0)
    buffer = np.frombuffer(data, np.uint8).copy() if rank() == 0 else np.empty(int(size[0]), np.uint8)
    MPI.COMM_WORLD.Bcast(buffer, root=0)
    return buffer.tobytes()


def _gather(text: str) -> list[str]:
    """Everybody's text, on every rank, in at most 512 bytes each."""
    mine = np.zeros(512, np.uint8)
    encoded = np.frombuffer(text.encode()[:512], np.uint8)
    mine[: encoded.size] = encoded
    everybody = np.empty((MPI.COMM_WORLD.Get_size(), 512), np.uint8)
    MPI.COMM_WORLD.Allgather(mine, everybody)
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in everybody]
