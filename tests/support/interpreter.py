"""Nets run op by op, without the executor: what every pass and every cut must agree with."""

import random
from collections.abc import Mapping

import torch

from htrain.net.net import BatchDim, Blob, Net, Op
from htrain.ops import OPS

Values = dict[str, torch.Tensor]
Letter = tuple[str, str, str]  # from a device, to a device, the blob


def draw_parameters(net: Net, seed: int) -> Values:
    """A value for every parameter; the optimizer's state is never negative."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(p.shape, generator=generator) * 0.3 for name, p in net.parameters.items()}
    return {name: value.abs() if net.parameters[name].kind == "state" else value for name, value in drawn.items()}


def run_net(net: Net, parameters: Values, inputs: Mapping[str, torch.Tensor]) -> Values:
    """Run a whole net; return its blobs. `parameters` change in place."""
    values = dict(inputs)
    for op in net.ops:
        run_op(net, op, parameters, values)
    return values


def run_parts(parts: Mapping[str, Net], parameters: Mapping[str, Values], inputs: Values, *, seed: int) -> Values:
    """Run the nets of all devices, each in its own order, the devices interleaved at random; return all blobs.

    Fails when nobody can go on, or when something is sent that nobody receives.
    """
    draw = random.Random(seed)
    values = {device: dict(inputs) if device == "trainer" else {} for device in parts}
    ahead = {device: list(reversed(net.ops)) for device, net in parts.items()}
    mail: dict[Letter, torch.Tensor] = {}
    while any(ahead.values()):
        able = [d for d, ops in ahead.items() if ops and (ops[-1].type != "Recv" or letter(d, ops[-1]) in mail)]
        assert able, f"all wait: {[str(ops[-1]) for ops in ahead.values() if ops]}"
        device = draw.choice(able)
        op = ahead[device].pop()
        if op.type == "Send":
            mail[letter(device, op)] = values[device][op.inputs[0]].clone()
        elif op.type == "Recv":
            values[device][op.outputs[0]] = mail.pop(letter(device, op))
        else:
            run_op(parts[device], op, parameters[device], values[device])
    assert not mail, f"nobody took {list(mail)}"
    return {name: value for known in values.values() for name, value in known.items()}


def letter(device: str, op: Op) -> Letter:
    """What a Send or Recv of `device` sends or receives."""
    peer = str(op.attrs["peer"])
    return (device, peer, op.inputs[0]) if op.type == "Send" else (peer, device, op.outputs[0])


def run_op(net: Net, op: Op, parameters: Values, values: Values) -> None:
    """Run one op that is no communication."""
    definition = OPS[op.type]
    arguments = [parameters[name] if name in net.parameters else values[name] for name in op.inputs]
    extra = {"batch": len(values["label"])} if definition.needs_batch else {}
    outputs = definition.kernel(*arguments, **op.attrs, **extra)
    outputs = outputs if isinstance(outputs, tuple) else () if outputs is None else (outputs,)
    values.update(zip(op.outputs, outputs, strict=True))


def has_declared_shape(blob: Blob, tensor: torch.Tensor, batch_size: int) -> bool:
    """Whether a tensor is what its blob declares, at a batch size."""
    most = [d if isinstance(d, int) else d.at(batch_size) for d in blob.shape]
    bound = [isinstance(d, BatchDim) and d.bound for d in blob.shape]
    return str(tensor.dtype) == f"torch.{blob.dtype}" and len(most) == tensor.dim() and all(
        size <= limit if loose else size == limit for size, limit, loose in zip(tensor.shape, most, bound, strict=True)
    )  # fmt: skip
