"""Whether what an example scores depends on the other examples of its batch, found by changing one of them."""

import torch

from htrain.self_check.evaluation import Batch, Tensors
from htrain.self_check.ours import Ours

DEPENDS = (
    "what an example scores depends on the other examples of its batch, or on its place among them; a batch is what one net replica of a trainer reads "
    "(--batch-size), and eval reads others"
)


def depends_on_others(ours: Ours, batch: Batch) -> bool:
    """Whether in evaluation, where no norm is taken over a batch, an example scores otherwise beside another first example, or one place further on."""
    count = len(batch.label)
    before = ours.evaluated(batch.values, batch.inputs, batch.label)[:count]
    beside = ours.evaluated(batch.values, _other_first(batch.inputs), batch.label)[:count]
    if not _are_equal(before[1:], beside[1:]):
        return True
    if any(f"{name}_offsets" in batch.inputs for name in batch.inputs):  # lists lie one behind the other
        return False
    moved = {name: value.roll(1, 0) for name, value in batch.inputs.items()}
    return not _are_equal(before.roll(1), ours.evaluated(batch.values, moved, batch.label)[:count])


def _other_first(inputs: Tensors) -> dict[str, torch.Tensor]:
    """A batch whose first example is the second again; of bags the first is as long as it was, of the last id."""
    changed = {}
    for name, value in inputs.items():
        offsets = inputs.get(f"{name}_offsets")
        changed[name] = value.clone()
        if name.endswith("_offsets") and name.removesuffix("_offsets") in inputs:
            continue
        if offsets is None:
            changed[name][:1] = value[1:2]
        elif len(value):
            changed[name][: int(offsets[1])] = value[-1]
    return changed


def _are_equal(scores: torch.Tensor, others: torch.Tensor) -> bool:
    return torch.allclose(scores, others, rtol=1e-3, atol=1e-4, equal_nan=True)
