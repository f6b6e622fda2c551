"""FCs and their gradients by the library that is ahead: all of them, and nothing else."""

import pytest
import torch
from fused import SGD, train_net, types
from torch import nn

from htrain.compiler.pipeline import compile_net
from htrain.frontend.torch_model import capture
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags
from htrain.transform.fusions.products import fast_products


def test_every_fc_and_gradient_is_fast_and_nothing_else_changes() -> None:
    net = train_net("dlrm.py", with_flags(SGD, dense_optimizer="adagrad", fast_products=False))
    fast = fast_products(net)
    found, before = types(fast), types(net)
    assert (found["FastFC"], found["FastFCGradient"]) == (before["FC"], before["FCGradient"])
    assert before["FCGradient"] == 7
    same = [(op, other) for op, other in zip(net.ops, fast.ops, strict=True) if op.type == other.type]
    assert all(op == other for op, other in same)
    assert len(same) == len(net.ops) - before["FC"] - before["FCGradient"]


@pytest.mark.parametrize(
    ("sizes", "fast"),
    [
        ({"kernel_size": 1}, True),
        ({"kernel_size": 1, "bias": False}, True),
        ({"kernel_size": 3, "padding": 1}, False),
        ({"kernel_size": 1, "stride": 2}, False),
        ({"kernel_size": 1, "padding": 1}, False),
        ({"kernel_size": 1, "groups": 2}, False),
    ],
)
def test_convolutions_of_kernel_1_and_no_others_are_products(sizes: dict[str, int], fast: bool) -> None:
    class Channels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(4, 2, **sizes)  # type: ignore[arg-type]

        def forward(self, dense: torch.Tensor) -> torch.Tensor:
            """dense[B,12] -> logit[B]."""
            return self.conv(dense.reshape(-1, 4, 3)).sum(dim=(1, 2))

    captured = capture(Channels(), {"dense": torch.zeros(6, 12)})
    net = compile_net(captured, this_machine(group_ps=0, sparse_ps=0), SGD, name="m", solver="rules").nets["train"]
    found = types(net)
    assert (found["FastConvolution"], found["FastConvolutionGradient"]) == (fast, fast)
    assert (found["Convolution"], found["ConvolutionGradient"]) == (not fast, not fast)
