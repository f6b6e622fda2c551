"""Messages between a worker and one server, version 1 (docs/reference/client-protocol.md): a header in msgpack, then a frame for each array, little-endian.

A received message is untrusted: what does not hold together raises RunError in one line.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from htrain.decoding import msgpack_decoder
from htrain.errors import RunError
from htrain.membership.served import Served
from htrain.sync.request import Request

VERSION = 1
_SHOWN_CHARACTERS = 120

Array = NDArray[Any]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Session = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


# -- from a worker ---------------------------------------------------------------------------------------------------


class Join(msgspec.Struct, frozen=True, tag="join", array_like=True):
    """A worker wants to be a member, as one incarnation of `worker`, of which `session` is the number; `place` says where it runs."""

    version: int
    token: str
    worker: Name
    session: Session
    place: Annotated[str, msgspec.Meta(max_length=300)]


class Ask(msgspec.Struct, frozen=True, tag="ask", array_like=True):
    """The request of a step: counts[c] are the rows of cache c that are pushed, fetched, checked.

    With it come, for each cache that this server has rows of: keys (4 or 8 bytes each, `key_bytes`[c]), clocks, gradients. `in_round` is the first request
    since a step: without staleness it waits for those of all other workers, and others bring no updates.
    """

    session: Session
    number: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    counts: list[tuple[Count, Count, Count]]
    key_bytes: list[int]
    in_round: bool


class Look(msgspec.Struct, frozen=True, tag="look", array_like=True):
    """Rows to be read as they stand, for an evaluation: keys of each cache come with it. They are cached nowhere, and no round waits for this."""

    session: Session
    number: int
    counts: list[Count]


class Beat(msgspec.Struct, frozen=True, tag="beat", array_like=True):
    """The worker lives; `unsent` rows have updates that it has not pushed."""

    session: Session
    unsent: Count


class Leave(msgspec.Struct, frozen=True, tag="leave", array_like=True):
    """The worker goes."""

    session: Session


# -- from a server ---------------------------------------------------------------------------------------------------


class Welcome(msgspec.Struct, frozen=True, tag="welcome", array_like=True):
    """The worker is a member of this server, the `server`th at `addresses`."""

    served: Served
    server: int
    addresses: list[str]
    lease_seconds: float


class Answered(msgspec.Struct, frozen=True, tag="answer", array_like=True):
    """The answer to a request: for each cache rows[n,D+S], clocks[n] and stale[m] come with it, of which `sizes` are n and m."""

    number: int
    sizes: list[tuple[Count, Count]]


class Seen(msgspec.Struct, frozen=True, tag="seen", array_like=True):
    """The answer to a Look: rows[n,D] of each cache come with it."""

    number: int


class Waits(msgspec.Struct, frozen=True, tag="waits", array_like=True):
    """The request has come, and is not answered yet: these workers are waited for, or the server is at rest."""

    number: int
    missing: list[str]


class Left(msgspec.Struct, frozen=True, tag="left", array_like=True):
    """The worker is a member no more."""

    session: int


class Refused(msgspec.Struct, frozen=True, tag="refused", array_like=True):
    """What was asked cannot be. `kind` is stranger (the word is not the right one), version, member (it is none), or request (it does not hold together)."""

    kind: str
    reason: str


FromWorker = Join | Ask | Look | Beat | Leave
FromServer = Welcome | Answered | Seen | Waits | Left | Refused

_ENCODER = msgspec.msgpack.Encoder()
_WORKER = msgpack_decoder(FromWorker)
_SERVER = msgpack_decoder(FromServer)


def encode(message: FromWorker | FromServer, arrays: Sequence[Array] = ()) -> list[Any]:
    """The frames of a message."""
    return [_ENCODER.encode(message), *(np.ascontiguousarray(array).data for array in arrays)]


def from_worker(frame: Any) -> FromWorker:
    """A worker's header. Raises RunError for what is none."""
    return _decoded(_WORKER, frame, "a worker")


def from_server(frame: Any) -> FromServer:
    """A server's header. Raises RunError for what is none."""
    return _decoded(_SERVER, frame, "a server")


def _decoded(decoder: Any, frame: Any, sender: str) -> Any:
    try:
        return decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
        what = str(error)[:_SHOWN_CHARACTERS].encode("unicode_escape").decode()
        raise RunError(
            f"a message of {sender} cannot be read: {what}; do both run the same version of htrain?"
        ) from error


# -- arrays ----------------------------------------------------------------------------------------------------------


def request_arrays(requests: Sequence[Request]) -> list[Array]:
    """What goes with an Ask: keys, clocks, gradients of each."""
    return [array for request in requests for array in (request.keys, request.clocks, request.gradients)]


def requests_from(ask: Ask, frames: Sequence[Any], widths: Sequence[int]) -> list[Request]:
    """The requests of an Ask, for caches of these widths. Raises RunError where frames are not what its header says."""
    if not len(ask.counts) == len(ask.key_bytes) == len(widths) or len(frames) != 3 * len(widths):
        raise RunError(f"a request is for {len(ask.counts)} caches in {len(frames)} frames, {len(widths)} are here")
    requests = []
    for cache, (counts, width) in enumerate(zip(ask.counts, widths, strict=True)):
        pushed, fetched, checked = counts
        keys, clocks, gradients = frames[3 * cache : 3 * cache + 3]
        kind = {4: np.int32, 8: np.int64}.get(ask.key_bytes[cache])
        if kind is None:
            raise RunError(f"a request has keys of {ask.key_bytes[cache]} bytes, want 4 or 8")
        requests.append(
            Request(
                np.array(counts, np.int64),
                array_from(keys, kind, (pushed + fetched + checked,)),
                array_from(clocks, np.int32, (pushed + checked,)),
                array_from(gradients, np.float32, (pushed, width)),
            )
        )
    return requests


def array_from(frame: Any, dtype: Any, shape: tuple[int, ...]) -> Array:
    """A frame as an array, copied. Raises RunError where its bytes are not of that shape."""
    found = np.frombuffer(frame, np.uint8)
    wanted = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=object))
    if found.size != wanted:
        raise RunError(f"a message brings {found.size} bytes for {np.dtype(dtype).name}{list(shape)}, want {wanted}")
    return found.view(dtype).reshape(shape).copy() if found.size else np.empty(shape, dtype)
