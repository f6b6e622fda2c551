"""Cutting a tagged net: for random tags, the parts together compute what the whole computes, over one wire per value and reader."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest
import torch
from din import build as build_din
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import Values, draw_parameters, has_declared_shape, run_net, run_parts
from small_dlrm import ITEMS, USERS, small_batch, small_dlrm

from htrain.data.schema import Input, Schema
from htrain.errors import PlanError
from htrain.executor.engine.context import Context
from htrain.executor.engine.engine import Engine
from htrain.executor.engine.program import build_program
from htrain.frontend.load import example_batch
from htrain.frontend.torch_model import capture
from htrain.net.check import check
from htrain.net.net import Net, Op
from htrain.net.placement import Shard
from htrain.spec.options import Options
from htrain.transform.gradient import add_gradients
from htrain.transform.lookups import lower_lookups
from htrain.transform.loss import add_loss
from htrain.transform.modules import name_modules
from htrain.transform.optimizer import add_optimizers
from htrain.transform.shard_lookups import shard_lookups
from htrain.transform.split import split_by_node

COMMUNICATION = ("Send", "Recv", "Ack", "Begin")
DEVICES = ("trainer", "group_ps:0", "group_ps:1", "group_ps:2", "sparse_ps:0", "sparse_ps:1")
VISITS = Schema(
    (Input("dense", "dense", 3), Input("target", "ids", 1), Input("history", "padded", 6), Input("tags", "padded", 4))
)
SEEDS = st.integers(0, 1 << 30)
quick = settings(max_examples=40, deadline=None, derandomize=True)


@cache
def untagged(shards: int) -> Net:
    """The small model's train net, its tables in that many shards."""
    net, gradients = add_gradients(name_modules(add_loss(lower_lookups(small_dlrm()), "bce")))
    net = add_optimizers(net, gradients, Options())
    tables = {"user.weight": USERS, "item.weight": ITEMS}
    return shard_lookups(net, {table: cut(table, rows, shards) for table, rows in tables.items()})


def cut(table: str, rows: int, shards: int) -> tuple[Shard, ...]:
    bounds = [rows * k // shards for k in range(shards + 1)]
    return tuple(Shard(table, bounds[k], bounds[k + 1] - bounds[k], "") for k in range(shards))


def tagged(shards: int, seed: int) -> Net:
    """Any op anywhere, except that the ops on one parameter share a device."""
    net, draw = untagged(shards), random.Random(seed)
    device_of: dict[str, str] = {}
    ops = []
    for op in net.ops:
        owned = [owner(net, name) for name in op.inputs if name in net.parameters]
        device = device_of.get(owned[0], "") if owned else ""
        device = device or draw.choice(DEVICES)
        device_of.update(dict.fromkeys(owned, device))
        ops.append(replace(op, node_name=device))
    return net.with_ops(ops)


def owner(net: Net, name: str) -> str:
    """The layer or table that a parameter belongs to."""
    parameter = net.parameters[name]
    return (parameter.of if parameter.kind == "state" else name).removesuffix(".bias").removesuffix(".weight")


def of_type(net: Net, type: str) -> list[Op]:
    return [op for op in net.ops if op.type == type]


def readers(net: Net) -> set[tuple[str, str]]:
    """(blob, device) for each device that reads a blob made elsewhere."""
    home = dict.fromkeys(net.inputs, "trainer") | {o: op.node_name for op in net.ops for o in op.outputs}
    wanted = {(name, op.node_name) for op in net.ops for name in op.inputs} | {
        (name, "trainer") for name in net.outputs
    }
    return {(name, device) for name, device in wanted if home.get(name, device) != device}


@quick
@given(shards=st.integers(1, 3), tags=SEEDS, schedule=SEEDS)
def test_the_parts_together_compute_what_the_whole_computes(shards: int, tags: int, schedule: int) -> None:
    net, inputs = tagged(shards, tags), small_batch(tags, 6)
    parts = split_by_node(net)
    whole = draw_parameters(net, seed=tags)
    own: Mapping[str, Values] = {d: {name: whole[name].clone() for name in p.parameters} for d, p in parts.items()}
    expected = run_net(net, whole, inputs)
    seen = run_parts(parts, own, inputs, seed=schedule)
    assert all(torch.equal(seen[name], value) for name, value in expected.items())
    held = [(name, value) for values in own.values() for name, value in values.items()]
    assert sorted(name for name, _ in held) == sorted(whole)
    assert all(torch.equal(value, whole[name]) for name, value in held)


@quick
@given(shards=st.integers(1, 3), tags=SEEDS)
def test_each_value_travels_once_to_each_reader(shards: int, tags: int) -> None:
    net = tagged(shards, tags)
    parts = split_by_node(net, DEVICES)
    updating = {op.node_name for op in net.ops if op.type in ("Adagrad", "SparseAdagrad")} - {"trainer"}
    acks = {("done_" + device.replace(":", "_"), "trainer") for device in updating}
    sends = [
        (op.inputs[0], op.attrs["peer"], d, op.attrs["message"]) for d, p in parts.items() for op in of_type(p, "Send")
    ]
    receives = [
        (op.outputs[0], d, op.attrs["peer"], op.attrs["message"]) for d, p in parts.items() for op in of_type(p, "Recv")
    ]
    assert sorted(sends) == sorted(receives)
    assert Counter(send[:2] for send in sends) == Counter(readers(net) | acks)


@quick
@given(shards=st.integers(1, 3), tags=SEEDS)
def test_each_op_is_in_one_part_in_the_order_of_the_whole(shards: int, tags: int) -> None:
    net = tagged(shards, tags)
    parts = split_by_node(net, DEVICES)
    assert set(parts) == set(DEVICES)
    for device, part in parts.items():
        check(part)
        assert [op for op in part.ops if op.type not in COMMUNICATION] == [
            op for op in net.ops if op.node_name == device
        ]
        assert part.inputs == (net.inputs if device == "trainer" else ())
        assert part.outputs == (net.outputs if device == "trainer" else ())


@quick
@given(shards=st.integers(1, 3), tags=SEEDS)
def test_a_message_leaves_from_one_stage_and_goes_one_way(shards: int, tags: int) -> None:
    """So that no receiver waits for a value that is ready because another of the same message is not."""
    net = tagged(shards, tags)
    ways: dict[object, set[tuple[str, object]]] = {}
    for device, part in split_by_node(net).items():
        stages: dict[object, set[int]] = {}
        for stage in build_program(part, draw_parameters(part, seed=0)).stages:
            for op in stage.ops:
                if op.type == "Send":
                    stages.setdefault(op.attrs["message"], set()).add(stage.index)
                    ways.setdefault(op.attrs["message"], set()).add((device, op.attrs["peer"]))
        assert all(len(indices) == 1 for indices in stages.values()), (device, stages)
    assert all(len(way) == 1 for way in ways.values())


@quick
@given(tags=SEEDS)
def test_no_weight_is_read_on_account_of_rows_that_were_asked_for_ahead(tags: int) -> None:
    """Of the next step, the trainer asks for the rows and nothing else; the others do all that follows."""
    net, batch = attention(), example_batch(VISITS, 6)
    parts = split_by_node(as_in_plans(net, tags))
    engines = {device: Engine(build_program(part, draw_parameters(part, seed=0))) for device, part in parts.items()}
    context = Context(0, 0, 0, 1)
    passes = {"trainer": engines["trainer"].begin(context, "", 6, {**batch, "label": torch.zeros(6)})}
    ready = [("trainer", stage) for stage in engines["trainer"].start(passes["trainer"]) if stage.prefetch]
    letters: list[tuple[str, dict[str, torch.Tensor]]] = []
    ran: set[str] = set()
    while ready or letters:
        if ready:
            device, stage = ready.pop()
            ran.add(device)
            assert device == "trainer" or not stage.reads, (device, stage.ops)
            more = engines[device].run(
                passes[device],
                stage,
                lambda to, names, tensors: letters.append((to, dict(zip(names, tensors, strict=True)))),
            )
        else:
            device, tensors = letters.pop()
            more = []
            if device not in passes:
                passes[device] = engines[device].begin(context, "", 6, {})
                more += engines[device].start(passes[device])
            more += engines[device].receive(passes[device], tensors)
        ready += [(device, each) for each in more if device != "trainer"]
    assert "sparse_ps:0" in ran


@cache
def attention() -> Net:
    """The train net of a model with a sequence, and weights that are read whatever the batch is."""
    inputs = {name: value for name, value in example_batch(VISITS, 6).items() if name != "tags_length"}
    captured = capture(build_din(), inputs, logit="logit")
    net, gradients = add_gradients(name_modules(add_loss(lower_lookups(captured.net), "bce")))
    return add_optimizers(net, gradients, Options())


def as_in_plans(net: Net, seed: int) -> Net:
    """Dense weights on group PSs or the trainer, tables on a sparse PS, and on the trainer what finds out which rows to ask for."""
    draw = random.Random(seed)
    device_of: dict[str, str] = {}

    def device(op: Op) -> str:
        held = [name for name in op.inputs if name in net.parameters]
        if op.type.startswith("Dedupe"):
            return "trainer"
        if any(net.holds_rows(net.parameters[name]) for name in held):
            return "sparse_ps:0"
        drawn = draw.choice(("trainer", "group_ps:0", "group_ps:1"))
        return device_of.setdefault(owner(net, held[0]), drawn) if held else drawn

    return net.with_ops(replace(op, node_name=device(op)) for op in net.ops)


@quick
@given(tags=SEEDS)
def test_an_acknowledgement_comes_after_every_update_of_its_device(tags: int) -> None:
    for part in split_by_node(tagged(2, tags)).values():
        for ack in of_type(part, "Ack"):
            assert max(i for i, op in enumerate(part.ops) if op.type in ("Adagrad", "SparseAdagrad")) < part.ops.index(
                ack
            )


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_blobs_are_as_declared(shards: int) -> None:
    net, inputs = untagged(shards), small_batch(0, 6)
    values = run_net(net, draw_parameters(net, seed=0), inputs)
    wrong = [str(net.blobs[n]) for n, v in values.items() if not has_declared_shape(net.blobs[n], v, 6)]
    assert wrong == []


def test_an_op_without_a_tag_is_refused() -> None:
    with pytest.raises(PlanError, match=r"^FC 'bottom_fc' of module 'bottom' has no node_name$"):
        split_by_node(small_dlrm())
