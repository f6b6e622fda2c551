"""Plan folders that older versions wrote, one of each kind of net: they load, run, and their runs go on. Add a folder with every new version."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import htrain
from htrain.errors import PlanError
from htrain.executor.record.identity import PlanIdentity
from htrain.executor.record.kept import latest_checkpoint
from htrain.plan.check import check_plan
from htrain.plan.plan import Plan, load_plan
from htrain.plan.text import plan_diff
from htrain.spec.cluster import Cluster
from htrain.spec.migrations import NEWEST, OLDEST, migrated
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

PLANS = Path(__file__).parents[1] / "plans"
DATA = "synthetic:?rows=640&table_rows=20"
HOSTS: dict[str, Any] = {"trainer_cores": 2, "group_ps_cores": 2, "sparse_ps_cores": 2, "dense_ps_cores": 2}
NARROW: dict[str, Any] = {"batch_size": 16, "fc_dtype": "float32", "fc_gradient_dtype": "float32"}
# What they said; version 14 as 0, -1, 1 or in strategies that were not chosen.
KINDS: dict[str, tuple[Cluster, Options]] = {
    "easgd": (
        Cluster(groups=2, host_cores=2, **HOSTS),
        with_flags(**NARROW, dense_optimizer="adam", beta1=0.8, sparse_eps=1e-9, gradient_dtype="bfloat16", dense_sync="easgd", sync_period=3),
    ),
    "het": (
        Cluster(groups=2, group_ps=0, dense_ps=0, python_lock=False, **HOSTS),
        with_flags(
            **NARROW, net_replicas=1, dense_sync="allreduce", sparse_optimizer="rowwise_adagrad", cache="het", cache_capacity="50%",
            cache_staleness="unbounded", cache_table=(("second.weight", "none"),),
        ),
    ),
    "lookahead": (
        Cluster(group_ps=0, pin=(("first.weight", "sparse_ps:0"),), **HOSTS),
        with_flags(
            **NARROW, net_replicas=1, dense_optimizer="sgd", sparse_optimizer="sgd", dense_sync="easgd", cache="lookahead", cache_patch=False, cache_ways=4
        ),
    ),
}  # fmt: skip
SAID = {f"{version}/{kind}": said for version in range(OLDEST, NEWEST) for kind, said in KINDS.items()}


def test_there_is_a_folder_of_every_older_version() -> None:
    assert sorted(folder.name for folder in PLANS.iterdir()) == [str(version) for version in range(OLDEST, NEWEST)]
    assert sorted(
        f"{folder.parent.name}/{folder.name}" for folder in PLANS.glob("*/*") if not folder.name.endswith(".run")
    ) == sorted(SAID)


@pytest.fixture(scope="module", params=sorted(SAID))
def plan(request: pytest.FixtureRequest) -> tuple[str, Plan]:
    return request.param, check_plan(load_plan(PLANS / request.param))


def test_an_older_plan_says_what_it_said(plan: tuple[str, Plan], tmp_path: Path) -> None:
    name, loaded = plan
    assert (loaded.cluster, loaded.options) == SAID[name]
    loaded.save(tmp_path / "plan")
    assert yaml.safe_load((tmp_path / "plan" / "plan.yaml").read_text())["version"] == NEWEST
    assert plan_diff(loaded, load_plan(tmp_path / "plan")) == []


def test_a_run_that_an_older_version_began_goes_on(plan: tuple[str, Plan], tmp_path: Path) -> None:
    """Under the plan as it is, and under the same plan written today; not under another one."""
    name, loaded = plan
    shutil.copytree(PLANS / f"{name}.run", tmp_path / "run")
    loaded.save(tmp_path / "plan")
    assert latest_checkpoint(tmp_path / "run")[1].examples == 640
    for epochs, folder in ((2, PLANS / name), (3, tmp_path / "plan")):
        result = htrain.run(
            folder, data=DATA, resume=tmp_path / "run", epochs=epochs, hosting="threads", deterministic=True
        )
        assert result.totals.examples == 640 * epochs
    recorded = latest_checkpoint(PLANS / f"{name}.run")[1].identity.plan
    assert recorded.difference(PlanIdentity.of(loaded)) == ""
    other = PlanIdentity(recorded.digest, recorded.counts, {**recorded.options, "seed": 7}, recorded.version)
    assert other.difference(PlanIdentity.of(loaded)) == "seed: 0 now, 7 then"


def test_an_identity_of_a_newer_version_is_no_riddle(plan: tuple[str, Plan]) -> None:
    known = PlanIdentity.of(plan[1])
    newer = PlanIdentity(known.digest, known.counts, known.options, NEWEST + 1)
    assert newer.difference(known).startswith(f"it was begun by a newer htrain (version {NEWEST + 1} of plans")


def _without(header: dict[str, Any], section: str, name: str) -> None:
    del header[section][name]


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda h: _without(h, "options", "sync_alpha"), "options: 'sync_alpha' is missing"),
        (lambda h: h["options"].update(cache_tables=3, cache="het"), "options: not as version 14 has it"),
        (lambda h: h["options"].update(dense_optimizer=["adam"]), "options: not as version 14 has it"),
        (
            lambda h: h["options"].update(dense_optimizer="lion"),
            "options.dense_optimizer.kind: 'lion' is not one of sgd, adagrad, adam",
        ),
        (lambda h: h["options"].update(sync_period=0), "options.dense_sync.period: 0 is not a whole number of 1"),
        (lambda h: _without(h, "cluster", "host_cores"), "cluster: 'host_cores' is missing"),
        (lambda h: h["cluster"].update(host_cores=[3]), "cluster: host_cores: "),
        (lambda h: h["cluster"].update(racks=3), "unknown field 'racks'"),
        (
            lambda h: h.update(version=OLDEST - 1),
            f"version {OLDEST - 1}, this htrain reads the versions {OLDEST} to {NEWEST}: compile the model again",
        ),
    ],
)
def test_an_older_plan_that_no_version_wrote_is_refused(edit: Any, says: str, tmp_path: Path) -> None:
    shutil.copytree(PLANS / "14" / "easgd", tmp_path / "plan")
    path = tmp_path / "plan" / "plan.yaml"
    header = yaml.safe_load(path.read_text())
    edit(header)
    path.write_text(yaml.safe_dump(header))
    with pytest.raises(PlanError) as refusal:
        load_plan(tmp_path / "plan")
    assert str(refusal.value).startswith(str(path))
    assert says in str(refusal.value)


def test_a_migration_leaves_what_it_is_not_about() -> None:
    assert migrated({"options": {"seed": 3}}, NEWEST) == {"options": {"seed": 3}}
    assert migrated({}, OLDEST) == {}
