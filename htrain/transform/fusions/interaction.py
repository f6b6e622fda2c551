"""Concat(x, Gather(MatMul(f, f^T))) as PairwiseDots(f): only the products that are read, behind x where f = StackRows(x, ..)."""

from dataclasses import replace

from htrain.net.net import BatchDim, Blob, Net, Op, Tensor
from htrain.net.pattern import Pattern
from htrain.net.rewriting import Rewriting
from htrain.ops.base import tensor_of
from htrain.ops.effects import without_unread


def fuse_interaction(net: Net) -> Net:
    """Replace the products of all pairs of features, of which some are gathered, by the gathered ones alone.

    Requires: a forward net; rows are stacked by StackRows where they will be.
    Ensures:  every output has the values that it had, up to the order of sums.
    """
    pattern, changed = Pattern(net), Rewriting(net)
    for gather in pattern.ops("Gather"):
        features = _paired(pattern, gather)
        if features and _is_inside(pattern, gather.inputs[1], features):
            inputs = (features.name, gather.inputs[1])
            changed.put(gather, replace(gather, type="PairwiseDots", inputs=inputs, attrs={"kept": 0}))
    return _with_kept(without_unread(changed.net()))


def _paired(pattern: Pattern, gather: Op) -> Blob | None:
    """The features f[B,n,D] of Gather(Reshape(MatMul(f, Transpose(f)), [B,n*n]), .., axis=1); None for anything else."""
    chain = pattern.chain(gather.inputs[0], "Reshape", "MatMul", "Transpose")
    if not chain or gather.attrs["axis"] != 1:
        return None
    _, product, transpose = chain
    features = pattern.net.blob(transpose.inputs[-1])
    squared = product.inputs[0] == features.name and transpose.attrs["perm"] == (0, 2, 1)
    if not squared or features.dtype != "float32" or len(features.shape) != 3:
        return None
    return features if _is_flat(pattern.net.blob(gather.inputs[0]), features) else None


def _is_flat(flat: Blob, features: Blob) -> bool:
    """Whether flat is [B,n*n] of features[B,n,D]."""
    rows, count, _ = features.shape
    return isinstance(rows, BatchDim) and isinstance(count, int) and flat.shape == (rows, count * count)


def _is_inside(pattern: Pattern, positions: str, features: Blob) -> bool:
    """Whether positions[P] are constants from 0 to n * n - 1, for features[B,n,D]."""
    constant, count = pattern.maker("Constant", positions), features.shape[1]
    if constant is None or len(pattern.net.blob(positions).shape) != 1 or not isinstance(count, int):
        return False
    value = constant.attrs["value"]
    assert isinstance(value, Tensor)
    found = tensor_of(value)
    return bool(((found >= 0) & (found < count * count)).all())


def _with_kept(net: Net) -> Net:
    """Products that are put behind the first of their features, by the op that makes them."""
    pattern, changed = Pattern(net), Rewriting(net)
    for concat in pattern.ops("Concat"):
        dots = pattern.only_for_one("PairwiseDots", concat.inputs[-1])
        if dots is None or dots.attrs != {"kept": 0} or len(concat.inputs) != 2 or concat.attrs["axis"] != 1:
            continue
        stack = pattern.maker("StackRows", dots.inputs[0])
        if stack and stack.attrs["dense"] and stack.inputs[0] == concat.inputs[0]:
            changed.drop(dots)
            changed.put(concat, replace(dots, outputs=concat.outputs, attrs={"kept": 1}))
    return changed.net()
