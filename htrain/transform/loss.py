"""The loss: the net's logit against the reader's label."""

from dataclasses import replace

from htrain.errors import ModelError
from htrain.net.net import B, Blob, Net, Op
from htrain.net.rewriting import reading
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder

LOSSES = {"bce": "BceWithLogits", "bce_probability": "Bce", "mse": "MeanSquaredError"}
LABEL = Blob("label", (B,), "float32")


def add_loss(net: Net, loss: str) -> Net:
    """Append the loss op and the input `label`: float32[B]; the net's outputs become (loss, logit), and what came behind the logit.

    The bce loss has a sigmoid of its own: one that the net ends in is left out (`final_sigmoid`).
    Requires: the logit first, of shape [B] or [B,1]; of the model's `own` loss this, and the score.
    Raises ModelError when the logit has another shape or dtype, or the model has an input called `label`.
    """
    if loss == "own":
        return _with_own_loss(net)
    net = _without_final_sigmoid(net) if loss == "bce" else net
    logit = net.blob(net.outputs[0])
    if logit.shape not in ((B,), (B, 1)) or logit.dtype != "float32":
        raise ModelError(f"the logit {logit} must be float32[B] or float32[B,1]: {_cure(logit)}")
    if LABEL.name in net.inputs:
        raise ModelError(
            "the model has an input called 'label'; htrain gives that name to the reader's label: rename it, or return the loss and train with --loss own"
        )
    builder = NetBuilder.of(net)
    builder.input(LABEL)
    (loss_blob,) = builder.add(LOSSES[loss], (logit.name, LABEL.name), module="loss", outputs=(builder.fresh("loss"),))
    return builder.build((loss_blob, *net.outputs))


def _cure(output: Blob) -> str:
    """What to do about an output that is not one float32 for each example."""
    of_floats = output.dtype in ("float64", "float16", "bfloat16")
    if not output.shape:
        return "is it the loss? then return it beside what is scored, `return loss, logit`, and compile with --loss own"
    return (
        f"return it as float32, by .float(), where it is {output.dtype}"
        if of_floats
        else "name another output with --logit"
    )


def _with_own_loss(net: Net) -> Net:
    """The net whose first output is the loss, where the reader has it. Raises ModelError for a score that is not one number for each example."""
    loss, score = (net.blob(name) for name in net.outputs[:2])
    if score.shape not in ((B,), (B, 1)) or score.dtype != "float32":
        raise ModelError(f"what is scored, {score}, must be float32[B] or float32[B,1]: {_cure(score)}")
    label = net.blobs.get(LABEL.name)
    if label not in (None, LABEL):
        raise ModelError(f"forward() takes {label}; the reader's label is {LABEL}")
    builder = NetBuilder.of(net)
    if label is None:
        builder.input(LABEL)
    (loss_blob,) = builder.add("OwnLoss", (loss.name, score.name), module="loss", outputs=(builder.fresh("own_loss"),))
    return builder.build((loss_blob, *net.outputs[1:]))


def final_sigmoid(net: Net, loss: str) -> Op | None:
    """The Sigmoid that a net for the bce loss ends in, perhaps through views: its output is a probability, what comes before is the logit."""
    if loss != "bce":
        return None
    producers = net.producers()
    op = producers.get(net.outputs[0])
    while op is not None and (OPS[op.type].view or op.type == "Identity"):
        op = producers.get(op.inputs[0])
    return op if op is not None and op.type == "Sigmoid" else None


def _without_final_sigmoid(net: Net) -> Net:
    """The net whose output is the logit: views of its final sigmoid become views of what the sigmoid takes."""
    sigmoid = final_sigmoid(net, "bce")
    if sigmoid is None:
        return net
    renamed = {sigmoid.outputs[0]: sigmoid.inputs[0]}
    ops = [reading(op, renamed) for op in net.ops if op is not sigmoid]
    logit, *others = net.outputs
    return replace(net, outputs=(renamed.get(logit, logit), *others)).with_ops(ops)
