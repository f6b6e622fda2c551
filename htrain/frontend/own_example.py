"""Whether an index tensor of the exported graph says "this example": its elements, in row-major order, are 0 for the first example's, 1 for the next ..."""

from collections.abc import Sequence

from torch import fx

from htrain.frontend.translation import Translation
from htrain.net.net import BatchDim, Dim

_VIEWS = frozenset(
    f"aten.{name}" for name in ("view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unsqueeze.default", "squeeze.dim",
                                "squeeze.default", "squeeze.dims", "clone.default", "alias.default", "contiguous.default", "lift_fresh_copy.default",
                                "_to_copy.default", "to.dtype", "to.device")
)  # fmt: skip
_REPEATS = frozenset({"aten.expand.default", "aten.repeat.default"})


def is_own_example(t: Translation, node: fx.Node, shape: Sequence[Dim]) -> bool:
    """Whether `node`, broadcast to `shape`, holds the number of the example that each of its elements belongs to."""
    return _holds(t, node) and _is_repeated_within(t.shape(node), shape)


def is_own_row(node: fx.Node, of: fx.Node) -> bool:
    """Whether `node` numbers the rows of `of`, which a mask may have picked: 0, 1, ... along one dimension, others are of size 1."""
    name, sizes = str(node.target), node.meta["val"].shape
    if name.startswith("aten.arange."):
        begin = node.args[0] if len(node.args) > 1 else 0
        return (begin, *node.args[2:]) in ((0,), (0, 1)) and str(sizes[0]) == str(of.meta["val"].shape[0])
    long = [size for size in sizes if not (isinstance(size, int) and size == 1)]
    return name in _VIEWS and len(long) == 1 and is_own_row(node.all_input_nodes[0], of)


def _holds(t: Translation, node: fx.Node) -> bool:
    name = str(node.target)
    if name.startswith("aten.arange."):
        begin = node.args[0] if len(node.args) > 1 else 0
        return (begin, *node.args[2:]) in ((0,), (0, 1)) and t.shape(node) == (BatchDim(),)
    if not node.all_input_nodes or not isinstance(node.args[0], fx.Node):
        return False
    source = node.args[0]
    if name in _VIEWS or (name == "aten.slice.Tensor" and t.shape(node) == t.shape(source)):
        return not node.meta["val"].is_floating_point() and _holds(t, source)
    if name in _REPEATS:
        return _is_repeated_within(t.shape(source), t.shape(node)) and _holds(t, source)
    if name == "aten.repeat_interleave.self_int":
        return len(t.shape(source)) == 1 and _holds(t, source)
    return False


def _is_repeated_within(shape: Sequence[Dim], wanted: Sequence[Dim]) -> bool:
    """Whether what has `shape` and is repeated to `wanted` is repeated within each example: behind the batch, not before it."""
    padded = (*(1,) * (len(wanted) - len(shape)), *shape)
    batch = next((axis for axis, size in enumerate(padded) if isinstance(size, BatchDim)), len(padded))
    return list(wanted[: batch + 1]) == [*(1,) * batch, *padded[batch : batch + 1]]
