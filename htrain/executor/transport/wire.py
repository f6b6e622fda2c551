"""Messages between roles: a msgspec header frame, then one of all small tensors and one for each large tensor (docs/decisions/bundles.md). No pickle, ever.

A received message is untrusted: what does not hold together raises RunError in one line.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import torch

from htrain.decoding import msgpack_decoder
from htrain.errors import RunError
from htrain.executor.engine.context import Context
from htrain.executor.transport.rendezvous import FromAgent, FromLauncher
from htrain.ops.bundle import DTYPES, LARGE_BYTES, Bundle, Bytes, Kinds, Numbers, dtype_name, laid_out


class Values(msgspec.Struct, tag="values", array_like=True):
    """Blobs of a context. `kinds` are name, dtype and number of dimensions of each tensor; `dims` the dimensions of all, little-endian int64."""

    source: str
    context: Context
    batch_size: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    kinds: msgspec.Raw = msgspec.Raw(b"\x90")
    dims: bytes = b""


class Hello(msgspec.Struct, tag="hello", array_like=True):
    """A role is up; `endpoints` are its addresses by name. As all that a role says to its launcher it is of an `incarnation`: how often the role was begun
    again alone before."""

    source: str
    endpoints: dict[str, str]
    host: str
    pid: int
    incarnation: int = 0


class Addresses(msgspec.Struct, tag="addresses", array_like=True):
    """The endpoints of all that a role exchanges messages with, and how many orders were given before: to a role of this `incarnation`, which comes when others
    work already."""

    book: dict[str, str]
    ordered: int = 0
    incarnation: int = 0


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """A role holds its parameters and can start; what it had measured by then, which in a resumed run is more than nothing."""

    source: str
    metrics: dict[str, Any] = {}
    incarnation: int = 0


class Order(msgspec.Struct, tag="order", array_like=True):
    """The launcher's word to a role: start, pause, resume, save (into `folder`) or publish (the version `folder`), on top of `base`, stop, abort; lost, of a
    `role` that will be begun again as this `incarnation`, found, of one that has been, as that, at the addresses of its `book`, and start, of it alone; or
    ping, which says that it is there. Those of a try that all roles are given are numbered 1, 2, 3 and so on; an answer has the `number` of its order."""

    verb: str
    folder: str = ""
    base: str = ""
    number: int = 0
    role: str = ""
    incarnation: int = 0
    book: dict[str, str] = {}


class Beat(msgspec.Struct, tag="beat", array_like=True):
    """A role lives: what it has measured since it started, nothing before that. It has `said` so many States, and `heard` so many orders; -1 where a sign of
    life says nothing of that."""

    source: str
    metrics: dict[str, Any]
    said: int = -1
    heard: int = -1
    incarnation: int = 0


class State(msgspec.Struct, tag="state", array_like=True):
    """A role is `paused`, has read all its data (`finished`), cannot read on (`unreadable`), begins to write a checkpoint (`saving`) or a version
    (`publishing`), has `saved` or `published` it, or knows where a trainer is that was begun again (`found`): with its reader's position, its files or its
    objects, and with what went wrong. `place` counts what a role says so, from 1 on."""

    source: str
    state: str
    details: dict[str, Any]
    number: int = 0  # of the order that this answers
    place: int = 0
    incarnation: int = 0


class Failed(msgspec.Struct, tag="failed", array_like=True):
    """A role cannot go on."""

    source: str
    kind: str
    error: str
    incarnation: int = 0


class Heard(msgspec.Struct, tag="heard", array_like=True):
    """What has come of each of some sessions: all up to this number (docs/decisions/sessions.md)."""

    numbers: list[tuple[bytes, Annotated[int, msgspec.Meta(ge=0, le=2**62)]]]


Message = Values | Hello | Addresses | Ready | Order | Beat | State | Failed | Heard | FromAgent | FromLauncher
Frame = bytes | memoryview

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgpack_decoder(Message)
_KINDS = msgpack_decoder(list[tuple[str, str, Annotated[int, msgspec.Meta(ge=0, le=32)]]])
_MOST_KNOWN = 4096
_SHOWN_CHARACTERS = 120
_NOTHING = Bundle.room(Kinds.of((), (), ()), np.empty(0, np.int64))
_encoded: dict[Kinds, msgspec.Raw] = {}
_decoded: dict[bytes, Kinds] = {}


def behind(token: bytes, header: memoryview) -> memoryview | None:
    """What a message says behind the token of its run's try; None where it does not begin with it: it is of another try, or a stranger's."""
    begins = len(token)
    return header[begins:] if header[:begins] == token else None


def bundle_of(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> Bundle:
    """Tensors as they travel. Large contiguous ones are not copied: do not change one until it has been sent, nor, within a process, until it has been read.

    Raises RunError for a dtype that is not in DTYPES.
    """
    try:
        return Bundle.of(tuple(names), tensors).packed()
    except KeyError:
        name, dtype = next(
            (name, tensor.dtype)
            for name, tensor in zip(names, tensors, strict=True)
            if dtype_name(tensor.dtype) is None
        )
        raise RunError(
            f"blob '{name}' is {dtype}, a message carries {', '.join(DTYPES)}: cast it in the model"
        ) from None


def encode(message: Message, bundle: Bundle | None = None) -> list[Frame]:
    """The frames of a message; `bundle` are the tensors of Values, in whose header they are then described."""
    if bundle is None or not isinstance(message, Values):
        return [_ENCODER.encode(message)]
    message.kinds, message.dims = _kinds_encoded(bundle.kinds), bundle.dims.tobytes()
    together, *large = bundle.pieces
    return [_ENCODER.encode(message), *([together.data] if together.size else ()), *(piece.data for piece in large)]


def _kinds_encoded(kinds: Kinds) -> msgspec.Raw:
    found = _encoded.get(kinds)
    if found is None:
        if len(_encoded) >= _MOST_KNOWN:
            _encoded.clear()
        found = _encoded[kinds] = msgspec.Raw(
            _ENCODER.encode(list(zip(kinds.names, kinds.dtypes, kinds.ranks, strict=True)))
        )
    return found


def decode(frames: Sequence[Any]) -> tuple[Message, Bundle]:
    """The message and its tensors by name.

    A tensor views its frame's memory. It is a copy when the frame is small, read-only, not aligned to the dtype, or holds bools.
    Raises RunError when the frames are no message, or when dtypes, dimensions and bytes do not agree.
    """
    try:
        message = _DECODER.decode(memoryview(frames[0]))
        kinds = _kinds_decoded(message) if isinstance(message, Values) else _NOTHING.kinds
    except (
        msgspec.MsgspecError,
        UnicodeDecodeError,
        RecursionError,
        IndexError,
        TypeError,
    ) as error:  # TypeError: a key that msgspec before 0.22 hashes
        what = _shown(str(error))
        raise RunError(f"a message cannot be read: {what}; do all roles run the same version of htrain?") from error
    if not kinds.names:
        _check_count(message, frames, 0)
        return message, _NOTHING
    assert isinstance(message, Values)
    return message, _bundle(message, kinds, frames)


def _kinds_decoded(message: Values) -> Kinds:
    """The kinds of a header; those that have come before are known by their bytes. Raises RunError for what is no kind of a tensor."""
    key = bytes(message.kinds)
    found = _decoded.get(key)
    if found is None:
        described = _KINDS.decode(message.kinds)
        names, dtypes, ranks = zip(*described, strict=True) if described else ((), (), ())
        if len(set(names)) != len(names):
            raise RunError(f"{_sender(message)} brings a blob twice: {_shown(', '.join(names))}")
        for name, dtype, _ in described:
            if dtype not in DTYPES:
                raise RunError(f"{_sender(message)} brings blob {_shown(name)} of unknown dtype {_shown(dtype)}")
        if len(_decoded) >= _MOST_KNOWN:
            _decoded.clear()
        found = _decoded[key] = Kinds.of(names, dtypes, ranks)
    return found


def _bundle(message: Values, kinds: Kinds, frames: Sequence[Any]) -> Bundle:
    """The tensors of a message's frames. Raises RunError where these are not what its header says."""
    if len(message.dims) != 8 * kinds.num_dims:
        raise RunError(
            f"{_sender(message)} brings {len(message.dims)} bytes of dimensions for tensors of {kinds.num_dims} dimensions"
        )
    dims = np.frombuffer(message.dims, np.int64).copy()  # Numba compiles its loops anew for what is read-only
    try:
        sizes, begins, small = laid_out(kinds, dims)
    except ValueError as error:
        place = int(error.args[0])
        raise RunError(
            f"{_sender(message)} brings blob {_shown(kinds.names[place])}: no tensor is {_form(kinds, dims, place)}"
        ) from error
    large = [place for place, begin in enumerate(begins.tolist()) if begin < 0] if begins.min() < 0 else []
    _check_count(message, frames, (small > 0) + len(large))
    pieces = [_memory(frame) for frame in frames[1:]]
    pieces = pieces if small else [np.empty(0, np.uint8), *pieces]
    if pieces[0].size != small:
        raise RunError(f"{_sender(message)} brings {pieces[0].size} bytes of small blobs: {small} bytes are wanted")
    for place, piece in zip(large, pieces[1:], strict=True):
        if piece.size != sizes[place]:
            what = f"{piece.size} bytes are not {_form(kinds, dims, place)}"
            raise RunError(f"{_sender(message)} brings blob {_shown(kinds.names[place])}: {what}")
    return Bundle(kinds, dims, sizes, begins, pieces)


def _check_count(message: Message, frames: Sequence[Any], wanted: int) -> None:
    if len(frames) != wanted + 1:
        raise RunError(f"{_sender(message)} announces {wanted} frames and brings {len(frames) - 1}")


def _memory(frame: Any) -> Bytes:
    """A frame's bytes, where they are, or copied: small ones stay until their step ends, each in a hole that a large one has left; others must be writable,
    for torch, and aligned, for Numba."""
    view = np.frombuffer(frame, np.uint8)
    return (
        view
        if view.size >= LARGE_BYTES and view.flags.writeable and view.__array_interface__["data"][0] % 8 == 0
        else view.copy()
    )


def _form(kinds: Kinds, dims: Numbers, place: int) -> str:
    end = int(kinds.ends[place])
    shape = _shown(",".join(map(str, dims[end - kinds.ranks[place] : end].tolist())))
    return f"{kinds.dtypes[place]}[{shape}]"


def _sender(message: Message) -> str:
    kind = type(message).__name__
    source = getattr(message, "source", "")
    return f"a message {kind} from {_shown(source)}" if source else f"a message {kind}"


def _shown(text: str) -> str:
    """A peer's text, fit for one line of an error."""
    return text[:_SHOWN_CHARACTERS].encode("unicode_escape").decode()
