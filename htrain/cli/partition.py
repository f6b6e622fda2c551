"""`htrain partition`: which worker trains each example, and which owns each row (HET-GMP 5.2)."""

import time
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins

from htrain.cli.flags import Command, FilePath, Finite, json_flag, malformed_flag, put
from htrain.cli.progress import Progress
from htrain.errors import UsageError

_LINKS = 10.0  # HET-GMP 7.2


class _Hosts(click.ParamType):
    """How many hosts, or how many workers on each."""

    name = "N|N,N,.."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        texts = str(value).split(",")
        if not all(text.isascii() and text.isdigit() and 1 <= int(text) <= 1024 for text in texts):
            self.fail(f"'{value}': want a number of hosts, or the workers of each, such as 4,2,2", param, ctx)
        return tuple(map(int, texts))


def _standing(hosts: tuple[int, ...], links: float | None, workers: int) -> tuple[tuple[int, ...], float]:
    """The workers of each host and what a row of another host costs; none and 1 where all are on one. Raises UsageError for flags that do not go together."""
    if hosts == (1,):
        if links is not None:
            raise UsageError("--links has no effect while all workers stand on one host: say --hosts, too")
        return (), 1.0
    text = ",".join(map(str, hosts))
    if len(hosts) == 1 and workers % hosts[0]:
        raise UsageError(
            f"--hosts {text}: {workers} workers do not stand evenly on them: say how many on each, such as 4,2,2"
        )
    if len(hosts) > 1 and sum(hosts) != workers:
        raise UsageError(f"--hosts {text} has {sum(hosts)} workers, --workers {workers}: they are to be the same")
    of_hosts = hosts if len(hosts) > 1 else (workers // hosts[0],) * hosts[0]
    return of_hosts, _LINKS if links is None else links


@click.command(cls=Command)
@click.argument("source", metavar="DATA")
@click.option("--workers", required=True, type=click.IntRange(2, 1024), help="Workers to divide the data among.")
@click.option(
    "--batch", required=True, type=click.IntRange(1), help="Examples of a worker's batch, whose fetches are made few."
)
@click.option(
    "--hosts",
    default="1",
    type=_Hosts(),
    help="Hosts on which the workers stand, in order of their numbers: how many hosts, evenly, or the workers of each, such as 4,2,2. [default: 1]",
)
@click.option(
    "--links",
    type=Finite(1, 1e6),
    help="How many rows of the own host one of another host costs as much as. [default: 10]",
)
@click.option("--out", required=True, type=FilePath(), help="The partition to write.")
@click.option(
    "--replicas",
    default=0.0,
    type=Finite(0, 1),
    help="Share of the rows seen that each worker may hold a replica of, beside its own. [default: 0]",
)
@click.option(
    "--sample-slack",
    default=1.03,
    type=Finite(1, 10),
    help="Times its even share of the examples that a worker may have. [default: 1.03]",
)
@click.option(
    "--row-slack",
    default=1.05,
    type=Finite(1, 10),
    help="Times its even share of the rows that a worker may own. [default: 1.05]",
)
@click.option(
    "--seed", default=0, type=click.IntRange(0), help="Another seed is another search for the best. [default: 0]"
)
@click.option("--from", "old", type=FilePath(), help="Begin from the owners of this older partition: few rows move.")
@click.option("--at-random", is_flag=True, help="Divide without a search: a control for what one gains.")
@malformed_flag("the command; fewer are left out")
@json_flag
def partition(
    source: str,
    workers: int,
    batch: int,
    hosts: tuple[int, ...],
    links: float | None,
    out: Path,
    replicas: float,
    sample_slack: float,
    row_slack: float,
    seed: int,
    old: Path | None,
    at_random: bool,
    malformed_share: float,
    as_json: bool,
) -> None:
    """Divide the examples and rows of DATA among workers, so that a batch needs few rows of others.

    What is found is the same for the same data and flags, whatever the number of cores.

    \b
    htrain partition libfm:train.libfm --workers 8 --batch 128 --out train.partition
    htrain partition libfm:train.libfm --workers 8 --batch 128 --hosts 2 --links 10 --out train.partition
    htrain show train.partition
    """
    if at_random and old:
        raise UsageError("--from has no effect: --at-random searches for nothing")
    divided, bigraph = import_module("htrain.tagging.bigraph.divide"), import_module("htrain.tagging.bigraph")
    request = bigraph.Request(workers, batch, sample_slack, row_slack, seed, *_standing(hosts, links, workers))
    of_rows = import_module("htrain.data.malformed")
    malformed = of_rows.Malformed(malformed_share)
    began, cpu = time.perf_counter(), time.process_time()
    with Progress() as progress:
        made = divided.divide(
            source, out, request, old=old, replicated=replicas, malformed=malformed,
            listener=divided.Listener(progress.examples, progress.step), way=bigraph.at_random if at_random else bigraph.partition,
        )  # fmt: skip
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    text = import_module("htrain.report.partition").partition_text(made)
    if left_out := of_rows.left_out(malformed.count, malformed.example):
        text = f"{text}\n{left_out}"
    text = f"{text}\n{out}: written in {seconds:.1f} s, {cpu:.1f} of CPU"
    put({"path": str(out), "seconds": seconds, **to_builtins(made.facts)}, text, as_json)
