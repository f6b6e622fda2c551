"""Groups of one trainer without group PSs are the EASGD system of HT section 2.2: a plan like any other."""

from pathlib import Path

import pytest
import torch
from whole_runs import WIDE_DEEP, parameters

import htrain
from htrain.compiler.pipeline import compile_net
from htrain.data import click_schema
from htrain.frontend.load import load_model
from htrain.frontend.torch_model import capture
from htrain.net.net import Net
from htrain.net.placement import Decision
from htrain.spec.cluster import Cluster
from htrain.spec.tree import with_flags
from htrain.tagging.workload import Workload

DATA = "synthetic:?rows=8000&table_rows=50&communities=4"
TEST = "synthetic:?rows=6000&table_rows=50&communities=4&first_block=1000000"


def test_dense_replicas_of_the_easgd_system_are_drawn_together_and_the_model_learns(tmp_path: Path) -> None:
    cluster = Cluster(groups=4, trainers=1, group_ps=0, sparse_ps=1, dense_ps=1)
    options = with_flags(batch_size=32, net_replicas=1, sync_period=2, dense_sync="easgd")
    htrain.compile(WIDE_DEEP, data=DATA, cluster=cluster, options=options).save(tmp_path / "plan")
    result = htrain.run(tmp_path / "plan", data=DATA, out=tmp_path / "run", hosting="threads")
    assert result.totals.examples == 8_000
    assert result.totals.sync_rounds >= 4
    assert result.totals.max_staleness == 0
    saved = parameters(tmp_path / "run")
    replicas = [{n.partition(" ")[2]: t for n, t in saved.items() if n.startswith(f"trainer_{g}_0 ")} for g in range(4)]
    centre = {n.partition(" ")[2]: t for n, t in saved.items() if n.startswith("dense_ps_0 ")}
    weight = next(n for n in centre if n.endswith("weight") and centre[n].dim() == 2)
    apart = max(float((a[weight] - b[weight]).norm()) for a in replicas for b in replicas)
    assert 0 < apart < 0.5 * float(centre[weight].norm())
    assert all(torch.isfinite(t).all() for t in saved.values() if t.is_floating_point())
    assert htrain.evaluate(tmp_path / "run", data=TEST).ne < 1


@pytest.mark.parametrize(("kind", "through"), [("easgd", "dense_ps"), ("model_averaging", "groups")])
def test_weights_on_the_trainer_and_on_its_group_ps_are_both_synchronised(
    kind: str, through: str, tmp_path: Path
) -> None:
    """With one trainer in a group the search may leave modules with weights there, beside those on the group PS."""

    def tagger(net: Net, workload: Workload) -> list[Decision]:
        heavy = [u.name for u in workload.units if u.weights]
        return [
            Decision(u.name, "group_ps:0" if u.name in heavy[::2] else "trainer", "every other", "drawn")
            for u in workload.units
        ]

    loaded = load_model(WIDE_DEEP, click_schema(13, (50,) * 26))
    captured = loaded.initialised(capture(loaded.module, loaded.example_inputs))
    cluster = Cluster(groups=2, trainers=1, group_ps=1, sparse_ps=1, dense_ps=1)
    options = with_flags(batch_size=32, net_replicas=1, sync_period=2, dense_sync=kind, sync_through=through)
    plan = compile_net(captured, cluster, options, name="wide_deep", tagger=tagger, solver="rules")
    hosts = {"dense_ps": ["dense_ps_0"], "groups": ["group_0", "group_1"]}[through]
    assert {f"center_{host}_{holder}" for host in hosts for holder in ("trainer", "group_ps_0")} <= plan.nets.keys()
    plan.save(tmp_path / "plan")
    result = htrain.run(tmp_path / "plan", data=DATA, out=tmp_path / "run", hosting="threads")
    assert result.totals.sync_rounds >= 4
    assert htrain.evaluate(tmp_path / "run", data=TEST).ne < 1


@pytest.mark.parametrize(("kind", "through"), [("model_averaging", "dense_ps"), ("bmuf", "groups")])
def test_groups_at_a_fixed_rate_are_equal_at_their_last_round_whatever_data_each_has(
    kind: str, through: str, tmp_path: Path
) -> None:
    """Three groups, of which one has a step more than the others: it goes on alone, and the others come to its rounds. With a period of one step every
    update is followed by a round, and what a checkpoint keeps is behind one."""
    cluster = Cluster(
        groups=3, trainers=1, group_ps=1, sparse_ps=1, **({"dense_ps": 2} if through == "dense_ps" else {})
    )
    options = with_flags(
        batch_size=32,
        net_replicas=1,
        dense_sync=kind,
        sync_period=1,
        sync_mode="fixed_rate",
        sync_through=through,
        prefetch=False,
    )
    data = "synthetic:?rows=4128&table_rows=50"
    htrain.compile(WIDE_DEEP, data=data, cluster=cluster, options=options).save(tmp_path / "plan")
    result = htrain.run(tmp_path / "plan", data=data, out=tmp_path / "run", hosting="threads", checkpoint_seconds=0.2)
    assert result.totals.examples == 4128
    resumed = htrain.run(tmp_path / "plan", data=data, resume=tmp_path / "run", epochs=2, hosting="threads")
    assert resumed.totals.examples == 2 * 4128
    saved = parameters(tmp_path / "run")
    replicas = [
        {n.partition(" ")[2]: t for n, t in saved.items() if n.startswith(f"group_ps_{g}_0 ")} for g in range(3)
    ]
    weights = [n for n in replicas[0] if n.endswith((".weight", ".bias"))]
    assert len(weights) > 3
    for name in weights:
        for other in replicas[1:]:
            torch.testing.assert_close(replicas[0][name], other[name], rtol=1e-4, atol=1e-5)
    counts = [t for n, t in saved.items() if n.endswith(":arrived")]
    assert counts
    assert not any(count.any() for count in counts)
    evaluations = [htrain.evaluate(tmp_path / "run", data=TEST, replica=replica) for replica in ("center", "group:2")]
    assert evaluations[0].log_loss == pytest.approx(evaluations[1].log_loss, rel=1e-3)
