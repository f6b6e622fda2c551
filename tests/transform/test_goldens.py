"""The whole text of the small model's nets after each pass; `--update-goldens` rewrites them, review reads the diff."""

import pytest
from small_dlrm import small_dlrm

from htrain.compiler.fusing import fuse_forward
from htrain.compiler.pipeline import compile_net
from htrain.frontend.captured import Captured
from htrain.net.net import Net
from htrain.plan.plan import Plan
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.tagging.units import fixed_tags, table_owners
from htrain.transform.gradient import add_gradients
from htrain.transform.lookups import lower_lookups
from htrain.transform.loss import add_loss
from htrain.transform.modules import name_modules
from htrain.transform.optimizer import add_optimizers
from htrain.transform.repeated import compute_once
from htrain.transform.shard_lookups import shard_lookups

PASSES = ("0_forward", "1_lookups", "2_loss", "3_modules", "4_fused", "5_gradient", "6_optimizer", "7_shard_lookups")


@pytest.fixture(scope="module")
def nets(plan: Plan) -> dict[str, Net]:
    """The net after each pass, in order."""
    forward = small_dlrm()
    lowered = lower_lookups(forward)
    with_loss = add_loss(lowered, "bce")
    named = name_modules(with_loss)
    fused = fuse_forward(named, Options())
    with_gradients, gradients = add_gradients(fused)
    trained = add_optimizers(with_gradients, gradients, Options(batch_size=8))
    sharded = shard_lookups(trained, plan.tables)
    steps = (forward, lowered, with_loss, named, fused, with_gradients, trained, sharded)
    return dict(zip(PASSES, steps, strict=True))


@pytest.mark.parametrize("name", PASSES)
def test_net_after_each_pass(name: str, nets: dict[str, Net], golden) -> None:
    golden(name, nets[name].text())


def test_tagged_net(plan: Plan, nets: dict[str, Net], golden) -> None:
    golden("8_tagged", plan.nets["train"].text())
    options = with_flags(plan.options, fuse_servers=False, fast_products=False)
    cut = {"item.weight": 2}
    tagged = compile_net(
        Captured(small_dlrm(), {}), plan.cluster, options, name="small", solver="rules", table_splits=cut
    ).nets["train"]
    assert [(op.type, op.inputs, op.outputs) for op in tagged.ops] == [
        (op.type, op.inputs, op.outputs) for op in compute_once(nets["7_shard_lookups"]).ops
    ]


@pytest.mark.parametrize(
    ("name", "prefixes"),
    [
        ("9_devices", ("trainer", "group_ps", "sparse_ps")),
        ("10_init", ("init_",)),
        ("10_sync", ("sync_", "center_")),
    ],
)
def test_nets_of_the_roles(name: str, prefixes: tuple[str, ...], plan: Plan, golden) -> None:
    golden(name, "\n".join(net.text() for key, net in plan.nets.items() if key.startswith(prefixes)))


@pytest.mark.parametrize("dense_sync", ["bmuf", "model_averaging"])
def test_nets_of_rounds(dense_sync: str, golden) -> None:
    options = with_flags(batch_size=8, dense_sync=dense_sync)
    nets = compile_net(Captured(small_dlrm(), {}), Cluster(groups=2), options, name="small_dlrm", solver="rules").nets
    golden(
        f"11_{dense_sync}",
        "\n".join(net.text() for key, net in nets.items() if key.startswith(("init_dense", "sync_", "center_"))),
    )


def test_decisions(plan: Plan, golden) -> None:
    golden("8_decisions", "".join(f"{d.module}: {d.device} by '{d.rule}': {d.reason}\n" for d in plan.decisions))


def test_only_the_choice_of_units_is_free(plan: Plan) -> None:
    train = plan.nets["train"]
    fixed = fixed_tags(train, table_owners(plan.tables))
    assert all(train.ops[i].node_name == device for i, device in fixed.items())
    assert {train.ops[i].module for i in range(len(train.ops)) if i not in fixed} == {d.module for d in plan.decisions}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("het", with_flags(batch_size=8, dense_sync="allreduce", cache="het", cache_table=(("item.weight", "30%"),))),
        ("allgather", with_flags(batch_size=8, dense_sync="allreduce", sparse_sync="allgather")),
        ("pulled", with_flags(batch_size=8, dense_sync="ps")),
        ("lookahead", with_flags(batch_size=8, cache="lookahead", cache_sets=3, cache_ways=2)),
    ],
)
def test_nets_of_workers_in_lockstep_and_of_the_classic_server(name: str, options: Options, golden) -> None:
    counts = {"groups": 1, "group_ps": 1} if name in ("pulled", "lookahead") else {"groups": 2, "group_ps": 0}
    cluster = Cluster(**{"sparse_ps": 2, **counts})
    splits = {} if name == "allgather" else {"item.weight": 2}
    plan = compile_net(
        Captured(small_dlrm(), {}), cluster, options, name="small_dlrm", solver="rules", table_splits=splits
    )
    golden(name, "\n".join(net.text() for key, net in plan.nets.items() if key != "train" and "init" not in key))
