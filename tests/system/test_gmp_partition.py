"""The partition of a plan: found from any folder, and asked for, by its digest, before a run begins."""

import gc
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from gmp_data import BATCH, FieldNet, Parts, arguments_of, divided, drawn, examples_of, write_examples

import htrain
from htrain.cli.app import commands
from htrain.errors import DataError, PlanError
from htrain.executor.record.identity import PlanIdentity
from htrain.plan.plan import Plan, load_plan
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

WORKERS = 2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Parts, Parts]:
    """Two partitions of the same data."""
    folder = tmp_path_factory.mktemp("data")
    source = write_examples(folder, "a", BATCH * 40)
    (folder / "other").mkdir()
    return divided(source, folder, WORKERS), divided(source, folder / "other", WORKERS, seed=7)


@pytest.fixture
def parts(made: tuple[Parts, Parts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parts:
    """The first of them, where a test may move it; that is in the folder `here`, from which the plan is compiled by its name there."""
    first, other = made
    (tmp_path / "here").mkdir()
    shutil.copy(first.partition, tmp_path / "here" / "p.partition")
    shutil.copy(other.partition, tmp_path / "other.partition")
    monkeypatch.chdir(tmp_path / "here")
    planned(first, "p.partition").save(tmp_path / "plan")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return replace(first, partition=tmp_path / "here" / "p.partition")


def planned(of: Parts, partition: str) -> Plan:
    model = drawn(FieldNet)
    inputs = {name: value for name, value in examples_of(of.source).items() if name in arguments_of(model)}
    options = with_flags(dense_sync="allreduce", sparse_sync="gmp", partition=partition, batch_size=BATCH)
    cluster = this_machine(groups=WORKERS, trainers=1, group_ps=0)
    return htrain.compile(model, example_inputs=inputs, cluster=cluster, options=options, self_check=False)


def checked(plan: Path) -> tuple[int, str]:
    result = CliRunner().invoke(commands, ["check", str(plan)])
    error = result.exception
    return result.exit_code, str(error) if error and not isinstance(error, SystemExit) else result.output


def test_it_is_found_from_any_folder(parts: Parts, tmp_path: Path) -> None:
    assert checked(tmp_path / "plan") == (0, f"{tmp_path / 'plan'}: ok\n")
    htrain.run(tmp_path / "plan", data=parts.packed, out=tmp_path / "run", hosting="threads")
    assert htrain.evaluate(tmp_path / "run", data=parts.source).examples == BATCH * 40


@pytest.mark.parametrize("is_gone", [True, False])
def test_one_that_is_gone_or_another_keeps_a_run_from_beginning(is_gone: bool, parts: Parts, tmp_path: Path) -> None:
    plan, wanted = tmp_path / "plan", parts.numbering.digest[:12]
    if is_gone:
        parts.partition.rename(tmp_path / "kept")
        kind: type[Exception] = DataError
        says = rf"p\.partition: cannot be read: .*the plan wants the partition of the digest {wanted} there; put it back, or compile the plan again"
    else:
        parts.partition.rename(tmp_path / "kept")
        shutil.copy(tmp_path / "other.partition", parts.partition)
        kind = PlanError
        says = (
            rf"is another partition .*the plan has {wanted}\): put that partition back there, or compile the plan again"
        )
    with pytest.raises(kind, match=says):
        htrain.run(plan, data=parts.packed, out=tmp_path / "run", hosting="threads")
    assert not (tmp_path / "run").exists()
    status, said = checked(plan)
    assert status
    assert wanted in said
    (tmp_path / "kept").rename(parts.partition)
    htrain.run(plan, data=parts.packed, out=tmp_path / "run", hosting="threads")


def test_a_run_is_evaluated_with_its_own(parts: Parts, tmp_path: Path) -> None:
    """What was trained cannot be compiled again."""
    htrain.run(tmp_path / "plan", data=parts.packed, out=tmp_path / "run", hosting="threads")
    digest = parts.numbering.digest[:12]
    gc.collect()  # what roles have read of it, which another reader in this process would share
    parts.partition.rename(tmp_path / "kept")
    with pytest.raises(DataError, match=rf"the partition of the digest {digest} there; put it back, or compile"):
        htrain.evaluate(tmp_path / "run", data=parts.source)
    shutil.copy(tmp_path / "other.partition", parts.partition)
    with pytest.raises(PlanError, match=rf"the plan has {digest}\): put that partition back there$"):
        htrain.evaluate(tmp_path / "run", data=parts.source)


def test_compiled_again_with_where_it_lies_now_it_is_the_same_plan(parts: Parts, tmp_path: Path) -> None:
    before = load_plan(tmp_path / "plan")
    htrain.run(tmp_path / "plan", data=parts.packed, out=tmp_path / "run", hosting="threads")
    parts.partition.rename(tmp_path / "moved.partition")
    after = planned(parts, str(tmp_path / "moved.partition"))
    assert after.digest == before.digest
    assert not PlanIdentity.of(before).difference(PlanIdentity.of(after))
    after.save(tmp_path / "plan")
    assert htrain.evaluate(tmp_path / "run", data=parts.source).examples == BATCH * 40


def test_an_older_plan_names_it_as_it_was_named(parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(parts, str(parts.partition))
    sync = replace(plan.options.sparse_sync, partition="p.partition")  # type: ignore[call-arg]
    older = replace(plan, options=replace(plan.options, sparse_sync=sync))
    older.save(tmp_path / "older")
    with pytest.raises(DataError, match=rf"p\.partition: cannot be read: .*\(looked for in {tmp_path}/elsewhere\)"):
        htrain.run(tmp_path / "older", data=parts.packed, out=tmp_path / "run", hosting="threads")
    monkeypatch.chdir(parts.partition.parent)
    htrain.run(tmp_path / "older", data=parts.packed, out=tmp_path / "run", hosting="threads")
