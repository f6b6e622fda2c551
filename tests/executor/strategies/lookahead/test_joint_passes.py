"""Passes of all tables of a device as one op, against the ops of each table. That runs come to the same: tests/executor/loops/test_lookahead.py."""

import pytest
import torch
from small_wide_deep import BATCH, model_of

from htrain.compiler.pipeline import compile_net
from htrain.executor.strategies.lookahead.joint_passes import join_passes
from htrain.net.net import Net
from htrain.ops import OPS
from htrain.ops.base import RowChange
from htrain.ops.lookahead import apart
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags


def passes_of(device: str, sparse_ps: int, optimizer: str = "adagrad") -> Net:
    cluster = this_machine(groups=1, trainers=1, group_ps=0, sparse_ps=sparse_ps)
    options = with_flags(batch_size=BATCH, cache="lookahead", sparse_optimizer=optimizer)
    return apart(compile_net(model_of("wide_deep.py")[1], cluster, options, name="m").net_of(device))[1]


def run(net: Net, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the ops of a net make of values, by name; those of messages do nothing."""
    for op in net.ops:
        if op.type in ("Send", "Recv"):
            continue
        made = OPS[op.type].kernel(*(values[name] for name in op.inputs), **op.attrs)
        outputs = made if isinstance(made, tuple) else (made,)
        values |= dict(zip(op.outputs, outputs, strict=True)) if op.outputs else {}
    return values


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adagrad"])
@pytest.mark.parametrize(("device", "sparse_ps"), [("trainer", 0), ("sparse_ps:0", 1), ("sparse_ps:1", 2)])
def test_one_op_writes_and_reads_what_those_of_each_table_do(device: str, sparse_ps: int, optimizer: str) -> None:
    net = passes_of(device, sparse_ps, optimizer)
    joint = join_passes(net)
    assert [op.type for op in joint.ops if op.type not in ("Send", "Recv")] == ["ExchangeRows"]
    draw = torch.Generator().manual_seed(0)
    values = {name: torch.randn(p.shape, generator=draw) for name, p in net.parameters.items() if p.kind != "cache"}
    for op in net.ops:
        if op.type == "WriteBack":
            first, rows = int(str(op.attrs["first_row"])), net.parameters[op.inputs[0]].shape[0]
            width = sum(values[name][0].numel() for name in op.inputs[:-2])
            keys, wanted = (torch.randperm(rows, generator=draw)[: rows // 2] + first for _ in range(2))
            asked = op.inputs[-2].replace("_keys_", "_wanted_")
            values |= {op.inputs[-2]: keys, op.inputs[-1]: torch.randn(len(keys), width, generator=draw), asked: wanted}
    wanted, found = (run(each, {name: value.clone() for name, value in values.items()}) for each in (net, joint))
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        assert torch.equal(value, found[name]), name


@pytest.mark.parametrize(("device", "sparse_ps"), [("trainer", 0), ("sparse_ps:1", 2)])
def test_it_says_which_rows_it_changes_as_they_do(device: str, sparse_ps: int) -> None:
    net = passes_of(device, sparse_ps)
    each, joint = (changes_of(of) for of in (net, join_passes(net)))
    assert each == joint
    assert len(each) >= 26


def changes_of(net: Net) -> list[RowChange]:
    return [change for op in net.ops for change in OPS[op.type].changes(op)]


def test_a_device_without_tables_has_its_passes_as_they_are() -> None:
    net = passes_of("trainer", 1)
    assert join_passes(net) is net
