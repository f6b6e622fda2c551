"""The command that serves a plan's tables to workers from outside: `htrain serve`."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import htrain
from htrain.cli.flags import (
    FilePath,
    Finite,
    PlanCommand,
    checkpoint_flag,
    documents,
    json_flag,
    liveness_flag,
    put,
    run_folder_of,
)
from htrain.executor.launch.environment import role_environment


@click.command(cls=PlanCommand)
@click.argument("plan", type=FilePath())
@click.option("--out", type=FilePath(), help="A new run folder.")
@click.option(
    "--resume", type=FilePath(), help="Go on from the last checkpoint of this folder, with its token and port."
)
@click.option(
    "--begin-with",
    type=FilePath(),
    help="Begin with the tables of the last checkpoint of this run folder, of any cluster.",
)
@click.option(
    "--listen",
    default="auto",
    metavar="HOST[:PORT]",
    help="Where workers join; further servers take the ports that follow. Without a port, any that is free. [default: 127.0.0.1, or where it was before]",
)
@click.option(
    "--lease-seconds",
    default=30.0,
    type=Finite(1),
    help="A worker that is not heard for this long is a member no more. [default: 30]",
)
@checkpoint_flag
@liveness_flag("server")
@json_flag
def serve(
    plan: Path, out: Path | None, resume: Path | None, begin_with: Path | None, as_json: bool, **settings: Any
) -> None:
    """Serve the tables of PLAN, compiled with --cache het, to workers of your own, which use htrain.client.

    Ctrl-C and SIGTERM write a checkpoint and end it; --resume goes on from the last one. Where workers join, and with what token, stands in serving.json of
    the run folder.

    \b
    htrain serve plan/ --out runs/tables
    htrain serve plan/ --resume runs/tables
    """
    import_module("htrain.executor.record.run_folder").refuse_owned(run_folder_of(out, resume, begin_with))
    if "torch" not in sys.modules:  # what has been loaded has read another environment
        os.environ.update(role_environment(1))
        import_module("htrain.executor.launch.supervisor").fork_supervisor(documents())
    result = htrain.serve(plan, out=out or "", resume=resume or "", begin_with=begin_with or "", **settings)
    document = {"checkpoint": str(result.checkpoint), "seconds": result.train_seconds}
    text = f"served for {result.train_seconds:.0f} s; checkpoint {result.checkpoint}"
    try:
        put(document, text, as_json)
        documents().flush()
    except BrokenPipeError:  # all is saved, though who read the beginning of its output has gone long since
        os.dup2(os.open(os.devnull, os.O_WRONLY), documents().fileno())
