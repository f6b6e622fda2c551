"""The definition of a gradient op that differentiates the kernel of its forward op (docs/decisions/net.md)."""

from collections.abc import Sequence
from typing import Any

import torch

from htrain.net.net import Blob, Op
from htrain.ops.base import Cost, OpDef, Signature


def vjp_definition(forward: OpDef) -> OpDef:
    """The definition of `<Op>Gradient`, made from the forward op's kernel.

    Inputs: the forward op's inputs, then the gradients of the outputs in `given`. Outputs: the gradients of the inputs in `wrt`.
    """

    def kernel(
        *tensors: torch.Tensor, num_inputs: int, wrt: tuple[int, ...], given: tuple[int, ...], **attrs: Any
    ) -> Any:
        inputs, dys = tensors[:num_inputs], tensors[num_inputs:]
        with torch.enable_grad():
            # `data`, not `detach`: a weight may be stepped by another thread meanwhile (Hogwild), which autograd would take for a mistake
            leaves = [x.data.requires_grad_(i in wrt) for i, x in enumerate(inputs)]
            outputs = forward.outputs_of(forward.kernel(*leaves, **attrs))
            grads = torch.autograd.grad([outputs[i] for i in given], [leaves[i] for i in wrt], dys, allow_unused=True)
        return tuple(torch.zeros_like(inputs[i]) if g is None else g for i, g in zip(wrt, grads, strict=True))

    def infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
        wrt = op.attrs["wrt"]
        assert isinstance(wrt, tuple)
        return [(inputs[i].shape, inputs[i].dtype) for i in wrt]

    def cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
        num_inputs, given = op.attrs["num_inputs"], op.attrs["given"]
        assert isinstance(num_inputs, int)
        assert isinstance(given, tuple)
        once = forward.cost(op, inputs[:num_inputs], inputs[num_inputs:], batch_size)
        return Cost(
            3 * once.flops, 3 * once.bytes
        )  # the forward again, and twice that for the products of the chain rule

    return OpDef(
        forward.type + "Gradient",
        kernel,
        infer,
        cost,
        gradient=None,
        many=True,
        needs_batch=forward.needs_batch,
        work=forward.work,
    )
