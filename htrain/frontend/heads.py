"""Heads: what a model returns beside its loss and what is scored, such as scores of other tasks, and vectors of users and items."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import torch
from torch import fx

from htrain.errors import ModelError
from htrain.frontend.captured import Captured
from htrain.net.net import Blob, Net, Op
from htrain.net.slices import leading_to
from htrain.ops import OPS
from htrain.ops.draw import is_draw

_LEFT_OUT = "is left out by eval, predict and export"


def with_heads(
    captured: Captured,
    outputs: Mapping[str, fx.Node],
    grow: Callable[[fx.Node], tuple[str, Net]],
    trained: Collection[str] = (),
) -> Captured:
    """`captured` with those of the other `outputs` of its model that are float32, a number or a vector for each example.

    `grow` gives the blob of a node, and a net that has all ops of `captured` and those which lead to it, or raises ModelError.
    Ensures: what is trained is as it was; ops that only heads need are those of evaluation. An output that takes weights besides, which nobody may train, or
    draws random numbers, is left out with a note; those that are `trained` may be taken.
    """
    found: dict[str, str] = {}
    notes: list[str] = []
    net = captured.net
    for name, node in outputs.items():
        if node.op != "call_function" or not _is_told(node):
            continue
        try:
            blob, grown = grow(node)
            net = _with_ops_of(net, blob, grown, trained)
        except ModelError as error:
            notes.append(f"output '{name}' {_LEFT_OUT}: {error}")
        else:
            found[name] = blob
    net = replace(net, outputs=(*net.outputs, *found.values()))
    return replace(captured, net=net, heads=tuple(found), notes=(*captured.notes, *notes))


def _is_told(node: fx.Node) -> bool:
    """Whether an output is float32[B] or [B,K]; the batch is a symbol."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.dim() not in (1, 2):
        return False
    return not isinstance(value.shape[0], int) and all(isinstance(size, int) for size in value.shape[1:])


def _with_ops_of(net: Net, blob: str, grown: Net, trained: Collection[str]) -> Net:
    """`net` with the ops of another that make a blob. Raises ModelError for those that may not stand there."""
    made = {name for op in net.ops for name in op.outputs}
    leading = (grown.ops[place] for place in leading_to(grown.ops, [blob]))
    ops = [OPS[op.type].in_evaluation(op) for op in leading if made.isdisjoint(op.outputs)]
    for op in ops:
        _check(op, grown, trained)
    taken = {name: grown.parameters[name] for op in ops for name in op.inputs if name in grown.parameters}
    return replace(net, parameters={**taken, **net.parameters}).with_ops([*net.ops, *ops], _blobs_of(ops, grown))


def _check(op: Op, net: Net, trained: Collection[str]) -> None:
    if weights := [name for name in op.inputs if name in net.parameters and name not in trained]:
        raise ModelError(
            f"{op.label} takes {weights[0]} for it alone: let what is returned be made of what leads to the loss"
        )
    if is_draw(op):
        raise ModelError(f"{op.label} draws random numbers for it alone")


def _blobs_of(ops: Iterable[Op], net: Net) -> list[Blob]:
    return [net.blobs[name] for op in ops for name in op.outputs]
