"""The command that plays roles for a launcher on another host: `htrain role`."""

import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Literal, NoReturn

import click

from htrain.cli.flags import Command, FilePath, Finite, documents, require_beside, tell
from htrain.errors import UsageError
from htrain.executor.launch.environment import role_environment
from htrain.spec.settings import Elsewhere


def elsewhere_of(
    listen: str, secret: Path | None, join_seconds: float, hosts: Path | None, *, on: str, is_rank: bool, threads: bool
) -> Elsewhere | Literal["ray"] | None:
    """Where roles come from; None of a run that starts its own. Raises UsageError for what does not go together."""
    flag = f"--listen {listen}" if listen else f"--on {on}"
    if not listen:
        require_beside("--listen", "secret", "join_seconds", "hosts")
        if on == "here":
            return None
    if is_rank or threads or (listen and on != "here"):
        other = "under mpiexec" if is_rank else "with --threads" if threads else f"with --on {on}"
        raise UsageError(f"{flag} has no effect {other}, which starts roles itself: leave one of them out")
    if on == "ray":
        return "ray"
    if not secret and not hosts:
        raise UsageError(
            f"{flag}: wants --secret FILE, which htrain role is given, too: whoever has it may take part; or --hosts FILE, to start roles by ssh"
        )
    return Elsewhere(listen, secret or "", join_seconds, hosts or "")


@click.command(cls=Command)
@click.argument("roles", nargs=-1, required=True, metavar="ROLE...")
@click.option("--launcher", required=True, metavar="HOST:PORT", help="Where htrain run --listen waits for roles.")
@click.option(
    "--secret",
    required=True,
    type=FilePath(),
    help="The file of mode 0600 that the launcher has, too; - for standard input.",
)
@click.option(
    "--address",
    default="",
    metavar="ADDRESS",
    help="Where other roles reach this host: an address, or an interface such as eth0. [default: the address by which it reaches the launcher]",
)
@click.option(
    "--wait-seconds",
    default=60.0,
    type=Finite(0),
    help="How long to look for a launcher, at first and when it is gone. [default: 60]",
)
@click.option("--intra-op-threads", default=1, type=click.IntRange(1), help="torch threads per op. [default: 1]")
def role(
    roles: tuple[str, ...], launcher: str, secret: Path, address: str, wait_seconds: float, intra_op_threads: int
) -> None:
    """Play roles of a run on this host, such as trainer:0:1 or sparse_ps:0, for a launcher elsewhere.

    It stays until the run is over, and ends with the run's status. Ctrl-C and SIGTERM have it leave once the run is saved, a second Ctrl-C at once. Where a
    role dies, the run goes on from its last checkpoint: start this again where it has ended by itself. Where the launcher is gone, it looks for another at
    that address. The plan comes from the launcher; data and run folder lie where all hosts see them.

    \b
    htrain run plan/ --data criteo:train.tsv --out runs/a --listen 10.1.0.1:7070 --secret run.secret
    htrain role trainer:0:0 --launcher 10.1.0.1:7070 --secret run.secret
    """
    if "torch" not in sys.modules:  # what has been loaded has read another environment
        os.environ.update(role_environment(intra_op_threads))
        import_module("htrain.executor.launch.supervisor").fork_supervisor(documents())
    found = import_module("htrain.executor.launch.joining")
    host, port = import_module("htrain.executor.host.address").split_port("--launcher", launcher)
    found.require_roles(roles)
    known = import_module("htrain.executor.host.secret").read_secret(secret)
    signal.signal(signal.SIGTERM, _leave)  # as service managers end it: what it has made in TMPDIR goes with it
    joining = found.Joining(host, port, known, str(secret), address=address, wait_seconds=wait_seconds)
    import_module("htrain.executor.launch.agent").play_roles(roles, joining, num_threads=intra_op_threads, tell=tell)


def _leave(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)
