"""Inputs as data gives them (docs/how-to/describe-data.md), int64[B,width] and float32[B,width], whatever a module or a file takes."""

from collections.abc import Collection
from dataclasses import replace

from htrain.frontend.captured import Captured
from htrain.net.blobs import BATCH_KEY, B, Blob
from htrain.net.net import Net
from htrain.ops.builder import NetBuilder

_READ_AS = {
    **dict.fromkeys(("int8", "uint8", "int32"), "int64"),
    **dict.fromkeys(("float16", "bfloat16", "float64"), "float32"),
}


def taking_data(captured: Captured) -> Captured:
    """`captured` with inputs that data can give: one number of each example is a column of a matrix there, whole numbers are int64 and others float32.

    Requires: the first dimension of every input is the batch.
    Ensures: an input that data can give is as it was; of others, the net makes what it was captured with, and a note says so. The lengths of padded lists and
    the starts of bags stay vectors.
    """
    net = captured.net
    changed = {name: given for name in net.inputs if (given := _given(net, name)) != net.blobs[name]}
    if not changed:
        return captured
    builder, instead = NetBuilder(net.name), dict[str, str]()
    builder.reserve(name for op in net.ops for name in op.outputs)
    for name in net.inputs:
        builder.input(changed.get(name, net.blobs[name]))
    for parameter in net.parameters.values():
        builder.parameter(parameter)
    for name, given in changed.items():
        instead[name] = _made(builder, given, net.blobs[name])
    for op in net.ops:
        builder.copy(op, [instead.get(name, name) for name in op.inputs])
    told = tuple(
        f"input {net.blobs[name]} of the model is read as {_signature(given)}" for name, given in changed.items()
    )
    made = builder.build([instead.get(name, name) for name in net.outputs])
    evaluation = captured.evaluation and taking_data(captured.evaluation)
    return replace(captured, net=made, notes=(*captured.notes, *told), evaluation=evaluation)


def _given(net: Net, name: str) -> Blob:
    """An input as data gives it, where it can."""
    blob = net.blobs[name]
    if name in ("label", BATCH_KEY.name):
        return blob
    column = blob.shape == (B,) and not _is_vector(name, net.inputs)
    return Blob(name, (B, 1) if column else blob.shape, _READ_AS.get(blob.dtype, blob.dtype))


def _is_vector(name: str, inputs: Collection[str]) -> bool:
    """Whether data gives one number for each example as it is: how long a list is, and where a bag begins."""
    beside = (name.removesuffix(suffix) for suffix in ("_length", "_offsets") if name.endswith(suffix))
    return any(other in inputs for other in beside)


def _made(builder: NetBuilder, given: Blob, wanted: Blob) -> str:
    """The name of the wanted input, made of the given one."""
    name = given.name
    if given.shape != wanted.shape:
        (name,) = builder.add(
            "Reshape", (name,), attrs={"shape": (-1,)}, outputs=(builder.fresh(f"{given.name}_column"),)
        )
    if given.dtype != wanted.dtype:
        (name,) = builder.add(
            "Cast", (name,), attrs={"to": wanted.dtype}, outputs=(builder.fresh(f"{given.name}_cast"),)
        )
    return name


def _signature(blob: Blob) -> str:
    return str(blob).partition(": ")[2]
