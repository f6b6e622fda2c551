"""A module's ONNX file, and whether what is captured of it trains as the module does."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from htrain.frontend.captured import Captured
from htrain.ops import OPS

Batch = tuple[torch.Tensor, ...]
_STEPS, _SIZE = 4, 8


def exported(model: nn.Module, example: Batch, path: Path, *, dynamo: bool) -> Path:
    """The file that one of torch's exporters writes for any batch size."""
    if dynamo:
        batch = torch.export.Dim("batch")
        program = torch.onnx.export(
            model, example, dynamo=True, dynamic_shapes=tuple({0: batch} for _ in example), verbose=False
        )
        assert program is not None
        program.save(path)
        return path
    names = [f"in_{i}" for i in range(len(example))]
    axes = {name: {0: "B"} for name in names}
    torch.onnx.export(model, example, path, dynamo=False, input_names=names, dynamic_axes=axes)
    return path


def check_trains_alike(model: nn.Module, captured: Captured, draw: Callable[[int], Batch]) -> Captured:
    """Raises AssertionError where steps of SGD give other losses than those of the module: for this every gradient has to be the same, and weights as many."""
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    parameters = captured.net.parameters
    weights = {name: v.clone().requires_grad_(parameters[name].trained) for name, v in captured.values.items()}
    own_optimizer = torch.optim.SGD([weight for weight in weights.values() if weight.requires_grad], 1.0)
    for _ in range(_STEPS):
        batch, label = draw(_SIZE), torch.randint(0, 2, (_SIZE,)).float()
        losses = []
        for step, logit in ((optimizer, model(*batch)), (own_optimizer, _run(captured, weights, batch))):
            loss = F.binary_cross_entropy_with_logits(logit.reshape(-1), label)
            step.zero_grad()
            loss.backward()
            step.step()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=1e-6)
    return captured


def _run(captured: Captured, weights: dict[str, torch.Tensor], batch: Batch) -> torch.Tensor:
    net = captured.net
    known = {**weights, **dict(zip(net.inputs, batch, strict=True))}
    for op in net.ops:
        known.update(zip(op.outputs, OPS[op.type].run(op, [known[name] for name in op.inputs], _SIZE), strict=True))
    return known[net.outputs[0]]
