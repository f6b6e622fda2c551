"""SGD in the product that makes the gradient: which steps are fused, and where they are made."""

from fused import SGD, train_net, types

from htrain.net.net import B, Blob, Init, Net, Parameter
from htrain.ops.builder import NetBuilder
from htrain.spec.tree import with_flags
from htrain.transform.fusions.steps import fuse_steps


def test_gradients_that_somebody_else_takes_stay() -> None:
    """Other optimizers, and AllReduce."""
    for options in (with_flags(SGD, dense_optimizer="adagrad"), with_flags(SGD, dense_sync="allreduce")):
        found = types(train_net("dlrm.py", options))
        assert (found["FastFCGradient"], found["FCGradient"]) == (7, 0)
        assert not found["FCSgd"]


def test_a_weight_is_stepped_behind_its_last_reader() -> None:
    """One that a backward op reads after the weight's own gradient is made, as of a layer whose weight is used once more, detached."""

    def net_with(reads_later: bool) -> Net:
        builder = NetBuilder("n")
        for blob in (Blob("x", (B, 6), "float32"), Blob("dy", (B, 5), "float32")):
            builder.input(blob)
        builder.parameter(Parameter("w", (5, 6), "float32", "weight", Init("constant", (0.5,))))
        dw, dx = builder.add("FCGradient", ("x", "w", "dy"), attrs={"bias": False, "wants_x": True})
        other = builder.add("FCInputGradient", ("w", "dy")) if reads_later else ()
        builder.add("Sgd", ("w", dw), attrs={"lr": 0.1})
        return builder.build([dx, *other])

    assert [op.type for op in fuse_steps(net_with(reads_later=False)).ops] == ["FCInputGradient", "FCSgd"]
    assert [op.type for op in fuse_steps(net_with(reads_later=True)).ops] == [
        "FCInputGradient",
        "FCInputGradient",
        "FCSgd",
    ]
