"""FCs and their gradients by the library that is ahead: all of them, and nothing else."""

from fused import SGD, train_net, types

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
