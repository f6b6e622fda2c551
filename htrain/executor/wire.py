"""Messages between roles: a msgspec header frame, then one frame per tensor (DESIGN 5). No pickle, ever.

A received message is untrusted: what does not hold together raises RunError in one line.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch

from htrain.errors import RunError


class Context(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One pass of one net replica over one batch. A background sync round has replica -1 and its number as step."""

    group: int
    trainer: int
    replica: int
    step: int


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """What a tensor frame holds."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Values(msgspec.Struct, tag="values", array_like=True):
    """Blobs of a context; one frame per tensor follows."""

    source: str
    context: Context
    batch_size: int
    tensors: list[TensorSpec]


class Hello(msgspec.Struct, tag="hello", array_like=True):
    """A role is up; `endpoints` are its addresses by name."""

    source: str
    endpoints: dict[str, str]
    host: str
    pid: int


class Addresses(msgspec.Struct, tag="addresses", array_like=True):
    """Everybody's endpoints."""

    book: dict[str, str]


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """A role holds its parameters and can start."""

    source: str


class Order(msgspec.Struct, tag="order", array_like=True):
    """The launcher's word to a role: start, pause, resume, save (into `folder`), stop, or abort."""

    verb: str
    folder: str = ""


class Beat(msgspec.Struct, tag="beat", array_like=True):
    """A role lives: its last step and what it measured since it started."""

    source: str
    step: int
    metrics: dict[str, Any]


class State(msgspec.Struct, tag="state", array_like=True):
    """A role is `paused`, has read all its data (`finished`), or has `saved`: with its reader's position or its files."""

    source: str
    state: str
    details: dict[str, Any]


class Failed(msgspec.Struct, tag="failed", array_like=True):
    """A role cannot go on."""

    source: str
    kind: str
    error: str


Message = Values | Hello | Addresses | Ready | Order | Beat | State | Failed
Frame = bytes | memoryview

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Message)
DTYPES: Mapping[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8", "bool")
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def spec_of(name: str, tensor: torch.Tensor) -> TensorSpec:
    """The header entry of a tensor."""
    return TensorSpec(name, _NAMES[tensor.dtype], tuple(tensor.shape))


def encode(message: Message, tensors: Sequence[torch.Tensor] = ()) -> list[Frame]:
    """The frames of a message. The tensors are not copied: do not change one until it has been sent."""
    frames: list[Frame] = [_ENCODER.encode(message)]
    frames += [_bytes_of(tensor) for tensor in tensors]
    return frames


def _bytes_of(tensor: torch.Tensor) -> Frame:
    if tensor.numel() == 0:
        return b""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.dtype == torch.bfloat16:
        flat = flat.view(torch.int16)
    return memoryview(flat.numpy().data).cast("B")


def decode(frames: Sequence[Any]) -> tuple[Message, dict[str, torch.Tensor]]:
    """The message and its tensors by name; a tensor views its frame's memory. Raises RunError when they do not agree."""
    try:
        message = _DECODER.decode(memoryview(frames[0]))
    except (msgspec.MsgspecError, IndexError) as error:
        raise RunError(f"a message cannot be read: {error}") from error
    if not isinstance(message, Values):
        return message, {}
    if len(frames) != len(message.tensors) + 1:
        raise RunError(
            f"a message from {message.source} announces {len(message.tensors)} tensors and brings {len(frames) - 1}"
        )
    return message, {
        spec.name: _tensor(spec, frame, message.source) for spec, frame in zip(message.tensors, frames[1:], strict=True)
    }


def _tensor(spec: TensorSpec, frame: Any, source: str) -> torch.Tensor:
    dtype = DTYPES.get(spec.dtype)
    view = memoryview(frame)
    elements = 1
    for size in spec.shape:
        elements *= max(size, 0) if size >= 0 else -1
    if dtype is None or elements < 0 or elements * dtype.itemsize != view.nbytes:
        shape = ",".join(map(str, spec.shape))
        raise RunError(f"blob '{spec.name}' from {source}: {view.nbytes} bytes are not a {spec.dtype}[{shape}]")
    if not elements:
        return torch.empty(spec.shape, dtype=dtype)
    if view.readonly:  # torch wants memory that could be written; nobody writes a received blob
        view = memoryview(bytearray(view))
    return torch.frombuffer(view, dtype=dtype).reshape(spec.shape)
