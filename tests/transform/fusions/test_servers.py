"""Tables that are served together: what is fused, and that not a bit of a step changes."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from harness import losses_of
from interpreter import run_net
from small_dlrm import small_dlrm
from small_wide_deep import BATCH, model_of

from htrain.compiler.pipeline import compile_net
from htrain.frontend.captured import Captured
from htrain.net.net import Net
from htrain.plan.plan import Plan
from htrain.spec.cluster import Cluster, this_machine
from htrain.spec.numerics import RowDtype
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

PLAIN = with_flags(batch_size=BATCH, sparse_lr=0.5, fuse_servers=False)
DATA = "synthetic:?rows=640&table_rows=40&communities=4"


def compiled(model: str, options: Options, **counts: int) -> Plan:
    _, captured = model_of(model)
    return compile_net(
        captured, this_machine(**{"trainers": 1, "group_ps": 1, "sparse_ps": 1, **counts}), options, name="m"
    )


def types(net: Net) -> Counter[str]:
    return Counter(op.type for op in net.ops)


def stepped(net: Net) -> dict[str, torch.Tensor]:
    """Every parameter after a step, and the loss."""
    generator = torch.Generator().manual_seed(0)
    parameters = {n: torch.rand(p.shape, generator=generator) * 0.1 for n, p in sorted(net.parameters.items())}
    sizes = {n: [d if isinstance(d, int) else d.at(BATCH) for d in net.blobs[n].shape] for n in net.inputs}
    batch = {
        name: torch.randint(0, 40, size, generator=generator)
        if net.blobs[name].dtype == "int64"
        else torch.rand(size, generator=generator).round()
        for name, size in sizes.items()
    }
    return {**parameters, "loss": run_net(net, parameters, batch)[net.outputs[0]]}


@pytest.mark.parametrize(
    ("model", "optimizer", "row_dtype"),
    [
        (model, optimizer, ("float32", "int8")[(i + j) % 2])  # each optimizer with each dtype, on some model
        for i, model in enumerate(("dlrm.py", "wide_deep.py", "deepfm.py"))
        for j, optimizer in enumerate(("sgd", "adagrad", "rowwise_adagrad"))
    ],
)
def test_a_step_of_the_fused_net_is_that_of_the_net_to_the_bit(model: str, optimizer: str, row_dtype: RowDtype) -> None:
    options = with_flags(PLAIN, sparse_optimizer=optimizer, row_dtype=row_dtype)
    plain, fused = (
        compiled(model, with_flags(options, fuse_servers=on), sparse_ps=2).nets["train"] for on in (False, True)
    )
    assert {"LookupTables", "SparseStepTables"} <= types(fused).keys()
    wanted, seen = stepped(plain), stepped(fused)
    assert seen.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(seen[name], value, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("row_dtype", ["float32", "bfloat16", "int8"])
def test_a_sparse_ps_looks_all_tables_up_and_steps_all_tables_at_once(row_dtype: RowDtype) -> None:
    gradients = "float32" if row_dtype == "float32" else "bfloat16"
    options = with_flags(PLAIN, fuse_servers=True, row_dtype=row_dtype, row_gradient_dtype=gradients)
    served = types(compiled("dlrm.py", options).nets["sparse_ps_0"])
    assert (served["LookupTables"], served["SparseStepTables"], served["Ack"]) == (1, 1, 1)
    assert not {"Lookup", "SparseSgd", "SparseAdagrad", "SparseRowWiseAdagrad"} & served.keys()


def test_tables_whose_ids_no_message_brings_are_left_alone() -> None:
    train = compiled("dlrm.py", with_flags(PLAIN, fuse_servers=True), group_ps=0, sparse_ps=0).nets["train"]
    assert not {"LookupTables", "SparseStepTables"} & types(train).keys()


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_a_run_follows_the_same_losses_to_the_bit(optimizer: str, tmp_path: Path) -> None:
    losses = []
    for on in (False, True):
        options = with_flags(PLAIN, batch_size=64, sparse_optimizer=optimizer, fuse_servers=on)
        _, captured = model_of("wide_deep.py")
        plan = compile_net(captured, this_machine(group_ps=1, sparse_ps=2), options, name="m")
        losses.append(losses_of(plan, tmp_path / str(on), DATA))
    assert losses[0] == losses[1]


def test_shards_of_a_table_on_one_device_are_served_together() -> None:
    plan = compile_net(
        Captured(small_dlrm(), {}),
        Cluster(group_ps=1, sparse_ps=1),
        Options(batch_size=8),
        name="m",
        table_splits={"item.weight": 2},
    )
    (lookup,) = (op for op in plan.nets["sparse_ps_0"].ops if op.type == "LookupTables")
    assert sorted(lookup.attrs["first_rows"])[-1] == 25  # type: ignore[type-var, arg-type]
    assert {"item.weight/0", "item.weight/1"} <= set(lookup.inputs)
