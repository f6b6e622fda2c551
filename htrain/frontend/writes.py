"""Ops that write in place, in a program that torch has exported: the same ops without writing, where nothing else can see that.

torch makes a program free of writes by tracing it anew, which takes several times as long as it took to export it. Most writes are into values that the op
before has made (`nn.ReLU(inplace=True)`, `x += y`), and of which nothing else is a view; and those of a batch norm, of which the frontend takes the statistics
that it moves from the op itself.
"""

from collections.abc import Iterable

import torch
from torch import fx
from torch.export import ExportedProgram

_aten = torch.ops.aten
_WITHOUT = {
    _aten.relu_.default: _aten.relu.default,
    _aten.leaky_relu_.default: _aten.leaky_relu.default,
    _aten.sigmoid_.default: _aten.sigmoid.default,
    _aten.tanh_.default: _aten.tanh.default,
    _aten.silu_.default: _aten.silu.default,
    _aten.add_.Tensor: _aten.add.Tensor,
    _aten.sub_.Tensor: _aten.sub.Tensor,
    _aten.mul_.Tensor: _aten.mul.Tensor,
    _aten.div_.Tensor: _aten.div.Tensor,
    _aten.masked_fill_.Scalar: _aten.masked_fill.Scalar,
}
# What these give is in memory of its own, or of other writes.
_FRESH = frozenset(
    {_aten.linear.default, _aten.addmm.default, _aten.mm.default, _aten.bmm.default, _aten.baddbmm.default, _aten.embedding.default, _aten.cat.default,
     _aten.stack.default, _aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor, _aten.layer_norm.default, _aten.batch_norm.default,
     _aten.zeros.default, _aten.zeros_like.default, _aten.ones.default, _aten.ones_like.default, _aten.full.default, _aten.full_like.default,
     _aten.clone.default, _aten.masked_fill.Scalar, _aten.relu.default, _aten.sigmoid.default, _aten.tanh.default, _aten.gelu.default,
     _aten.eq.Scalar, _aten.ne.Scalar, _aten.eq.Tensor, _aten.ne.Tensor, _aten.gt.Scalar, _aten.lt.Scalar, _aten.ge.Scalar, _aten.le.Scalar}
)  # fmt: skip
_COUNTED = "num_batches_tracked"


def without_writes(program: ExportedProgram) -> frozenset[str] | None:
    """The program, changed, has no op any more that writes in place but batch norms. The names of the buffers that norms move and count; None, with the program
    as it was, where a write may be seen elsewhere, or is of another kind.
    """
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    places = {node: place for place, node in enumerate(program.graph.nodes)}
    buffers = program.graph_signature.inputs_to_buffers
    writes = [
        node for node in nodes if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
    ]
    counts = [node for node in writes if _is_count(node, buffers)]
    others = [node for node in writes if node not in counts]
    roots: dict[fx.Node, fx.Node] = {}
    for node in others:
        root = _root(node, roots)
        if root is None or not _is_unseen(node, root, roots, places):
            return None
        roots[node] = root
    statistics = [str(each) for node in nodes if _moves(node) for each in node.args[3:5] if each is not None]
    if not all(name in buffers for name in statistics):
        return None
    moved = {buffers[name] for name in (*statistics, *(str(node.args[0]) for node in counts))}
    for node in counts:
        program.graph.erase_node(node)
    _rewrite(program.graph, others, roots, places)
    program.graph_module.recompile()
    return frozenset(moved)


def _moves(node: fx.Node) -> bool:
    """Whether a node is a batch norm that moves its running statistics."""
    return node.target is _aten.batch_norm.default and bool(node.args[5])


def _is_count(node: fx.Node, buffers: dict[str, str]) -> bool:
    """Whether a norm counts its batches, which has no effect, and nobody reads how many there were."""
    first = node.args[0]
    if node.target is not _aten.add_.Tensor or not isinstance(first, fx.Node) or node.users:
        return False
    return buffers.get(first.name, "").rpartition(".")[2] == _COUNTED and len(first.users) == 1


def _root(node: fx.Node, roots: dict[fx.Node, fx.Node]) -> fx.Node | None:
    """The op that has made what a node writes into; None where that may lie in memory of something else."""
    source = node.args[0]
    if node.target not in _WITHOUT or not isinstance(source, fx.Node):
        return None
    root = roots.get(source, source)
    return root if root.target in _FRESH or _is_dropout(root) else None


def _is_dropout(node: fx.Node) -> bool:
    """Whether a node drops, and does not give its input as it is."""
    return node.target is _aten.dropout.default and bool(node.args[2]) and 0 < float(node.args[1]) < 1  # type: ignore[arg-type]


def _is_unseen(node: fx.Node, root: fx.Node, roots: dict[fx.Node, fx.Node], places: dict[fx.Node, int]) -> bool:
    """Whether nothing before a write has another view of what is written, and what is written has the type of what was there."""
    group = [root, *(each for each, other in roots.items() if other is root)]
    before = [user for each in group for user in each.users if places[user] < places[node] and user not in roots]
    if not all(user.target in _FRESH or _is_dropout(user) for user in before):
        return False
    dtype = root.meta["val"].dtype
    tensors = [each.meta["val"] for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.Tensor)]
    same = all(each.dtype == dtype for each in tensors if node.target is not _aten.masked_fill_.Scalar)
    return same and dtype.is_floating_point


def _rewrite(
    graph: fx.Graph, writes: Iterable[fx.Node], roots: dict[fx.Node, fx.Node], places: dict[fx.Node, int]
) -> None:
    """Each write is an op of its own, which stands for what was written behind it."""
    latest: dict[fx.Node, fx.Node] = {}
    for node in writes:
        root = roots[node]
        before = latest.get(root, root)
        with graph.inserting_after(node):
            made = graph.call_function(
                _WITHOUT[node.target],  # type: ignore[index]
                (before, *node.args[1:]),
                dict(node.kwargs),
            )
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        for user in list(before.users):
            if user is not made and (user.op == "output" or places.get(user, -1) > places[node]):
                user.replace_input_with(before, made)
        graph.erase_node(node)
        latest[root] = made
