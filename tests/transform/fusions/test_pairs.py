"""Rows that are stepped by the gradient of their products as it comes: where that is allowed, and where the gradient stays."""

from dataclasses import replace

import pytest
from fused import SGD, train_net, types

from htrain.net.net import Net, Op
from htrain.spec.tree import with_flags
from htrain.transform.fusions.pairs import fuse_pairs


@pytest.fixture(scope="module")
def net() -> Net:
    """A train net whose tables are stepped in place by a gradient of pairs that is stored."""
    return train_net("dlrm.py", with_flags(SGD, fuse_pairs=False))


def changed(net: Net, type: str, **values: object) -> Net:
    return replace(net, ops=tuple(replace(op, **values) if op.type == type else op for op in net.ops))


def test_the_gradient_of_pairs_steps_the_rows(net: Net) -> None:
    found = types(fuse_pairs(net))
    assert (found["PairwiseDotsSgd"], found["StepTables"], found["PairwiseDotsGradient"]) == (1, 0, 0)


def test_rows_on_another_device_are_stepped_there(net: Net) -> None:
    elsewhere = changed(net, "StepTables", node_name="sparse_ps:0")
    assert fuse_pairs(elsewhere).ops == elsewhere.ops


def test_tables_that_somebody_reads_in_between_are_stepped_behind_that(net: Net) -> None:
    (step,) = (op for op in net.ops if op.type == "StepTables")
    read = Op("Snapshot", step.inputs[:1], ("copy",), {}, step.node_name, "copy")
    place = net.ops.index(step)
    between = replace(net, ops=(*net.ops[:place], read, *net.ops[place:]))
    assert fuse_pairs(replace(between, blobs={**net.blobs})).ops == between.ops


def test_a_gradient_that_somebody_else_reads_stays(net: Net) -> None:
    (gradient,) = (op for op in net.ops if op.type == "PairwiseDotsGradient")
    read = Op("Relu", gradient.outputs, ("other",), {}, gradient.node_name, "other")
    more = replace(net, ops=(*net.ops, read))
    assert fuse_pairs(more).ops == more.ops
