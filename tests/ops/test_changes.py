"""An op that says which rows it changes changes no others, and all that steps on rows do say."""

import pytest
import torch
from op_samples import SAMPLES
from sample import Sample
from test_ops import shape_at

from htrain.net.net import Op
from htrain.ops import OPS


def op_of(sample: Sample) -> Op:
    return Op(sample.type, tuple(f"x{i}" for i in range(len(sample.operands))), (), dict(sample.attrs), "")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if OPS[s.type].changes(op_of(s))], ids=lambda s: f"{s.type}-{len(s.operands)}"
)
def test_no_other_rows_change_than_those_that_an_op_tells_of(sample: Sample, seed: int) -> None:
    op, generator = op_of(sample), torch.Generator().manual_seed(seed)
    inputs = [draw(generator, shape_at(shape, 2)) for shape, draw in sample.operands]
    values = dict(zip(op.inputs, inputs, strict=True))
    before = {name: tensor.clone() for name, tensor in values.items()}
    OPS[op.type].run(op, inputs, 2)
    told: dict[str, set[int]] = {}
    for change in OPS[op.type].changes(op):
        ids = before[change.ids] if change.column is None else before[change.ids][:, change.column]
        for name in change.tensors:
            told.setdefault(name, set()).update((ids.reshape(-1) - change.first_row).tolist())
    for name, rows in told.items():
        differing = (values[name] != before[name]).reshape(len(values[name]), -1).any(1)
        assert set(differing.nonzero().reshape(-1).tolist()) <= rows
    assert set(told) <= (set(op.inputs) if OPS[op.type].phase == "push" else OPS[op.type].written(op))
    silent = OPS[op.type].written(op) - set(told)
    assert all(before[name].numel() == 1 for name in silent), "but for the count of updates"


def test_all_ops_that_step_rows_of_the_host_tell_of_them() -> None:
    stepping = [s for s in SAMPLES if OPS[s.type].work == "scatter" and OPS[s.type].writes]
    assert stepping
    assert all(OPS[s.type].changes(op_of(s)) for s in stepping)
