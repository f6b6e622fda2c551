"""Changed nets compute what is left of them, and name nothing that is gone."""

import random
from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from random_nets import TABLES, WEIGHTS, draw_values, random_net, run_in_order

from htrain.net.check import check
from htrain.net.net import COMPRESS, B, Blob, Net, Op
from htrain.net.rewriting import Rewriting, as_made, only_needed, reading
from htrain.ops import OPS

SEEDS = st.integers(0, 10_000)


NAMES = (*WEIGHTS, *TABLES, "x0", "x1", *(f"b{number}" for number in range(60)))


def outputs(net: Net, seed: int) -> list[torch.Tensor]:
    """What a net gives; what it reads or receives has a value by its name, the same in every net."""
    drawn = draw_values(NAMES, seed)
    values, _ = run_in_order(net, {name: drawn[name] for name in net.parameters}, drawn)
    return [values[name] for name in net.outputs]


def has_effects(op: Op) -> bool:
    return OPS[op.type].effects or op.type == "Ack"


@given(SEEDS)
def test_what_is_kept_and_what_leads_to_it_gives_the_same_outputs(seed: int) -> None:
    net = random_net(random.Random(seed))
    kept = only_needed(net, has_effects)
    assert [op for op in kept.ops if has_effects(op)] == [op for op in net.ops if has_effects(op)]
    for mine, theirs in zip(outputs(kept, seed), outputs(net, seed), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@given(SEEDS)
def test_every_op_that_is_needed_leads_to_an_output(seed: int) -> None:
    net = only_needed(random_net(random.Random(seed)))
    for place, op in enumerate(net.ops):
        read = {name for other in net.ops[place + 1 :] for name in other.inputs}
        assert (read | set(net.outputs)).intersection(op.outputs)
    assert only_needed(net) == net


@given(SEEDS)
def test_ops_are_replaced_in_their_places(seed: int) -> None:
    net = random_net(random.Random(seed))
    assert Rewriting(net).net() == net.with_ops(net.ops)
    draw, changed, wanted = random.Random(seed), Rewriting(net), list[Op]()
    for op in net.ops:
        instead = [op] if draw.random() < 0.5 else [replace(op, module=f"m{k}") for k in range(draw.randrange(3))]
        changed.put(op, *instead)
        wanted += instead
    assert changed.net().ops == tuple(wanted)


def test_a_new_blob_is_declared_and_an_old_one_is_forgotten() -> None:
    blobs = {name: Blob(name, (B,), "float32") for name in ("x", "y", "z")}
    relu, tanh = Op("Relu", ("x",), ("y",)), Op("Tanh", ("y",), ("z",))
    net = check(Net("n", (relu, tanh), ("x",), ("z",), blobs, {}))
    changed, new = Rewriting(net), Blob("w", (B,), "float32")
    changed.put(relu, replace(relu, outputs=("w",)))
    changed.put(tanh, replace(tanh, inputs=("w",)))
    assert check(changed.net([new])).blobs == {"x": blobs["x"], "z": blobs["z"], "w": new}


def test_an_op_reads_other_names() -> None:
    op = Op("Add", ("x", "y"), ("z",), {"alpha": 1.0}, "trainer", "m")
    assert reading(op, {"x": "w", "z": "v"}) == replace(op, inputs=("w", "y"))
    assert reading(op, {}) == op


def test_readers_see_what_was_made_before_it_was_encoded() -> None:
    blobs = {name: Blob(name, (B,), "float32") for name in ("x", "y", "short", "long", "z")}
    ops = (
        Op("Relu", ("x",), ("y",)),
        Op("Cast", ("y",), ("short",), {"to": "bfloat16"}, module=COMPRESS),
        Op("Cast", ("short",), ("long",), {"to": "float32"}, module=COMPRESS),
        Op("Tanh", ("long",), ("z",)),
    )
    assert as_made(Net("n", ops, ("x",), ("z",), blobs, {})).ops == (ops[0], Op("Tanh", ("y",), ("z",)))
