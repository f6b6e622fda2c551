"""The commands that predict, and measure what predictions count with: `htrain calibrate`, `simulate`, `size`."""

from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import htrain
from htrain.cli.flags import (
    FilePath,
    Finite,
    Function,
    PlanCommand,
    cluster_flags,
    cluster_of,
    fc_splits,
    json_flag,
    options_of,
    put,
    require_alone,
    require_use,
    tell,
    tell_table,
    training_flags,
    workers_flag,
)
from htrain.printable import as_word
from htrain.spec.cluster import NUMBERS
from htrain.spec.settings import Workers


def ids_flags(command: Function) -> Function:
    """Where the ids come from that caches are asked for, of commands that simulate."""
    for flag in (
        click.option(
            "--trace-batches",
            default=1000,
            type=click.IntRange(1),
            help="Batches of each trainer that are looked at, at most. [default: 1000]",
        ),
        click.option(
            "--zipf",
            type=Finite(0, 10),
            help="Ids by a Zipf law of this exponent, to find what rows caches ask for. [default: the cluster says it]",
        ),
        click.option(
            "--trace",
            default="",
            metavar="FORMAT:PATH",
            help="Data, as htrain run takes it, whose ids tell what rows caches ask for. [default: the cluster says it]",
        ),
    ):
        command = flag(command)
    return command


@click.command(cls=PlanCommand)
@click.argument("plan", type=FilePath())
@click.option("--groups", type=click.IntRange(1), help="As many groups. [default: the plan's]")
@click.option("--trainers", type=click.IntRange(1), help="As many trainers per group. [default: the plan's]")
@click.option("--net-replicas", type=click.IntRange(1), help="As many per trainer. [default: the plan's]")
@click.option("--batch", type=click.IntRange(1), help="Batches of as many examples. [default: the plan's]")
@workers_flag
@click.option("--steps", default=40, type=click.IntRange(4), help="Steps of each net replica. [default: 40]")
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of the durations that vary. [default: 0]")
@click.option("--python-lock/--no-python-lock", default=True, help="Whether a role's threads share one. [default: on]")
@ids_flags
@json_flag
def simulate(
    plan: Path, groups: int | None, trainers: int | None, net_replicas: int | None, batch: int | None, workers: Workers, steps: int,
    seed: int, python_lock: bool, trace: str, zipf: float | None, trace_batches: int, as_json: bool
) -> None:  # fmt: skip
    """Simulate PLAN: EPS, what waits where, and the staleness of dense updates, on a cluster that need not be here."""
    loaded = import_module("htrain.plan.check").check_plan(import_module("htrain.plan.plan").load_plan(plan))
    counts = import_module("htrain.simulation.counts")
    asked = counts.with_counts(
        loaded, groups=groups, trainers=trainers, net_replicas=net_replicas, batch_size=batch, is_played=bool(trace)
    )
    rates: dict[str, Any] = {}

    def tell_rates(found: Any) -> None:
        rates.update(cache_rates=asdict(found))
        tell_table(import_module("htrain.simulation.cache_rates").rates_text(found))

    found = htrain.simulate(
        asked,
        steps=steps,
        workers=workers,
        seed=seed,
        python_lock=python_lock,
        trace=trace,
        zipf="none" if zipf is None else zipf,
        trace_batches=trace_batches,
        on_rates=tell_rates,
    )
    notes = [] if trace else counts.notes_on_counts(asked)
    told = import_module("htrain.simulation.result").simulated_text(found)
    put(
        {**asdict(found), "max_staleness": found.max_staleness, **rates, "notes": notes},
        "\n".join([told, *(f"note: {note}" for note in notes)]),
        as_json,
    )


@click.command(cls=PlanCommand)
@click.argument("model")
@click.option("--eps", required=True, type=Finite(1), help="Examples per second to reach, such as 1e6.")
@click.option("--cluster", "cluster_file", type=FilePath(), help="A cluster file: the kinds of hosts.")
@click.option("--data", default="", help="Sizes the tables of a model that is built from a schema.")
@click.option(
    "--split-fc",
    "splits",
    multiple=True,
    metavar="auto|none|FC=KIND:N",
    help="Cut an FC into N parts, as htrain compile does. [default: none]",
)
@click.option("--most-groups", default=32, type=click.IntRange(1), help="The most groups to try. [default: 32]")
@workers_flag
@ids_flags
@cluster_flags
@training_flags
@json_flag
def size(
    model: str,
    eps: float,
    cluster_file: Path | None,
    data: str,
    splits: tuple[str, ...],
    most_groups: int,
    workers: Workers,
    trace: str,
    zipf: float | None,
    trace_batches: int,
    as_json: bool,
    **flags: Any,
) -> None:
    """Search the fewest hosts on which MODEL trains at --eps: groups, trainers, group PSs and sparse PSs."""

    def tried(candidate: Any) -> None:
        tell(_line(candidate))

    require_alone("size, which searches their number", "cluster_groups", "cluster_trainers")
    cluster, options = cluster_of(cluster_file, flags, here=False), options_of(flags, cluster_file)
    require_use(options, cluster, cluster_file, searched=True)
    found = htrain.size(
        model,
        eps=eps,
        cluster=cluster,
        options=options,
        data=data,
        fc_splits=fc_splits(splits or ("none",)),
        most_groups=most_groups,
        workers=workers,
        trace=trace,
        zipf="none" if zipf is None else zipf,
        trace_batches=trace_batches,
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


@click.command(cls=PlanCommand)
@click.option("--out", required=True, type=FilePath(), help="The cluster file to write.")
@click.option("--cluster", "cluster_file", type=FilePath(), help="Counts and sizes of this cluster file.")
@click.option(
    "--from",
    "run_folder",
    type=FilePath(),
    help="Correct the rates of this run's plan by what it measured.",
)
@click.option("--seconds", default=20.0, type=Finite(0.5, 600), help="How long to measure, about. [default: 20]")
@cluster_flags
@json_flag
def calibrate(
    out: Path, cluster_file: Path | None, run_folder: Path | None, seconds: float, as_json: bool, **flags: Any
) -> None:
    """Measure this host, and write the cluster file that the cost model counts with.

    GEMMs by shape and precision, memory, rows gathered and updated, quantization, messages: on one core, as runs use it. With --from, the
    rates of a run's plan are corrected by the CPU time that its roles took.
    """
    files = import_module("htrain.calibration.cluster_file")
    files.require_writable(out)
    if run_folder:
        require_alone("--from", "cluster_file", "seconds", *(f"cluster_{name}" for name in NUMBERS))
        correct = import_module("htrain.calibration.correct")
        record = import_module("htrain.executor.record.run_folder").read_record(run_folder)
        plan = import_module("htrain.plan.plan").load_plan(Path(record.plan))
        measured = import_module("htrain.executor.record.measured").load_measured(run_folder)
        cluster, correction = correct.correct(plan.cluster, measured, plan.options.holder)
        text, document = correct.factors_text(correction), asdict(correction)
        comment = f"corrected by {run_folder}: {text}"
    else:
        cluster = cluster_of(cluster_file, flags, here=True)
        found = import_module("htrain.calibration.measure").measure_host(
            seconds=seconds, on_step=lambda line: tell(line)
        )
        cluster, document = replace(cluster, **found.rates), {**found.rates, "gemms": found.gemms_by_name()}
        text, comment = found.gemm_table(), "measured on one core by htrain calibrate"
    files.write_cluster(out, files.cluster_yaml(cluster, comment))
    put(
        {"cluster": str(out), **document},
        f"{text}\n{out}: use it with: htrain compile MODEL --cluster {as_word(out)} ...".lstrip(),
        as_json,
    )
