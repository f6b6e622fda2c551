"""Messages between roles: a msgspec header frame, then one frame per tensor (DESIGN 5). No pickle, ever.

A received message is untrusted: what does not hold together raises RunError in one line.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import torch

from htrain.errors import RunError

SYNC_REPLICA = -1
PREFETCHER, WRITER, VICTIMS = APART = (-2, -3, -4)  # whose passes are apart from steps, between look-ahead caches and the tables


class Context(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One pass of one net replica over one batch. A background sync round has replica -1 and its number as step; lower ones are `APART`."""

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
    batch_size: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
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
    """The launcher's word to a role: start, pause, resume, save (into `folder`), stop, abort; or ping, which says that it is there."""

    verb: str
    folder: str = ""


class Beat(msgspec.Struct, tag="beat", array_like=True):
    """A role lives: what it has measured since it started, nothing before that."""

    source: str
    metrics: dict[str, Any]


class State(msgspec.Struct, tag="state", array_like=True):
    """A role is `paused`, has read all its data (`finished`), cannot read on (`unreadable`), or has `saved`: with its reader's position or its files, and
    with what went wrong."""

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

DTYPES: Mapping[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8", "bool")
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_IN_NUMPY = {name: np.dtype({"bfloat16": "int16", "bool": "uint8"}.get(name, name)) for name in DTYPES}
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Message)
_SHOWN_CHARACTERS = 120
_SMALL_BYTES = 64 * 1024
_ALIGNED = 64  # bytes: where a tensor may begin


def spec_of(name: str, tensor: torch.Tensor) -> TensorSpec:
    """The header entry of a tensor. Raises RunError for a dtype that is not in DTYPES."""
    dtype = _NAMES.get(tensor.dtype)
    if dtype is None:
        raise RunError(f"blob '{name}' is {tensor.dtype}, a message carries {', '.join(DTYPES)}: cast it in the model")
    return TensorSpec(name, dtype, tuple(tensor.shape))


def encode(message: Message, tensors: Sequence[torch.Tensor] = ()) -> list[Frame]:
    """The frames of a message: its header, then the bytes of each tensor in row-major order.

    A contiguous tensor is not copied: do not change one until it has been sent, nor, within a process, until it has been read.
    """
    return [_ENCODER.encode(message), *map(_bytes_of, tensors)]


def _bytes_of(tensor: torch.Tensor) -> Frame:
    if not tensor.numel():
        return b""  # memoryview cannot cast a shape with zeros
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    return memoryview(tensor.numpy().data).cast("B")


def decode(frames: Sequence[Any]) -> tuple[Message, dict[str, torch.Tensor]]:
    """The message and its tensors by name.

    A tensor views its frame's memory. It is a copy when the frame is small, read-only, not aligned to the dtype, or holds bools.
    Raises RunError when the frames are no message, or when a tensor's dtype, shape and bytes do not agree.
    """
    try:
        message = _DECODER.decode(memoryview(frames[0]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError, TypeError) as error:  # TypeError: a key that msgspec before 0.22 hashes
        what = _shown(str(error))
        raise RunError(f"a message cannot be read: {what}; do all roles run the same version of htrain?") from error
    specs = message.tensors if isinstance(message, Values) else []
    if len(frames) != len(specs) + 1:
        raise RunError(f"{_sender(message)} announces {len(specs)} tensors and brings {len(frames) - 1}")
    tensors = {spec.name: _tensor(spec, frame, message) for spec, frame in zip(specs, _small_together(frames[1:]), strict=True)}
    if len(tensors) != len(specs):
        raise RunError(f"{_sender(message)} brings a blob twice: {_shown(', '.join(spec.name for spec in specs))}")
    return message, tensors


def _small_together(frames: Sequence[Any]) -> list[memoryview]:
    """The frames, of which small ones are copied to one piece of memory: they stay until their step ends, each in a hole that a large one has left."""
    views = [memoryview(frame) for frame in frames]
    small = [k for k, view in enumerate(views) if view.nbytes < _SMALL_BYTES]
    begins = np.cumsum([0, *(-(-views[k].nbytes // _ALIGNED) * _ALIGNED for k in small)]).tolist()
    memory = memoryview(np.empty(begins[-1], np.uint8).data)
    for k, begin in zip(small, begins, strict=False):
        piece = memory[begin : begin + views[k].nbytes]
        piece[:] = views[k].cast("B")
        views[k] = piece
    return views


def _tensor(spec: TensorSpec, frame: Any, message: Message) -> torch.Tensor:
    dtype = _IN_NUMPY.get(spec.dtype)
    view = memoryview(frame)
    if dtype is None:
        raise RunError(f"{_sender(message)} brings blob {_shown(spec.name)} of unknown dtype {_shown(spec.dtype)}")
    if view.readonly:  # torch takes writable memory only
        view = memoryview(bytearray(view))
    try:
        array = np.ndarray(spec.shape, dtype, view)
    except (TypeError, ValueError) as error:  # a shape that no array can have, or that needs more bytes than there are
        raise _mismatch(spec, view, message) from error
    if array.shape != spec.shape or array.nbytes != view.nbytes:  # numpy takes a size of -1 as "the rest"
        raise _mismatch(spec, view, message)
    if not array.flags.aligned:  # a small frame lies anywhere in ZeroMQ's receive buffer; Numba wants aligned arrays
        array = array.copy()
    tensor = torch.from_numpy(array)
    if spec.dtype == "bool":
        return tensor != 0  # a byte that is neither 0 nor 1 must not become a C++ bool
    return tensor.view(torch.bfloat16) if spec.dtype == "bfloat16" else tensor


def _mismatch(spec: TensorSpec, view: memoryview, message: Message) -> RunError:
    shape = _shown(",".join(map(str, spec.shape)))
    return RunError(
        f"{_sender(message)} brings blob {_shown(spec.name)}: {view.nbytes} bytes are not {spec.dtype}[{shape}]"
    )


def _sender(message: Message) -> str:
    kind = type(message).__name__
    source = getattr(message, "source", "")
    return f"a message {kind} from {_shown(source)}" if source else f"a message {kind}"


def _shown(text: str) -> str:
    """A peer's text, fit for one line of an error."""
    return text[:_SHOWN_CHARACTERS].encode("unicode_escape").decode()
