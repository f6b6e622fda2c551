"""Validation while training, of runs with all roles as threads of this process."""

import dataclasses
import math
import random
import threading
import time
from collections.abc import Callable
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from whole_runs import WIDE_DEEP, libfm, parameters

import htrain
from htrain.errors import CheckpointError, DataError, Error, Interrupted, RunError, UsageError
from htrain.executor.launch import pulse, validate
from htrain.executor.launch.interrupt import interrupts
from htrain.executor.launch.validate import Validating, Validator
from htrain.executor.record.kept import latest_checkpoint
from htrain.executor.record.run_folder import claimed
from htrain.executor.record.run_log import RunLog
from htrain.executor.record.totals import RunTotals
from htrain.executor.record.validations import VALIDATIONS, Validation, read_validations
from htrain.executor.roles.coordination import RunResult
from htrain.plan.plan import load_plan
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

ROWS = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan, data to train it on, `valid.libfm` with other rows, and `worse.libfm` with the rows of training and their labels turned round."""
    folder = tmp_path_factory.mktemp("validated")
    libfm(folder / "train.libfm", ROWS)
    lines = (folder / "train.libfm").read_text().splitlines()
    random.Random(1).shuffle(lines)
    (folder / "valid.libfm").write_text("\n".join(lines[: ROWS // 2]) + "\n")
    turned = (f"{-int(label)} {rest}" for label, _, rest in (line.partition(" ") for line in lines))
    (folder / "worse.libfm").write_text("\n".join(turned) + "\n")
    cluster, options = this_machine(trainers=1, group_ps=1, sparse_ps=1), with_flags(batch_size=8)
    htrain.compile(WIDE_DEEP, data=data(folder), cluster=cluster, options=options, solver="rules").save(folder / "plan")
    return folder


@pytest.fixture(autouse=True)
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers say how far they are as often as it takes for a run of a second to be looked at often."""
    monkeypatch.setattr(pulse, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(pulse, "_TICK_SECONDS", 0.02)


def data(folder: Path, name: str = "train") -> str:
    return f"libfm:{folder / name}.libfm?rows=50"


def train(folder: Path, console: Console | None = None, **said: Any) -> RunResult:
    """A run, deterministic, whose news go nowhere."""
    console = console or Console(file=StringIO())
    return htrain.run(
        folder / "plan", data=data(folder), hosting="threads", deterministic=True, checkpoint_seconds="end", console=console, **said
    )  # fmt: skip


def test_training_computes_the_same_with_validations_and_without(folder: Path, tmp_path: Path) -> None:
    plain = train(folder, out=tmp_path / "plain", epochs=20)
    validated = train(folder, out=tmp_path / "validated", epochs=20, valid=data(folder, "valid"), valid_every=400)
    assert len(validated.validations) > 2
    assert validated.totals.loss == plain.totals.loss
    before, after = parameters(tmp_path / "plain"), parameters(tmp_path / "validated")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert plain.validations == ()
    assert not (tmp_path / "plain" / VALIDATIONS).exists()


def test_validations_are_those_of_eval_are_shown_and_left_in_the_folder_and_go_on_when_resumed(
    folder: Path, tmp_path: Path
) -> None:
    run, news = tmp_path / "run", StringIO()
    first = train(
        folder, Console(file=news, width=500), out=run, epochs=3, valid=data(folder, "valid"), valid_every=400
    )
    found = htrain.evaluate(run, data=data(folder, "valid"))
    last = first.validations[-1]
    assert (last.examples, last.log_loss, last.ne, last.auc) == (3 * ROWS, found.log_loss, found.ne, found.auc)
    assert last.checkpoint == first.checkpoint.name
    assert (
        f"validation at 1,200 examples: NE {last.ne:.4f}, AUC {last.auc:.4f}, loss {last.log_loss:.4f}"
        in news.getvalue()
    )
    assert read_validations(run) == first.validations
    with (run / VALIDATIONS).open("ab") as file:
        file.write(b'{"examples":12')  # what a launcher that was killed may leave
    second = train(folder, resume=run, epochs=5, valid=data(folder, "valid"), valid_every=400)
    assert second.validations[: len(first.validations)] == first.validations
    assert read_validations(run) == second.validations
    examples = [each.examples for each in second.validations]
    assert examples == sorted(set(examples))
    assert examples[-1] == 5 * ROWS


def test_with_valid_alone_there_is_one_at_the_end(folder: Path, tmp_path: Path) -> None:
    result = train(folder, out=tmp_path / "run", valid=data(folder, "valid"))
    assert [each.examples for each in result.validations] == [ROWS]
    assert result.validations[0].is_best
    assert not result.stopped


def test_the_last_validation_is_of_the_data_as_it_is(folder: Path, tmp_path: Path) -> None:
    """A file of the same name may have other rows when a run goes on that has nothing left to train."""
    place = tmp_path / "valid.libfm"
    for name in ("valid", "valid", "worse", "worse"):
        place.write_text((folder / f"{name}.libfm").read_text())
        where = {"resume": tmp_path / "run"} if (tmp_path / "run").exists() else {"out": tmp_path / "run"}
        found = train(folder, valid=data(tmp_path, "valid"), keep_best="out" in where, **where).validations[-1]
        assert found.log_loss == htrain.evaluate(tmp_path / "run", data=data(folder, name)).log_loss
        assert (found.is_best, found.kept) == (True, True)  # the best on what the file holds now
        assert htrain.evaluate(tmp_path / "run", data=data(folder, "valid"), checkpoint="best").examples == ROWS // 2


def test_a_run_that_goes_on_without_the_flag_keeps_what_is_better_then(folder: Path, tmp_path: Path) -> None:
    said = {"valid": data(folder, "valid"), "valid_every": 200}
    train(folder, out=tmp_path / "run", keep_best=True, **said)
    found = train(folder, resume=tmp_path / "run", epochs=4, **said).validations
    best = min(found, key=lambda each: each.log_loss)
    assert best.examples > ROWS  # of the part that has been resumed
    assert best.kept
    evaluated = htrain.evaluate(tmp_path / "run", data=data(folder, "valid"), checkpoint="best")
    assert evaluated.log_loss == best.log_loss


def test_a_run_that_gets_no_better_ends_early_keeps_its_best_and_counts_on_when_resumed(
    folder: Path, tmp_path: Path
) -> None:
    run, worse = tmp_path / "run", data(folder, "worse")
    said: dict[str, Any] = {"epochs": 1000, "valid": worse, "valid_every": 200, "early_stop": 3, "keep_best": True}
    result = train(folder, out=run, **said)
    best = min(result.validations, key=lambda each: each.log_loss)
    assert best.kept
    assert f" validations in a row without a better log loss than {best.log_loss:.4f} at " in result.stopped
    assert result.totals.examples < 1000 * ROWS
    assert not latest_checkpoint(run)[1].finished
    assert htrain.evaluate(run, data=worse, checkpoint="best").log_loss == best.log_loss
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept[0] == best.checkpoint
    assert len(kept) == 3
    again = train(folder, resume=run, **said)
    assert again.stopped
    assert len(again.validations) <= len(result.validations) + 2, "the first ends it, and the last is of its end"
    train(folder, resume=run, epochs=again.totals.examples // ROWS + 2)  # without validations: the best stays
    assert htrain.evaluate(run, data=worse, checkpoint="best").log_loss == best.log_loss


@pytest.mark.parametrize("best_by", ["gauc", "ndcg", "mrr", "auc"])
def test_a_run_keeps_what_ranks_best_within_groups_and_ends_by_it(folder: Path, tmp_path: Path, best_by: str) -> None:
    run, worse, news = tmp_path / "run", data(folder, "worse"), StringIO()
    said: dict[str, Any] = {"valid": worse, "valid_every": 200, "early_stop": 2, "keep_best": True, "best_by": best_by}
    said |= {"epochs": 1000, "valid_group_by": "F3", "valid_top": 2}
    result = train(folder, Console(file=news, width=500), out=run, **said)
    best = max(result.validations, key=lambda each: float(getattr(each, best_by)))
    assert best.kept
    name = "NDCG" if best_by == "ndcg" else best_by.upper()
    assert f" without a better {name} than {getattr(best, best_by):.4f} at {best.examples:,} examples" in result.stopped
    found = htrain.evaluate(run, data=worse, checkpoint="best", group_by="F3", top=2)
    assert found.ranking
    assert (best.gauc, best.ndcg, best.recall, best.mrr) == (
        found.ranking.gauc,
        found.ranking.ndcg,
        found.ranking.recall,
        found.ranking.mrr,
    )
    assert (
        f", GAUC {best.gauc:.4f}, NDCG@2 {best.ndcg:.4f}, recall@2 {best.recall:.4f}, MRR {best.mrr:.4f} ("
        in news.getvalue()
    )
    again = train(folder, resume=run, **said)
    assert again.stopped
    assert len(again.validations) <= len(result.validations) + 2, "the first ends it, and the last is of its end"


def test_rankings_within_other_groups_or_of_other_places_are_not_compared(folder: Path, tmp_path: Path) -> None:
    """Recall of the first nine is higher than that of the first, whatever the model."""
    run, said = tmp_path / "run", {"valid": data(folder, "valid"), "best_by": "recall", "keep_best": True}
    for epochs, column, top in ((1, "F3", 9), (2, "F3", 1), (3, "F1", 1)):
        where = {"resume": run} if run.exists() else {"out": run}
        found = train(folder, epochs=epochs, valid_group_by=column, valid_top=top, **where, **said).validations[-1]
        assert (found.is_best, found.kept, found.group_by, found.top) == (True, True, column, top)
        assert found.groups > 5


@pytest.mark.parametrize(
    ("best_by", "why"),
    [
        ("auc", r"this validation data has no AUC \(its labels are not 0 and 1, or all are the same\)"),
        ("ndcg", r"this validation data has no NDCG \(its labels are not 0 and 1, or all are the same\)"),
    ],
)
def test_a_measure_that_the_data_does_not_have_ends_the_run_with_a_checkpoint(
    folder: Path, tmp_path: Path, best_by: str, why: str
) -> None:
    """It went on as if it had got no better, and kept nothing."""
    lines = (folder / "valid.libfm").read_text().splitlines(keepends=True)
    (tmp_path / "clicks.libfm").write_text("".join(line for line in lines if line.startswith("1 ")))
    said: dict[str, Any] = {"valid_every": 200, "early_stop": 2, "best_by": best_by, "valid_group_by": "F3"}
    with pytest.raises(RunError, match=rf"^--best-by {best_by}: {why}.*what was trained is saved: go on with"):
        train(folder, out=tmp_path / "run", epochs=1000, valid=data(tmp_path, "clicks"), **said)
    assert latest_checkpoint(tmp_path / "run")[1].examples < 1000 * ROWS


@pytest.mark.parametrize("best_by", ["loss", "auc"])
def test_a_model_that_diverged_in_validation_is_not_blamed_on_the_data(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best_by: str
) -> None:
    def diverged(*given: Any, **named: Any) -> Any:
        return dataclasses.replace(evaluate(*given, **named), log_loss=math.nan, auc=math.nan)

    evaluate = validate.evaluate
    monkeypatch.setattr(validate, "evaluate", diverged)
    result = train(folder, out=tmp_path / "run", valid=data(folder, "valid"), best_by=best_by)
    assert [each.is_best for each in result.validations] == [False]


def test_a_run_that_goes_on_by_another_measure_judges_its_validations_so_far_by_that(
    folder: Path, tmp_path: Path
) -> None:
    """Those of before that lack it are no better than any."""
    run, worse = tmp_path / "run", data(folder, "worse")
    train(folder, out=run, epochs=2, valid=worse, valid_every=200, keep_best=True)
    ranked: dict[str, Any] = {"valid": worse, "valid_group_by": "F3", "best_by": "gauc", "keep_best": True}
    result = train(folder, resume=run, epochs=3, **ranked)
    last = result.validations[-1]
    assert last.is_best
    assert last.kept
    assert math.isnan(result.validations[0].gauc)


def test_a_run_on_numbers_has_neither_ne_nor_auc_and_gets_better_by_its_squared_error(
    folder: Path, tmp_path: Path
) -> None:
    cluster, options = this_machine(trainers=1, group_ps=1, sparse_ps=1), with_flags(batch_size=8, loss="mse")
    htrain.compile(WIDE_DEEP, data=data(folder), cluster=cluster, options=options, solver="rules").save(
        tmp_path / "plan"
    )
    news = StringIO()
    result = htrain.run(
        tmp_path / "plan", data=data(folder), out=tmp_path / "run", hosting="threads", epochs=1000, valid=data(folder, "worse"),
        valid_every=200, early_stop=1, console=Console(file=news, width=500),
    )  # fmt: skip
    assert "a validation without a better mean squared error than " in result.stopped
    assert " examples: loss " in news.getvalue()
    line = (tmp_path / "run" / VALIDATIONS).read_text().splitlines()[-1]
    assert '"ne":null,"auc":null,' in line


def test_a_run_that_kept_no_best_checkpoint_has_none_to_evaluate(folder: Path, tmp_path: Path) -> None:
    train(folder, out=tmp_path / "run", valid=data(folder, "valid"))
    with pytest.raises(CheckpointError, match="keeps no best checkpoint: it was not trained with --keep-best"):
        htrain.evaluate(tmp_path / "run", data=data(folder, "valid"), checkpoint="best")


def test_on_validation_ends_a_run_with_true(folder: Path, tmp_path: Path) -> None:
    seen: list[Validation] = []

    def stop(found: Validation) -> bool:
        assert threading.current_thread() is threading.main_thread()
        seen.append(found)
        return len(seen) == 2

    result = train(
        folder, out=tmp_path / "run", epochs=1000, valid=data(folder, "valid"), valid_every=200, on_validation=stop
    )
    assert result.stopped == "on_validation has said so"
    assert len(result.validations) in (2, 3)
    assert [each.examples for each in result.validations] == sorted({each.examples for each in seen})


def fails(found: Validation) -> None:
    raise ValueError("two\nlines")


def removes(path: Path) -> Callable[[Validation], None]:
    return lambda found: path.unlink(missing_ok=True)


def test_what_on_validation_raises_ends_a_run_with_a_checkpoint_and_one_line(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(RunError) as raised:
        train(folder, out=run, epochs=1000, valid=data(folder, "valid"), valid_every=200, on_validation=fails)
    (done,) = read_validations(run)
    assert str(raised.value) == (
        f"on_validation failed at {done.examples:,} examples: ValueError: two lines; what was trained is saved: go on with --resume {run}"
    )
    assert latest_checkpoint(run)[1].examples >= done.examples
    with pytest.raises(RunError, match=r"^on_validation failed at .* is saved: "):
        train(folder, out=tmp_path / "end", valid=data(folder, "valid"), on_validation=fails)
    assert latest_checkpoint(tmp_path / "end")[1].finished


def test_data_that_goes_away_ends_a_run_with_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "valid.libfm").write_bytes((folder / "valid.libfm").read_bytes())
    with pytest.raises(
        DataError, match=r"^validation of examples_.*valid\.libfm.*what was trained is saved: go on with"
    ):
        train(
            folder, out=tmp_path / "run", epochs=1000, valid=data(tmp_path, "valid"), valid_every=200,
            on_validation=removes(tmp_path / "valid.libfm"),
        )  # fmt: skip
    assert len(read_validations(tmp_path / "run")) == 1
    assert latest_checkpoint(tmp_path / "run")


def test_a_slow_validation_does_not_stop_training_and_the_next_is_of_the_newest(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Validation] = []
    told: list[int] = []  # how many examples are trained, each time that the launcher says so
    write, evaluate = RunLog.write, validate.evaluate

    def writes(log: RunLog, totals: RunTotals, reports: dict[str, dict[str, Any]]) -> None:
        told.append(totals.examples)
        write(log, totals, reports)

    def slow(*given: Any, **named: Any) -> Any:
        before, deadline = len(told), time.monotonic() + 60
        while len(seen) < 3 and (len(told) < before + 2 or told[-1] <= told[before] + 240):
            assert time.monotonic() < deadline, told
            time.sleep(0.01)
        return evaluate(*given, **named)

    def enough(found: Validation) -> bool:
        seen.append(found)
        return len(seen) == 3

    monkeypatch.setattr(RunLog, "write", writes)
    monkeypatch.setattr(validate, "evaluate", slow)
    train(
        folder, out=tmp_path / "run", epochs=10_000, valid=data(folder, "valid"), valid_every=80, on_validation=enough
    )
    assert len(seen) >= 3
    assert all(after.examples > before.examples + 240 for before, after in pairwise(seen[:3]))


MISUSES: dict[str, dict[str, Any]] = {
    "--valid-every has no effect without --valid": {"valid_every": 10},
    "--early-stop has no effect without --valid: ": {"early_stop": 3},
    "--keep-best has no effect without --valid": {"keep_best": True},
    "on_validation= has no effect without --valid": {"on_validation": fails},
    "--early-stop has no effect without --valid-every": {"early_stop": 3, "valid": "libfm:x"},
    "--best-by has no effect without --valid": {"best_by": "auc"},
    "--valid-group-by has no effect without --valid": {"valid_group_by": "user"},
    "--valid-top 5 has no effect without --valid-group-by": {"valid_top": 5, "valid": "libfm:x"},
    "--best-by gauc .* has no effect without --valid-group-by": {"best_by": "gauc", "valid": "libfm:x"},
}


@pytest.mark.parametrize("why", MISUSES)
def test_what_has_no_effect_is_refused(why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^{why}"):
        htrain.run(tmp_path, data="synthetic:", out=tmp_path / "run", **MISUSES[why])


@pytest.mark.parametrize(
    ("valid", "why"),
    [
        ("libfm:nowhere.libfm?rows=50", r"^--valid: nowhere\.libfm: "),
        (
            "synthetic:?rows=100&table_rows=100",
            r"^--valid: synthetic.*: the plan wants input 'sparse' as int64\[B,4\], the data has",
        ),
        ("nonsense", r"^--valid: .*nonsense"),
    ],
)
def test_data_that_cannot_be_evaluated_is_refused_before_training(
    folder: Path, tmp_path: Path, valid: str, why: str
) -> None:
    with pytest.raises(Error, match=why):
        train(folder, out=tmp_path / "run", valid=valid)
    assert not (tmp_path / "run").exists()


def test_who_asks_to_stop_does_not_wait_for_the_last_validation(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = train(folder, out=tmp_path / "run").checkpoint
    plan, wanted = load_plan(folder / "plan"), Validating(data(folder, "valid"))
    dataset = wanted.open(plan)
    assert dataset
    validator = Validator(plan, tmp_path / "run", wanted, dataset, so_far=[], tell=lambda text: None)
    evaluates = threading.Event()

    def endless(*given: Any, on_batch: Callable[[], None], **named: Any) -> None:
        evaluates.set()
        while True:
            time.sleep(0.01)
            on_batch()

    monkeypatch.setattr(validate, "evaluate", endless)
    with interrupts() as interrupt, claimed(tmp_path / "run") as claim:
        threading.Thread(target=lambda: (evaluates.wait(), interrupt.ask())).start()
        with pytest.raises(
            Interrupted, match=r"stopped while its last checkpoint was validated; all is trained and saved"
        ):
            validator.finish(checkpoint, interrupt, claim)
    validator.close()
    assert not [each for each in threading.enumerate() if each.name == "launcher/validation"]
