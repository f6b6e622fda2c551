"""Batched products of activations, as in DLRM's interaction layer and in attention (HT 2.1).

y = MatMul(a, b)                           torch.matmul: y[..,M,N] = a[..,M,K] @ b[..,K,N]
y = Einsum(x, ...)                         by `equation`
"""

from collections.abc import Sequence

import torch

from htrain.net.net import Blob, Dim, Op, numel
from htrain.ops.base import Builder, Cost, OpDef, vjp_gradient


def _einsum(*xs: torch.Tensor, equation: str) -> torch.Tensor:
    return torch.einsum(equation, *xs)


def _matmul_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    inner = numel(inputs[0].shape[-1:], batch_size)
    moved = sum(b.num_bytes(batch_size) for b in (*inputs, *outputs))
    return Cost(2.0 * numel(outputs[0].shape, batch_size) * inner, float(moved))


def _einsum_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """One multiply-add per point of the space that all letters span."""
    equation = str(op.attrs["equation"]).replace(" ", "").split("->")[0].split(",")
    sizes: dict[str | int, Dim] = {}
    for term, blob in zip(equation, inputs, strict=True):
        sizes.update(zip(_letters(term, len(blob.shape)), blob.shape, strict=True))
    moved = sum(b.num_bytes(batch_size) for b in (*inputs, *outputs))
    return Cost(2.0 * numel(tuple(sizes.values()), batch_size), float(moved))


def _letters(term: str, rank: int) -> list[str | int]:
    """The name of each dimension in a term of an equation; those of an ellipsis are numbers, counted from its last one."""
    head, ellipsis, tail = term.partition("...")
    between = rank - len(head) - len(tail) if ellipsis else 0
    return [*head, *range(between, 0, -1), *tail]


def _matmul_gradient(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    """da = dy @ b.T and db = a.T @ dy where neither side was broadcast; the generic rule otherwise."""
    a, b = (builder.blob(name) for name in op.inputs)
    same = len(a.shape) == len(b.shape) >= 2 and a.shape[:-2] == b.shape[:-2]
    if not same:
        return vjp_gradient(builder, op, dys, wanted)
    da = _product(builder, op, (dys[0], _transposed(builder, op, b)), a.name) if wanted[0] else ""
    db = _product(builder, op, (_transposed(builder, op, a), dys[0]), b.name) if wanted[1] else ""
    return [da, db]


def _transposed(builder: Builder, op: Op, blob: Blob) -> str:
    rank = len(blob.shape)
    perm = (*range(rank - 2), rank - 1, rank - 2)
    return builder.add("Transpose", (blob.name,), attrs={"perm": perm}, module=op.module)[0]


def _product(builder: Builder, op: Op, factors: tuple[str, str], source: str) -> str:
    return builder.add("MatMul", factors, module=op.module, outputs=(builder.gradient_name(source),))[0]


DEFINITIONS = (
    OpDef(
        "MatMul",
        torch.matmul,
        cost=_matmul_cost,
        gradient=_matmul_gradient,
        work="batched",
        aten=("mm", "bmm", "matmul", "mv", "dot"),
        onnx=True,
    ),
    OpDef("Einsum", _einsum, cost=_einsum_cost, work="batched"),
)
