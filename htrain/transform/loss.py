"""The loss: the net's logit against the reader's label."""

from htrain.errors import ModelError
from htrain.net import B, Blob, Net
from htrain.ops.builder import NetBuilder

LOSSES = {"bce": "BceWithLogits", "mse": "MeanSquaredError"}
LABEL = Blob("label", (B,), "float32")


def add_loss(net: Net, loss: str) -> Net:
    """Append the loss op and the input `label`: float32[B]; the net's outputs become (loss, logit).

    Requires: one output, the logit, of shape [B] or [B,1].
    Raises ModelError when the logit has another shape or dtype, or the model has an input called `label`.
    """
    logit = net.blobs[net.outputs[0]]
    if logit.shape not in ((B,), (B, 1)) or logit.dtype != "float32":
        raise ModelError(f"the logit {logit} must be float32[B] or float32[B,1]: name another output with --logit")
    if LABEL.name in net.inputs:
        raise ModelError(
            "the model has an input called 'label'; htrain gives that name to the reader's label: rename it"
        )
    builder = NetBuilder.of(net)
    builder.input(LABEL)
    (loss_blob,) = builder.add(LOSSES[loss], (logit.name, LABEL.name), module="loss", outputs=(builder.fresh("loss"),))
    return builder.build((loss_blob, logit.name))
