"""Validation while training: a run's checkpoints are evaluated in a thread of the launcher, one at a time, and training goes on (docs/how-to/run.md)."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from math import isnan
from pathlib import Path

from msgspec.structs import replace

from htrain.data import Dataset
from htrain.data.identity import content_of, stamps_of
from htrain.data.labels import is_binary
from htrain.data.malformed import left_out
from htrain.data.ranking import NOT_RANKED, Grouping, require_column
from htrain.errors import Error, Interrupted, RunError
from htrain.executor.host.bell import Bell
from htrain.executor.launch.coordinator import NoValidations, OwnFolder
from htrain.executor.launch.evaluate import Evaluation, evaluate, labels_of
from htrain.executor.launch.forward import data_for, evaluated_net
from htrain.executor.launch.interrupt import Interrupt
from htrain.executor.record.checkpoint import read_manifest
from htrain.executor.record.kept import prune
from htrain.executor.record.layout import Layout
from htrain.executor.record.parameters import load_parameters
from htrain.executor.record.validations import (
    VALIDATIONS,
    Validation,
    kept_checkpoint,
    news_of,
    read_validations,
    write_validations,
)
from htrain.executor.roles.coordination import Validated
from htrain.executor.roles.early_stop import standing_of
from htrain.executor.settings import RunSettings
from htrain.plan.plan import Plan
from htrain.printable import as_word
from htrain.spec.settings import BestBy, EarlyStop, ValidEvery

OnValidation = Callable[[Validation], object]
_MEASURES = {"auc": "AUC", "gauc": "GAUC", "ndcg": "NDCG", "recall": "recall", "mrr": "MRR"}
_LOOK_SECONDS = 0.2  # between two looks at the user, while the last checkpoint is validated
_LAST_SECONDS = 5.0  # for an evaluation that nobody waits for any more


@dataclass(frozen=True)
class Validating:
    """What a user wants to have validated.

    Checkpoints are evaluated on `data`, "" for none, every `every` examples of the whole job, `end` for the last alone. The run ends after `early_stop`
    validations in a row without a better value, or where `on_validation` says True. The best checkpoint is kept where `keep_best` says so. Better is what
    `best_by` says; scores are ranked within the groups of `grouping`, if any.
    """

    data: str = ""
    every: ValidEvery = "end"
    early_stop: EarlyStop = "never"
    keep_best: bool = False
    on_validation: OnValidation | None = None
    grouping: Grouping | None = None
    best_by: BestBy = "loss"

    def open(self, plan: Plan) -> Dataset | None:
        """The data, as a plan reads it; None where there is none. Raises what `data_for` does, and says that it is about this data."""
        try:
            dataset = data_for(plan, self.data) if self.data else None
        except Error as error:
            raise type(error)(f"--valid: {error}") from error
        if dataset and self.grouping:
            require_column(dataset.schema, self.grouping.column, what="--valid-group-by")
        return dataset


class _Abandoned(Exception):
    """Nobody waits for this evaluation any more."""


class Validator:
    """The validations of one run, on `dataset`, behind those that it had before it was resumed.

    All but `_evaluate` is for one thread, the launcher's. An evaluation is told of in three steps: its thread leaves it in `_outcome` and rings the bell, the
    launcher calls `news`, and only then may the next begin: until then its checkpoint is spared.
    """

    def __init__(
        self,
        plan: Plan,
        run_folder: Path,
        wanted: Validating,
        dataset: Dataset,
        so_far: Sequence[Validation],
        tell: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._net = evaluated_net(plan)
        self._labels = labels_of(plan, self._net, {})
        self._run_folder = run_folder
        self._wanted = wanted
        self._dataset = dataset
        self._tell = tell
        self._all = list(so_far)
        self._has_found = False  # since the run began, or went on
        self._error: Error | None = None
        self._bell = Bell()
        self._is_abandoned = threading.Event()
        self._thread: threading.Thread | None = None
        self._checkpoint = ""  # that is evaluated
        self._left_out = ""  # of its data, in words
        self._stamps: tuple[tuple[int, ...], ...] = ()  # of its files, when `_content` was made of them
        self._content = ""
        self._outcome: Validation | Error | None = None
        self._on_found: Callable[[Validation], None] = lambda found: None

    def show(self, on_found: Callable[[Validation], None]) -> None:
        """Have `on_found` called with each validation from now on, by the launcher's thread."""
        self._on_found = on_found

    @property
    def descriptors(self) -> Sequence[int]:
        """What can be read as soon as `news` may have some."""
        return (self._bell.descriptor,)

    @property
    def spared(self) -> Collection[str]:
        """The names of the checkpoints that are not to be removed: the best, and the one that is evaluated."""
        return {kept_checkpoint(self._all), self._checkpoint}

    def begin(self, checkpoint: Path) -> None:
        """Begin to evaluate a checkpoint. Requires: of the one before, `news` has told."""
        assert not self._thread
        self._checkpoint = checkpoint.name
        self._thread = threading.Thread(
            target=self._evaluate, args=(checkpoint,), name="launcher/validation", daemon=True
        )
        self._thread.start()

    def news(self) -> Validated | None:
        """What the run is told of an evaluation that has ended, once; None where none has."""
        self._bell.mute()
        outcome, self._outcome = self._outcome, None
        if outcome is None or not self._thread:
            return None
        self._thread.join()
        self._thread, self._checkpoint = None, ""
        if isinstance(outcome, Error):
            self._error = outcome
            return Validated(error=outcome)
        return self._take(outcome)

    def finish(self, checkpoint: Path, interrupt: Interrupt, folder: OwnFolder) -> tuple[Validation, ...]:
        """Evaluate the last checkpoint, behind the one before; all validations on the same data, those of before the run was resumed included.

        Where the one before was of as many examples, since the run went on, and no round with a centre can have come between, the weights are the same, and it
        stands. The data of one before that may have had other rows.
        Raises Interrupted where the user asks to stop meanwhile, and what keeps one from being evaluated: the run is over, and saved; CheckpointError where
        its `folder` is lost.
        """
        self._wait(interrupt, folder)
        if self._is_validated(read_manifest(checkpoint).examples) and not self._plan.centers:
            self._all[-1] = replace(self._all[-1], checkpoint=checkpoint.name)
            self._write()
        else:
            self.begin(checkpoint)
            self._wait(interrupt, folder)
        folder.look()
        prune(self._run_folder, spared=self.spared)
        return tuple(self._on_this_data)

    def _is_validated(self, examples: int) -> bool:
        """Whether the last validation was of so many examples, on this data as it is."""
        return self._has_found and (self._all[-1].examples, self._all[-1].data) == (examples, self._wanted.data)

    def close(self) -> None:
        """Abandon what is evaluated."""
        self._is_abandoned.set()
        if self._thread:
            self._thread.join(_LAST_SECONDS)
        self._bell.close()

    def _wait(self, interrupt: Interrupt, folder: OwnFolder) -> None:
        while self._thread:
            self._thread.join(_LOOK_SECONDS)
            folder.give_sign()
            folder.require()
            self.news()
            if interrupt.is_asked:
                raise Interrupted(
                    f"stopped while its last checkpoint was validated; all is trained and saved: htrain eval {as_word(self._run_folder)}"
                )
        if self._error:
            raise type(self._error)(f"{self._error}; what was trained is saved: {self._run_folder}")

    # -- an evaluation, in its own thread ----------------------------------------------------------------------------

    def _evaluate(self, checkpoint: Path) -> None:
        began = time.monotonic()
        try:
            self._look_at_data()
            manifest = read_manifest(checkpoint)
            parameters = load_parameters(
                Layout.of(self._plan), self._net.parameters, checkpoint, manifest=manifest, replica="center"
            )
            found = evaluate(
                self._plan,
                self._net,
                parameters,
                self._dataset,
                labels=self._labels,
                grouping=self._wanted.grouping,
                on_batch=self._look,
            )
            self._left_out = left_out(found.malformed, found.malformed_example)
            self._outcome = self._validation(checkpoint, manifest.examples, found, time.monotonic() - began)
        except _Abandoned:
            return
        except Error as error:
            self._outcome = type(error)(f"validation of {checkpoint.name}: {error}")
        except BaseException as error:  # somebody waits for an outcome
            self._outcome = RunError(f"validation of {checkpoint.name}: {_one_line(error)}")
        self._bell.ring()

    def _look_at_data(self) -> None:
        """Its content, made anew where its files may have changed. Raises DataError."""
        stamps = stamps_of(self._wanted.data)
        if not self._content or not stamps or stamps != self._stamps:
            self._stamps, self._content = stamps, content_of(self._wanted.data)

    def _look(self) -> None:
        if self._is_abandoned.is_set():
            raise _Abandoned

    def _validation(self, checkpoint: Path, examples: int, found: Evaluation, seconds: float) -> Validation:
        ranked = found.ranking or NOT_RANKED
        return Validation(
            examples=examples,
            ne=found.ne,
            auc=found.auc,
            log_loss=found.log_loss,
            heads={name: each.auc for name, each in found.heads.items() if not isnan(each.auc)},
            seconds=seconds,
            checkpoint=checkpoint.name,
            data=self._wanted.data,
            calibration=found.calibration,
            gauc=ranked.gauc,
            ndcg=ranked.ndcg,
            recall=ranked.recall,
            mrr=ranked.mrr,
            top=ranked.top,
            group_by=self._wanted.grouping.column if self._wanted.grouping else "",
            groups=ranked.groups,
            content=self._content,
        )

    # -- what comes of it --------------------------------------------------------------------------------------------

    @property
    def _on_this_data(self) -> list[Validation]:
        """Values of other data say nothing of better or worse."""
        return [each for each in self._all if each.data == self._wanted.data]

    def _take(self, found: Validation) -> Validated:
        """Keep, show and judge a validation. The one after no more examples, as that of the end may be, takes the place of the one before, if it is as good."""
        keeps = self._wanted.keep_best or bool(kept_checkpoint(self._all))  # what is kept as the best is to be that
        by = self._wanted.best_by
        if _is_again(found, self._all, by):
            keeps |= self._all.pop().kept
        like = [each for each in self._all if each.is_comparable(by, found)]
        is_best = standing_of(each.cost(by) for each in like).is_better(found.cost(by))
        found = replace(found, is_best=is_best, kept=is_best and keeps)
        self._all.append(found)
        self._has_found = True
        self._write()
        self._tell(
            "; ".join(news for news in (news_of(found), self._left_out, _changed(found, self._all[:-1])) if news)
        )
        self._on_found(found)
        if by != "loss" and not isnan(found.log_loss) and all(isnan(each.value(by)) for each in (found, *like)):
            self._error = RunError(
                f"--best-by {by}: this validation data has no {_MEASURES[by]} ({_lacks(found)}): go by another measure, or validate on other data"
            )
            return Validated(error=self._error)
        asked = ""
        try:
            if self._wanted.on_validation and self._wanted.on_validation(found):
                asked = "on_validation has said so"
        except Exception as error:
            self._error = RunError(f"on_validation failed at {found.examples:,} examples: {_one_line(error)}")
            return Validated(error=self._error)
        return Validated(self._early_stop() or asked)

    def _write(self) -> None:
        try:
            write_validations(self._run_folder, self._all)
        except OSError as error:
            self._tell(
                f"{self._run_folder / VALIDATIONS}: cannot be written: {error.strerror}; it is tried again with the next"
            )

    def _early_stop(self) -> str:
        """Why the run is to end, "" where it still gets better."""
        by = self._wanted.best_by
        seen = [each for each in self._all if each.is_comparable(by, self._all[-1])]
        standing = standing_of(each.cost(by) for each in seen)
        if self._wanted.early_stop == "never" or not standing.ends(self._wanted.early_stop):
            return ""
        best = next((each for each in seen if each.cost(by) == standing.best), None)
        where = f" than {best.value(by):.4f} at {best.examples:,} examples" if best else ""
        count = standing.without_better
        return f"{f'{count} validations in a row' if count > 1 else 'a validation'} without a better {self._measure}{where}"

    @property
    def _measure(self) -> str:
        """What the run goes by, in words."""
        by, loss = self._wanted.best_by, self._plan.options.loss
        if by != "loss":
            return _MEASURES[by]
        return "log loss" if is_binary(loss) else "mean squared error" if loss == "mse" else "loss"


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _changed(found: Validation, before: Sequence[Validation]) -> str:
    """That the data of those before was another, where this is the first of what it is now."""
    named = [each for each in before if each.data == found.data]
    if not named or found.is_of_data(named[-1]):
        return ""
    return f"{found.data} is not what it was: validations before are not compared with"


def _is_again(found: Validation, before: Sequence[Validation], by: BestBy) -> bool:
    if not before or found.examples != before[-1].examples or not found.is_comparable(by, before[-1]):
        return False
    return found.cost(by) <= before[-1].cost(by)


def _lacks(found: Validation) -> str:
    """Why a measure of clicks is not known."""
    if found.group_by and not isnan(found.auc):
        return f"no {found.group_by} has examples of label 1 and of label 0"
    return "its labels are not 0 and 1, or all are the same"


def prepared(
    plan: Plan, settings: RunSettings, wanted: Validating, dataset: Dataset | None, tell: Callable[[str], None]
) -> tuple[RunSettings, Validator | NoValidations]:
    """The settings and the validator of a run, new or resumed, that has its folder. Raises CheckpointError for validations that are damaged.

    Validations behind the checkpoint that it goes on from are of a training that has not been.
    """
    trained = sum(int(state["totals"]["examples"]) for state in settings.positions.values())
    so_far = [each for each in read_validations(settings.run_folder) if each.examples <= trained]
    if not dataset:
        return settings, NoValidations((kept_checkpoint(so_far),))
    last = max((each.examples for each in so_far if each.data == wanted.data), default=trained)
    validator = Validator(plan, settings.run_folder, wanted, dataset, so_far=so_far, tell=tell)
    every = 0 if wanted.every == "end" else wanted.every
    return replaced(settings, valid_every=every, validated=last), validator
