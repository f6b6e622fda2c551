"""The commands that predict: `htrain simulate` and `htrain size`."""

from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import htrain
from htrain.cli_flags import cluster_flags, cluster_of, fc_splits, json_flag, options_of, put, training_flags


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--groups", default=0, type=click.IntRange(0), help="As many groups. [default: the plan's]")
@click.option("--trainers", default=0, type=click.IntRange(0), help="As many trainers per group. [default: the plan's]")
@click.option("--net-replicas", default=0, type=click.IntRange(0), help="As many per trainer. [default: the plan's]")
@click.option("--batch", default=0, type=click.IntRange(0), help="Batches of as many examples. [default: the plan's]")
@click.option("--workers", default=2, type=click.IntRange(1), help="Threads of a PS that run ops. [default: 2]")
@click.option("--steps", default=40, type=click.IntRange(4), help="Steps of each net replica. [default: 40]")
@click.option("--seed", default=0, type=click.IntRange(0), help="[default: 0]")
@click.option("--python-lock/--no-python-lock", default=True, help="Whether a role's threads share one. [default: on]")
@json_flag
def simulate(
    plan: Path, groups: int, trainers: int, net_replicas: int, batch: int, workers: int, steps: int, seed: int, python_lock: bool, as_json: bool
) -> None:  # fmt: skip
    """Simulate PLAN: EPS, what waits where, and the staleness of dense updates, on a cluster that need not be here."""
    loaded = import_module("htrain.plan_check").check_plan(import_module("htrain.plan").load_plan(plan))
    asked = import_module("htrain.simulation.counts").with_counts(
        loaded, groups=groups, trainers=trainers, net_replicas=net_replicas, batch_size=batch
    )
    found = htrain.simulate(asked, steps=steps, workers=workers, seed=seed, python_lock=python_lock)
    put(
        {**asdict(found), "max_staleness": found.max_staleness},
        import_module("htrain.simulation.result").simulated_text(found),
        as_json,
    )


@click.command()
@click.argument("model")
@click.option("--eps", required=True, type=click.FloatRange(1), help="Examples per second to reach, such as 1e6.")
@click.option("--cluster", "cluster_file", type=click.Path(path_type=Path), help="A cluster file: the kinds of hosts.")
@click.option("--data", default="", help="Sizes the tables of a model that is built from a schema.")
@click.option("--split-fc", "splits", multiple=True, metavar="auto|none|FC=KIND:N", help="[default: none]")
@click.option("--most-groups", default=32, type=click.IntRange(1), help="[default: 32]")
@click.option("--workers", default=18, type=click.IntRange(1), help="Threads of a PS that run ops. [default: 18]")
@cluster_flags
@partial(training_flags, without=("eps",))
@json_flag
def size(
    model: str,
    eps: float,
    cluster_file: Path | None,
    data: str,
    splits: tuple[str, ...],
    most_groups: int,
    workers: int,
    as_json: bool,
    **flags: Any,
) -> None:
    """Search the fewest hosts on which MODEL trains at --eps: groups, trainers, group PSs and sparse PSs."""

    def tried(candidate: Any) -> None:
        click.echo(_line(candidate), err=True)

    found = htrain.size(
        model,
        eps=eps,
        cluster=cluster_of(cluster_file, flags, here=False),
        options=options_of(flags),
        data=data,
        fc_splits=fc_splits(splits or ("none",)),
        most_groups=most_groups,
        workers=workers,
        on_try=tried,
    )
    cluster = found.plan.cluster
    counts = {name: getattr(cluster, name) for name in ("groups", "trainers", "group_ps", "sparse_ps", "dense_ps")}
    flags_text = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in counts.items())
    text = f"{_line(found)}\ncompile it with: htrain compile {model} {flags_text} ..."
    put({"hosts": found.hosts, **counts, "simulated": asdict(found.found)}, text, as_json)


def _line(candidate: Any) -> str:
    cluster, found = candidate.plan.cluster, candidate.found
    device, what, share = found.bottleneck
    return (
        f"{candidate.hosts} hosts: {cluster.groups} groups of {cluster.trainers} trainers and {cluster.group_ps} group PSs, "
        f"{cluster.sparse_ps} sparse PSs: {found.eps:,.0f} EPS, {what} of {device} {share:.0%}"
    )
