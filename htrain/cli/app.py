"""`htrain ...`: each command is a few lines over the API. Documents go to stdout, progress to stderr; errors are one line."""

import os
import sys
from importlib import import_module
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click
from msgspec import to_builtins

import htrain
from htrain.cli.advise import advise
from htrain.cli.data import data
from htrain.cli.door import open_door
from htrain.cli.evaluate import evaluate
from htrain.cli.flags import (
    FilePath,
    Finite,
    Period,
    PlanCommand,
    Value,
    as_address,
    checkpoint_flag,
    cluster_flags,
    cluster_of,
    documents,
    fc_splits,
    json_flag,
    liveness_flag,
    malformed_flag,
    options_of,
    put,
    ranking_flags,
    require_alone,
    require_use,
    run_folder_of,
    table_splits,
    tell,
    training_flags,
    workers_flag,
)
from htrain.cli.partition import partition
from htrain.cli.plans import check, diff, explain, show
from htrain.cli.predict import calibrate, simulate, size
from htrain.cli.role import elsewhere_of, role
from htrain.cli.serve import serve
from htrain.cli.trained import export
from htrain.cli.trained import predict as predict_scores
from htrain.errors import UsageError
from htrain.executor.launch.environment import role_environment
from htrain.printable import as_word
from htrain.spec.settings import BestBy, EarlyStop, MostRetries, ValidEvery

if TYPE_CHECKING:
    from htrain.executor.roles.coordination import RunResult

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_CONTEXT)
@click.version_option(htrain.__version__, prog_name="htrain")
def commands() -> None:
    """Compile a recommendation model to a placement plan for a CPU cluster, and train it there.

    \b
    htrain data synth criteo --rows 500000 --out train.tsv
    htrain data synth criteo --rows 50000 --part test --out test.tsv
    htrain compile models/dlrm.py --data criteo:train.tsv --groups 2 --trainers 2 --group-ps 2 --out plan/
    htrain show plan/
    htrain explain plan/ top.0
    htrain run plan/ --data criteo:train.tsv --out runs/a
    htrain eval runs/a --data criteo:test.tsv
    htrain export runs/a --to onnx --out model.onnx
    """


@commands.command(name="compile", cls=PlanCommand)
@click.argument("model")
@click.option("--out", required=True, type=FilePath(), help="The plan folder to write.")
@click.option(
    "--cluster",
    "cluster_file",
    type=FilePath(),
    help="A cluster file; without one, the cluster is this machine.",
)
@click.option(
    "--data", default="", help="Data such as criteo:train.tsv; sizes the tables of a model that is built from a schema."
)
@click.option("--logit", default="", help="The output to train, where the model has several: its name or position.")
@click.option("--label", default="", help="The label input of an ONNX model that carries one. [default: label]")
@click.option(
    "--solver",
    default="greedy",
    type=click.Choice(["rules", "greedy", "ilp", "cbc"]),
    help="How modules are placed: by rules alone, refined greedily, or by an integer program (HiGHS, or CBC). [default: greedy]",
)
@click.option("--rules", default="", help="Rules of your own: FILE.py:NAME or package.module:NAME.")
@click.option("--solve-seconds", default=60.0, type=Finite(0.1), help="Time limit of the solver. [default: 60]")
@click.option("--split-table", "splits", multiple=True, metavar="TABLE=N", help="Cut a table into N row shards.")
@click.option(
    "--split-fc",
    "cuts",
    multiple=True,
    metavar="auto|none|FC=KIND:N",
    help="Cut an FC into N parts: vertical, horizontal, or co-partition with the FC that follows. [default: auto]",
)
@click.option(
    "--rates",
    type=FilePath(),
    help="A file of htrain advise --rates: how many rows its caches ask for, for the prediction. [default: the cluster says it]",
)
@click.option(
    "--no-self-check",
    is_flag=True,
    help="Do not compare loss and gradients of what was captured with the model's own, on a small random batch.",
)
@cluster_flags
@training_flags
@json_flag
def compile_command(
    model: str,
    out: Path,
    cluster_file: Path | None,
    data: str,
    logit: str,
    label: str,
    splits: tuple[str, ...],
    cuts: tuple[str, ...],
    rules: str,
    solver: Any,
    solve_seconds: float,
    no_self_check: bool,
    rates: Path | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Compile MODEL to a plan folder.

    MODEL is a Python file with a `build` function (or file.py:factory), package.module:factory, or model.onnx.

    \b
    htrain compile models/dlrm.py --cluster cluster.yaml --out plan/
    htrain compile models/wide_deep.py --data libfm:train.libfm --groups 2 --trainers 2 --group-ps 1 --out plan/
    """
    cluster, options = cluster_of(cluster_file, flags, here=True), options_of(flags, cluster_file)
    require_use(options, cluster, cluster_file)
    if solver == "rules":
        require_alone("--solver rules", "solve_seconds")
    plan = htrain.compile(
        model,
        cluster=cluster,
        options=options,
        data=data,
        logit=logit,
        label=label,
        table_splits=table_splits(splits),
        fc_splits=fc_splits(cuts),
        rules=rules,
        solver=solver,
        time_limit_seconds=solve_seconds,
        self_check=not no_self_check,
        rates=rates or "",
    )
    plan.save(out)
    for note in plan.notes:
        tell(f"note: {note}")
    text = f"{out}: {len(plan.nets)} nets, {len(plan.tables)} tables, predicted {plan.predicted_eps:,.0f} EPS; look at it with: htrain show {as_word(out)}"
    put(
        {
            "plan": str(out),
            "digest": plan.digest,
            "nets": list(plan.nets),
            "predicted_eps": plan.predicted_eps,
            "notes": plan.notes,
        },
        text,
        as_json,
    )


@commands.command(cls=PlanCommand)
@click.argument("plan", type=FilePath())
@click.option(
    "--data",
    required=True,
    help="FORMAT:PATH[?key=value], such as criteo:train.tsv, libfm:a.libfm, csv:a.csv?schema=s.yaml, synthetic:?rows=100000.",
)
@click.option("--out", type=FilePath(), help="A new run folder.")
@click.option("--resume", type=FilePath(), help="Go on from the last checkpoint of this run folder.")
@click.option(
    "--or-resume",
    is_flag=True,
    help="With --out: go on with the run that is there, if there is one. For a service manager, or a queue, that starts the same command again.",
)
@click.option(
    "--begin-with",
    type=FilePath(),
    help="Begin with weights, tables and optimizer states of the last checkpoint of this run folder, of any cluster.",
)
@click.option(
    "--grow",
    multiple=True,
    metavar="NAME",
    help="A table or weight that may have more rows than in the run to --begin-with, since its first rows are that run's, and the others new; once for each. "
    "Tables whose vocabulary extends that run's need no word.",
)
@click.option("--epochs", default=1, type=click.IntRange(1), help="Passes over the data. [default: 1]")
@click.option("--threads", is_flag=True, help="All roles as threads of this process.")
@click.option(
    "--deterministic",
    is_flag=True,
    help="One net replica per trainer, no prefetch; with one trainer, a run repeats bit for bit.",
)
@checkpoint_flag
@click.option(
    "--deadline-seconds",
    default=60.0,
    type=Finite(1),
    help="A role that hears nothing for this long gives up; in its first steps it waits longer. [default: 60]",
)
@liveness_flag("role")
@click.option(
    "--retries",
    default="auto",
    type=Value(MostRetries),
    metavar="N|auto",
    help="Where a role dies or hangs, go on from the last checkpoint, until N tries in a row have failed without one between them. "
    "[default: auto, 3; under mpiexec and with --threads 0]",
)
@click.option(
    "--retry",
    default="alone",
    type=click.Choice(["alone", "partial", "whole"]),
    help="A trainer that dies and keeps no weights or rows is begun again alone, and trains again what it had begun, at most two batches a net replica, and a "
    "group PS with the weights that it had, and the trainers of its group; a sparse PS, too, with the rows of the last checkpoint, which lose what they have "
    "learnt since; or all roles together from there, which trains nothing twice and loses nothing. [default: alone]",
)
@malformed_flag("the run")
@workers_flag
@click.option("--intra-op-threads", default=1, type=click.IntRange(1), help="torch threads per op. [default: 1]")
@click.option(
    "--network",
    default="",
    help="Under mpiexec and on Ray: hosts reach each other at their addresses in this network, such as 10.1.0.0/16. [default: under their names]",
)
@click.option(
    "--trainer-network",
    default="",
    help="Under mpiexec, on Ray and with --listen: the network of AllReduce and AllGather, where trainers have one of their own. [default: that of all]",
)
@click.option(
    "--encrypt/--no-encrypt",
    default=True,
    help="Under mpiexec, on Ray and with --listen: encrypt what roles send to those of other hosts, but for AllReduce and AllGather. [default: encrypt]",
)
@click.option(
    "--on",
    default="here",
    type=click.Choice(["here", "ray"]),
    help="Where roles are started: on this machine, or as tasks of the Ray cluster that it belongs to. [default: here]",
)
@click.option(
    "--listen",
    default="",
    metavar="ADDRESS[:PORT]",
    help="Start no roles: wait at this address, or interface, of this host until htrain role has started each elsewhere. Without a port, any that is free.",
)
@click.option(
    "--secret", type=FilePath(), help="With --listen: the file of mode 0600, of 32 bytes or more, that roles have, too."
)
@click.option(
    "--join-seconds",
    default=600.0,
    type=Finite(1),
    help="With --listen: how long roles are waited for, at the beginning and when one was lost. [default: 600]",
)
@click.option(
    "--hosts",
    type=FilePath(),
    help="With --listen: start roles by ssh, on the hosts of the section hosts of this cluster file.",
)
@click.option("--valid", default="", help="Data on which the last checkpoint is evaluated, such as criteo:test.tsv.")
@click.option(
    "--valid-every",
    default="end",
    type=Value(ValidEvery),
    metavar="N|end",
    help="Evaluate a checkpoint on it each N examples of the whole job, too, while training goes on, or end for the last only. [default: end]",
)
@click.option(
    "--early-stop",
    default="never",
    type=Value(EarlyStop),
    metavar="K|never",
    help="End the run after K validations in a row without a better log loss (mse: mean squared error). [default: never]",
)
@click.option(
    "--best-by",
    default="loss",
    type=click.Choice(get_args(BestBy)),
    help="What --early-stop and --keep-best go by; all but loss and auc are of the groups of --valid-group-by. [default: loss]",
)
@ranking_flags("--valid-")
@click.option(
    "--keep-best", is_flag=True, help="Keep the checkpoint with the best validation: htrain eval RUN --checkpoint best."
)
@click.option(
    "--publish",
    default="",
    callback=as_address,
    metavar="ADDRESS",
    help="Publish versions of the model there: a folder, or a place that fsspec knows, such as s3://bucket/models/ads.",
)
@click.option(
    "--publish-every",
    default="end",
    type=Period(),
    help="Publish a version as often while training goes on, such as 20s, 15m or 2h, or end for the last only. [default: end]",
)
@click.option(
    "--publish-full-every",
    default=12,
    type=click.IntRange(1, 1_000_000),
    help="Each N-th version has all rows, others those that have changed since the one before. [default: 12]",
)
@json_flag
def run(
    plan: Path,
    data: str,
    out: Path | None,
    resume: Path | None,
    begin_with: Path | None,
    threads: bool,
    intra_op_threads: int,
    on: str,
    listen: str,
    secret: Path | None,
    join_seconds: float,
    hosts: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train a plan on this machine: a process per role, or --threads. Under mpiexec, a rank per role; with --on ray, a task of Ray; with --listen, roles that
    htrain role starts, or, with --hosts, ssh.

    Ctrl-C, SIGTERM and the end of the terminal write a checkpoint and end the run, a second Ctrl-C ends it at once; --resume goes on from the last one.
    """
    rank = import_module("htrain.executor.launch.rank")
    run_folder = run_folder_of(out, resume, begin_with)
    if rank.is_launcher():
        import_module("htrain.executor.record.run_folder").refuse_owned(run_folder)  # before anything else is loaded
    if threads and rank.is_rank():
        raise UsageError(
            "--threads has no effect under mpiexec, which starts a process per role: leave one of them out"
        )
    elsewhere = elsewhere_of(listen, secret, join_seconds, hosts, on=on, is_rank=rank.is_rank(), threads=threads)
    hosting: Literal["processes", "threads", "mpi"] = "threads" if threads else "mpi" if rank.is_rank() else "processes"
    if hosting == "mpi":
        rank.split(run_folder)
    elif (
        hosting == "processes" and not elsewhere and "torch" not in sys.modules
    ):  # what has been loaded has read another environment
        os.environ.update(role_environment(intra_op_threads))
        import_module("htrain.executor.launch.supervisor").fork_supervisor(documents())
    with rank.said_once():
        result = htrain.run(
            plan,
            data=data,
            out=out or "",
            resume=resume or "",
            begin_with=begin_with or "",
            hosting=elsewhere or hosting,
            num_threads=intra_op_threads,
            **settings,
        )
    put_result(result, run_folder, as_json)


def put_result(result: "RunResult", run_folder: Path, as_json: bool) -> None:
    """How a run went, as the document of its command."""
    totals = result.totals
    some = "" if result.train_examples == totals.examples else f", {result.train_examples:,} of them"
    ne = "" if isnan(totals.ne) else f"NE {totals.ne:.4f}, "
    pace = f"{some} in {result.train_seconds:.1f} s: {result.eps:,.0f} EPS"
    text = (
        f"{totals.examples:,} examples{pace if result.train_examples else ', and nothing was left to train'}, loss {totals.loss:.4f}, "
        f"{ne}dense staleness at most {totals.max_staleness} (mean {totals.mean_staleness:.2f}); checkpoint {result.checkpoint}"
    )
    if result.retries:
        text += f"; begun again {result.retries} {'times' if result.retries > 1 else 'time'}, for roles that were lost"
    if result.begun_again:
        text += f"; {result.begun_again} {'roles were' if result.begun_again > 1 else 'role was'} begun again while others went on"
    if result.set_back:
        text += f"; rows have lost what they had learnt of about {result.set_back:,} examples"
    if totals.malformed:
        left_out = import_module("htrain.data.malformed").left_out
        text += f"; {left_out(totals.malformed, totals.malformed_example)}"
    text += f"; ended early: {result.stopped}; go on with --resume {as_word(run_folder)}" if result.stopped else ""
    tables = import_module("htrain.executor.record.measured").measured_text(result.measured)
    to_dict = import_module("htrain.executor.record.validations").to_dict
    put(
        {
            "checkpoint": str(result.checkpoint),
            "train_seconds": result.train_seconds,
            "train_examples": result.train_examples,
            "retries": result.retries,
            "begun_again": result.begun_again,
            "set_back": result.set_back,
            **totals.to_dict(),
            "eps": result.eps,  # that of totals is of the last seconds
            "measured": to_builtins(result.measured),
            "stopped": result.stopped,
            "validations": [to_dict(each) for each in result.validations],
        },
        f"{tables}\n{text}" if result.train_examples else text,
        as_json,
    )


for command in (
    data,
    evaluate,
    partition,
    advise,
    show,
    explain,
    check,
    diff,
    calibrate,
    simulate,
    size,
    serve,
    predict_scores,
    export,
    role,
):
    commands.add_command(command)


def main() -> None:
    """Run a command; exit with 0, 1 (the user can mend it), 2 (usage), 3 (a bug), or 128 and the number of the signal that ended it."""
    open_door(commands)
