"""The Python API of what is done with a plan: run, evaluate, as by the commands. No process of a run imports what makes plans."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from htrain.data.ranking import Grouping
from htrain.errors import UsageError
from htrain.executor.host.address import require_network
from htrain.executor.launch.earlier import begun_with
from htrain.executor.launch.evaluate import Evaluation, evaluate_run
from htrain.executor.launch.publish import Wanted
from htrain.executor.launch.run import Begin, Hosting, run_plan
from htrain.executor.launch.tries import Beside
from htrain.executor.launch.validate import OnValidation, Validating
from htrain.executor.record.run_folder import began, plan_of
from htrain.executor.roles.coordination import RunResult
from htrain.executor.settings import RunSettings
from htrain.given import data_in_a_file, in_files, is_in_memory, require_data, require_files, words
from htrain.plan.plan import Plan
from htrain.report.runs.curves import Curves, curves
from htrain.spec.arguments import require_arguments
from htrain.spec.cluster import cores_here
from htrain.spec.settings import (
    BestBy,
    CheckpointSeconds,
    EarlyStop,
    Elsewhere,
    MostRetries,
    PublishSeconds,
    RetryWhat,
    SchemaOf,
    ValidEvery,
    Workers,
)

_TOP = 10
_IN_MEMORY = "a table in memory"
_BY_NAME: Mapping[str, str] = {}


@dataclass(frozen=True)
class TrainedRun(RunResult):
    """How a run went, and the folder that it is in."""

    run_folder: Path = Path()

    @property
    def curves(self) -> Curves:
        """EPS, loss, NE and more of all its parts over time, as `htrain.curves` reads them."""
        return curves(self.run_folder)


def run(
    plan: str | Path | Plan,
    *,
    data: Any, schema: SchemaOf = "",
    out: str | Path = "", resume: str | Path = "", or_resume: bool = False,
    begin_with: str | Path = "", grow: tuple[str, ...] = (),
    epochs: int = 1,
    hosting: Hosting | Elsewhere = "processes",
    deterministic: bool = False,
    checkpoint_seconds: CheckpointSeconds = 300.0,
    deadline_seconds: float = 60.0, liveness_seconds: float = 60.0,
    retries: MostRetries = "auto", retry: RetryWhat = "alone",
    malformed_share: float = 0.01,
    workers: Workers = "auto", num_threads: int = 1,
    network: str = "", trainer_network: str = "", encrypt: bool = True,
    valid: Any = "", valid_every: ValidEvery = "end", early_stop: EarlyStop = "never", keep_best: bool = False, best_by: BestBy = "loss",
    valid_group_by: str = "", valid_top: int = 10, on_validation: OnValidation | None = None,
    publish: str = "", publish_every: PublishSeconds = "end", publish_full_every: int = 12,
    console: Console | None = None,
) -> TrainedRun:  # fmt: skip
    """Train a plan: into the new folder `out`, or on from the last checkpoint of the folder `resume`. With `or_resume`, `out` is either: the same call begins
    a run, and goes on with it after whatever has ended it, the launcher's host included.

    `plan` is the folder of one, or a plan as `htrain.compile` gives it. `data` and `valid` are FORMAT:PATH, or, with their `schema`, a table in memory, or
    batches of one, as for `htrain.pack`. What is in memory is kept in the run folder: to go on, give `resume` the same.

    A new run may `begin_with` the last checkpoint of another, of the same model: its weights, tables and optimizer states, whatever cluster it had.
    Tables whose values come from a vocabulary that extends that run's may have more rows; so may the tables and weights that are said to `grow`, whose first
    rows are that run's, as the user knows.

    `hosting` is `processes`, one per role, `threads` of this process, `mpi`, for a rank of mpiexec, or `ray`, for a task of Ray, with the cores and the memory
    that the plan gives it. As `htrain.Elsewhere(listen, secret=...)` it starts no roles, and waits until each has been started somewhere by `htrain role`.
    Ranks reach each other over their addresses in `network`, such as 10.1.0.0/16, trainers over those in `trainer_network` for AllReduce and AllGather;
    without, under their names. What roles send to those of other hosts, but for AllReduce and AllGather, is encrypted, unless `encrypt` is False: for a
    network that nobody else can reach.
    Progress goes to `console`, standard error by default.

    The last checkpoint is evaluated on `valid`, and one every `valid_every` examples of the whole job, while training goes on; `end` is for the last alone.
    The run ends, as by Ctrl-C but without an error, after `early_stop` validations in a row without a better value (log loss; the mean squared error for
    mse), or where `on_validation`, which is called with each in this process, returns True. `keep_best` keeps the checkpoint with the best value. `best_by`
    names another measure for both. `valid_group_by` and `valid_top` rank within groups, as those of `htrain.evaluate`.

    Where a role dies, hangs or falls silent, the run goes on by itself from its last checkpoint, so that every example is trained once, until `retries` tries
    in a row have failed without a checkpoint between them; `auto` is 3, and 0 where roles cannot be started again: under MPI, and as threads. A trainer that
    dies, and keeps no weights, rows or place in a round, is begun again `alone` while all others go on: of the batches that it had begun, at most two for each
    net replica, it trains all again. So is a group PS, with the weights that it had, and the trainers of its group with it. With `retry="partial"` a sparse PS
    is begun again, too, and those trainers with it, while other PSs go on: its rows are those of the last checkpoint, and lose what they had learnt since.
    With `retry="whole"`, and for `deterministic` runs, all are begun again together, which trains nothing twice.

    Versions of the model go to the address `publish`, a folder or a place that fsspec knows, such as s3://bucket/models/ads: every `publish_every` seconds
    while training goes on, and at the end; `end` is for the last alone. Each `publish_full_every`-th has all rows, others those that have changed (HT 4.3).
    Raises what `htrain.errors` lists under RunError, errors of the plan, data or checkpoint, RunError, after a checkpoint, for what `on_validation` raises,
    and PublishError for an address where nothing can be published, and, after a checkpoint, for a last version that could not be.

        import htrain

        result = htrain.run("plan", data="packed:train.packed", out="runs/a", epochs=2, publish="published/ads")
        print(f"{result.totals.examples} examples, {result.eps:,.0f} a second, log loss {result.totals.loss:.3f}")
    """
    require_files(schema, plan=plan, data=data, valid=valid, is_mpi=hosting == "mpi")
    require_arguments(
        "run", plan=words(plan), data=words(data), out=out, resume=resume, or_resume=or_resume, begin_with=begin_with, grow=grow, epochs=epochs,
        hosting=_checked(hosting), deterministic=deterministic, checkpoint_seconds=checkpoint_seconds, deadline_seconds=deadline_seconds,
        liveness_seconds=liveness_seconds, retries=retries, retry=retry, malformed_share=malformed_share, workers=workers, num_threads=num_threads,
        network=network, trainer_network=trainer_network, encrypt=encrypt, valid=words(valid), valid_every=valid_every, early_stop=early_stop,
        keep_best=keep_best, on_validation=on_validation, valid_group_by=valid_group_by, valid_top=valid_top, best_by=best_by,
        publish=publish, publish_every=publish_every, publish_full_every=publish_full_every,
    )  # fmt: skip
    validating = Validating(
        words(valid) if not is_in_memory(valid) else _IN_MEMORY, valid_every, early_stop=early_stop, keep_best=keep_best, on_validation=on_validation,
        grouping=_grouping(valid_group_by, valid_top, "--valid-"), best_by=best_by,
    )  # fmt: skip
    beside = Beside(validating, Wanted(publish, publish_every, publish_full_every))
    _require_use(validating, beside.published)
    _require_networks(hosting, network, trainer_network, encrypt=encrypt)
    begin = _begin(out, resume, begin_with, grow, or_resume=or_resume)
    earlier = _earlier(out, begin_with, or_resume=or_resume)
    given = in_files(
        Path(out or resume), plan=plan, data=data, valid=valid, schema=schema, malformed_share=malformed_share, is_new=begin == "new"
    )  # fmt: skip
    with begun_with(earlier) as beginning, given as (plan_folder, address, valid_address):
        beside = replace(beside, validating=replace(validating, data=valid_address))
        settings = RunSettings(
            plan_folder, address, Path(out or resume), epochs=epochs, deadline_seconds=deadline_seconds, liveness_seconds=liveness_seconds,
            checkpoint_seconds=checkpoint_seconds, deterministic=deterministic, malformed_share=malformed_share, workers=workers, network=network,
            trainer_network=trainer_network, encrypts=encrypt, begin_with=beginning, grow=tuple(grow), retry=retry,
        )  # fmt: skip
        result = run_plan(
            settings, beside=beside, hosting=hosting, begin=begin, retries=retries, num_threads=num_threads, console=console or Console(stderr=True),
        )  # fmt: skip
    return TrainedRun(**vars(result), run_folder=settings.run_folder)


def _begin(
    out: str | Path, resume: str | Path, begin_with: str | Path, grow: tuple[str, ...], *, or_resume: bool
) -> Begin:
    """How a run begins. Raises UsageError where it is not clear whether it is new, or with what."""
    if or_resume and resume:
        raise UsageError("run: or_resume= is for out=: resume= goes on with a run that must be there")
    if bool(out) == bool(resume):
        raise UsageError("run: give either out=, a new run folder, or resume=, the folder of a run to go on with")
    if begin_with and resume:
        raise UsageError("run: begin_with= is for a new run: resume= goes on from the run's own checkpoint")
    if grow and not begin_with:
        raise UsageError("--grow has no effect without --begin-with: leave it out, or say with which run it begins")
    return "either" if or_resume else "resume" if resume else "new"


def _earlier(out: str | Path, begin_with: str | Path, *, or_resume: bool) -> str | Path:
    """The run to begin with; none where it goes on from a checkpoint of its own, whatever has become of the one that it began with."""
    return "" if or_resume and began(Path(out)) == "checkpoint" else begin_with


def _require_use(validating: Validating, wanted: Wanted) -> None:
    """Raises UsageError for what is said of validations where there are none, or of versions where none are published."""
    said = {
        "--valid-every": validating.every != "end",
        "--early-stop": validating.early_stop != "never",
        "--keep-best": validating.keep_best,
        "on_validation=": validating.on_validation,
        "--valid-group-by": validating.grouping,
        "--best-by": validating.best_by != "loss",
    }
    for flag, is_said in said.items():
        if is_said and not validating.data:
            raise UsageError(
                f"{flag} has no effect without --valid: it is about what is found on validation data; name some, such as --valid criteo:test.tsv"
            )
    if validating.early_stop != "never" and validating.every == "end":
        raise UsageError(
            "--early-stop has no effect without --valid-every: with --valid alone, there is one validation, at the end of the run"
        )
    if validating.best_by not in ("loss", "auc") and not validating.grouping:
        raise UsageError(
            f"--best-by {validating.best_by} is of rankings within groups, and has no effect without --valid-group-by: name a column there, such as user"
        )
    _require_address(wanted)


def _require_address(wanted: Wanted) -> None:
    """Raises UsageError for what is said of versions where none are published."""
    said = {"--publish-every": wanted.every != "end", "--publish-full-every": wanted.full_every != Wanted().full_every}
    for flag, is_said in said.items():
        if is_said and not wanted.address:
            raise UsageError(
                f"{flag} has no effect without --publish: name where versions go, such as --publish s3://bucket/models/ads"
            )


def _grouping(group_by: str, top: int, flags: str) -> Grouping | None:
    """The groups that are ranked, if any. Raises UsageError, in the name of the `flags` that begin so, for what is said of groups where there are none."""
    if group_by:
        return Grouping(group_by, top)
    if top != _TOP:
        raise UsageError(f"{flags}top {top} has no effect without {flags}group-by: it is about the first of each group")
    return None


def _checked(hosting: Hosting | Elsewhere) -> Hosting:
    """How roles are hosted, as one word. Raises UsageError for what cannot be said of those that come from elsewhere."""
    if not isinstance(hosting, Elsewhere):
        return hosting
    require_arguments(
        "Elsewhere", listen=hosting.listen, secret=hosting.secret, join_seconds=hosting.join_seconds, hosts_file=hosting.hosts
    )  # fmt: skip
    if not hosting.hosts and not hosting.secret:
        raise UsageError(
            "Elsewhere: secret: name a file of mode 0600, which roles have, too, or hosts=, where they are started by ssh"
        )
    return "processes"


def _require_networks(hosting: Hosting | Elsewhere, *networks: str, encrypt: bool) -> None:
    """Raises UsageError for what is no network, and for what is said of networks where all roles are on one machine."""
    network, _ = networks
    is_here = hosting in ("processes", "threads")
    if is_here and not encrypt:
        raise UsageError(
            "--no-encrypt has no effect on one machine, where nothing goes over a network: it is for hosts under mpiexec, or with htrain role"
        )
    if network and isinstance(hosting, Elsewhere):
        raise UsageError(
            f"--network {network} has no effect with --listen, which names the launcher's address: roles have htrain role --address"
        )
    for what, said in zip(("--network", "--trainer-network"), networks, strict=True):
        if said and is_here:
            raise UsageError(
                f"{what} {said} has no effect on one machine: it is for hosts that reach each other, under mpiexec or with htrain role"
            )
        if said:
            require_network(what, said)


def evaluate(
    run_folder: str | Path,
    *,
    data: Any,
    schema: SchemaOf = "",
    plan: str | Path = "",
    replica: str = "center",
    checkpoint: Literal["last", "best"] = "last",
    labels: Mapping[str, str] = _BY_NAME,
    group_by: str = "",
    top: int = 10,
    workers: Workers = "auto",
) -> Evaluation:
    """NE, AUC, log loss and calibration of the last checkpoint of a run on a dataset, or of the best, which `keep_best` keeps; `plan` where the run's plan has
    moved. `data` is FORMAT:PATH, or, with its `schema`, a table in memory or batches of one, as for `htrain.pack`.

    What the model returns beside what is scored is evaluated, too, in `.heads`, where its label is known: a head with the name of an input is to be that, and
    `labels={"cvr": "bought"}` says it of others, and `{"score": "bought"}` of what is scored beside a loss of the model's own.
    `group_by` names a column of the data with one value for each example, such as `user`, or `sparse.user` for one of an input's: examples with the same value
    are ranked against each other, and `.ranking` has GAUC, NDCG and recall of the first `top` of each group, and MRR, over the groups with both labels.
    As many threads compute as `workers` says, one for each core where that is `auto`: what is found does not depend on it.
    Raises UsageError for labels that are none, and for a column that is none, and as `htrain.predict`.

        import htrain

        found = htrain.evaluate("runs/a", data="packed:test.packed")
        print(f"AUC {found.auc:.3f}, log loss {found.log_loss:.3f}, calibration {found.calibration:.2f}")
    """
    require_arguments(
        "evaluate", run_folder=run_folder, data=words(data), plan=plan, replica=replica, checkpoint=checkpoint, labels=labels, group_by=group_by, top=top,
        workers=workers,
    )  # fmt: skip
    require_data("evaluate", schema, data=data)
    folder = Path(run_folder)
    plan_folder = plan_of(folder, plan)
    grouping = _grouping(group_by, top, "--")
    with data_in_a_file("evaluate", data, schema) as address:
        return evaluate_run(
            plan_folder, folder, address, replica=replica, checkpoint=checkpoint, labels=labels, grouping=grouping,
            workers=cores_here() if workers == "auto" else workers,
        )  # fmt: skip
