"""What travels between trainers and group PSs is what its encoding keeps; everything else is as it was (HT 4.2)."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from harness import losses_of, relative_differences
from hypothesis import given, settings
from hypothesis import strategies as st
from small_dlrm import small_dlrm

from htrain.compiler.pipeline import compile_net
from htrain.data import click_schema
from htrain.executor.launch.forward import forward_net
from htrain.frontend.captured import Captured
from htrain.frontend.load import load_model
from htrain.frontend.torch_model import capture
from htrain.net.check import check
from htrain.net.net import COMPRESS, Net
from htrain.plan.plan import Plan
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.transform.compress import compress_values
from htrain.transform.split import split_by_node

DATA = "synthetic:?rows=640&table_rows=40&communities=4"
BOTH = with_flags(batch_size=8, activation_dtype="bfloat16", gradient_dtype="bfloat16", compress="always")


def small(options: Options, **counts: int) -> Plan:
    cluster = Cluster(**{"group_ps": 2, "sparse_ps": 2, "trainers": 2, **counts})
    return compile_net(Captured(small_dlrm(), {}), cluster, options, name="small", solver="rules")


def crossing(nets: dict[str, Net]) -> set[tuple[str, str]]:
    """(dtype, blob) of everything that trainers and group PSs send each other."""
    return {
        (net.blobs[op.inputs[0]].dtype, op.inputs[0])
        for device, net in nets.items()
        for op in net.ops
        if op.type == "Send" and not {device.split(":")[0], str(op.attrs["peer"]).split(":")[0]} & {"sparse_ps"}
    }


def test_without_encodings_the_net_is_the_same(plan: Plan) -> None:
    train = plan.nets["train"]
    assert compress_values(train, {}, plan.options) == train


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_any_choice_of_blobs_on_any_placement_gives_nets_that_hold_together(plan: Plan, data: st.DataObject) -> None:
    train = plan.nets["train"]
    tags = {
        module: data.draw(st.sampled_from(["trainer", "group_ps:0", "group_ps:1"]), label=module)
        for module in sorted({op.module for op in train.ops if op.node_name in ("trainer", "group_ps:0", "group_ps:1")})
    }
    moved = train.with_ops(
        replace(op, node_name=tags.get(op.module, op.node_name))
        if op.node_name in ("trainer", "group_ps:0", "group_ps:1")
        else op
        for op in train.ops
    )
    floats = sorted(b.name for b in train.blobs.values() if b.dtype == "float32" and len(b.shape) == 2)
    chosen = data.draw(st.sets(st.sampled_from(floats)))
    net = check(compress_values(moved, dict.fromkeys(chosen, "bfloat16"), plan.options))
    sent = crossing(split_by_node(net))
    assert not {("float32", name) for name in chosen} & sent
    assert {name.removesuffix("/bfloat16") for dtype, name in sent if dtype == "bfloat16"} <= chosen


def test_activations_and_gradients_travel_as_the_options_say_and_rows_and_labels_as_they_are() -> None:
    plan = small(BOTH)
    parts = {d: plan.net_of(d) for d in plan.cluster.devices if not d.startswith("dense_ps")}
    wide = {name for dtype, name in crossing(parts) if dtype == "float32"}
    assert wide <= set(plan.nets["train"].outputs)
    assert {dtype for dtype, _ in crossing(parts)} >= {"bfloat16"}
    rows = [
        net.blobs[op.inputs[0]]
        for d, net in parts.items()
        for op in net.ops
        if op.type == "Send" and d.startswith("sparse_ps")
    ]
    assert {blob.dtype for blob in rows} == {"float32", "int8"}  # rows, and the ends of steps


def test_decoded_values_stand_on_the_readers_device_and_evaluation_does_without() -> None:
    train = small(BOTH).nets["train"]
    codecs = [op for op in train.ops if op.module == COMPRESS]
    readers = {name: op.node_name for op in train.ops for name in op.inputs}
    assert codecs
    for op in codecs:
        if op.attrs["to"] == "float32":
            assert readers[op.outputs[0]] == op.node_name
    assert not [op for op in forward_net(train).ops if op.module == COMPRESS or op.type == "Cast"]


@pytest.mark.parametrize(
    ("changes", "least", "most"),
    [
        ({"activation_dtype": "bfloat16", "gradient_dtype": "bfloat16"}, 1e-7, 0.01),
        ({"activation_dtype": "int8", "gradient_dtype": "bfloat16"}, 1e-7, 0.02),
    ],
    ids=["bfloat16", "int8"],
)
def test_loss_curve_stays_near_that_of_full_precision(
    changes: dict[str, object], least: float, most: float, zoo_dlrm: Captured, tmp_path
) -> None:
    options = with_flags(batch_size=64, dense_optimizer="sgd", sparse_optimizer="sgd", dense_lr=0.05, sparse_lr=0.05)
    plans = {
        name: compile_net(zoo_dlrm, Cluster(group_ps=2, sparse_ps=1), chosen, name="dlrm", solver="rules")
        for name, chosen in {"full": options, "short": with_flags(options, compress="always", **changes)}.items()
    }
    curves = {name: losses_of(plan, tmp_path / name, DATA) for name, plan in plans.items()}
    worst = max(relative_differences(curves["short"], curves["full"]))
    assert least < worst < most


@pytest.fixture(scope="module")
def zoo_dlrm() -> Captured:
    torch.manual_seed(0)
    loaded = load_model(str(Path(__file__).parents[2] / "models" / "dlrm.py"), click_schema(13, (40,) * 26))
    return loaded.initialised(capture(loaded.module, loaded.example_inputs))


@pytest.mark.parametrize(
    ("row_dtype", "travels"), [("bfloat16", "bfloat16"), ("float16", "float16"), ("int8", "uint8")]
)
def test_rows_and_their_gradients_travel_as_the_options_say(row_dtype: str, travels: str, tmp_path: Path) -> None:
    options = with_flags(batch_size=8, row_dtype=row_dtype, row_gradient_dtype="bfloat16")  # type: ignore[arg-type]
    plan = small(options)
    sent = {
        (d.split(":")[0], net.blobs[op.inputs[0]].dtype, len(net.blobs[op.inputs[0]].shape))
        for d in plan.cluster.devices if not d.startswith("dense_ps")
        for net in [plan.net_of(d)]
        for op in net.ops
        if op.type == "Send" and "sparse_ps" in (d.split(":")[0], str(op.attrs["peer"]).split(":")[0])
    }  # fmt: skip
    rows = {(device, dtype) for device, dtype, dimensions in sent if dimensions == 2}
    assert ("sparse_ps", travels) in rows
    assert rows - {("sparse_ps", travels), ("sparse_ps", "float32")} <= {
        ("group_ps", "bfloat16"),
        ("trainer", "bfloat16"),
    }
    assert (("sparse_ps", "float32") in rows) == (row_dtype == "int8")  # the ranges
