"""What was written, taken apart by its types: msgspec's decoders, one thread at a time.

The first time that msgspec meets a type it looks at the fields in Python. Another thread that meets it meanwhile takes what there is of them so far, and the
process ends by a segmentation fault. Only a decoder that has been made is safe in all threads. Decoding keeps the GIL anyway: a lock costs nothing.
"""

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")
_Bytes = bytes | bytearray | memoryview | str
_Hook = Callable[[Any, Any], Any]
_ONE_AT_A_TIME = threading.RLock()  # a hook may decode
os.register_at_fork(
    before=_ONE_AT_A_TIME.acquire,
    after_in_parent=_ONE_AT_A_TIME.release,
    after_in_child=_ONE_AT_A_TIME.release,  # a child has no other thread, which would let go of it
)


@overload
def from_json(data: _Bytes, kind: type[T], *, hook: _Hook | None = None) -> T: ...
@overload
def from_json(data: _Bytes, kind: Any, *, hook: _Hook | None = None) -> Any: ...
def from_json(data: _Bytes, kind: Any, *, hook: _Hook | None = None) -> Any:
    """A document in JSON as one of `kind`; `hook(type, value)` makes what msgspec does not know.

    Raises msgspec.DecodeError for other documents, UnicodeDecodeError for what is no UTF-8, RecursionError for what is too deep.
    """
    with _ONE_AT_A_TIME:
        return msgspec.json.decode(data, type=kind, dec_hook=hook)


@overload
def converted(value: Any, kind: type[T]) -> T: ...
@overload
def converted(value: Any, kind: Any) -> Any: ...
def converted(value: Any, kind: Any) -> Any:
    """A value, of what JSON or YAML are read to, as one of `kind`. Raises msgspec.ValidationError for another."""
    with _ONE_AT_A_TIME:
        return msgspec.convert(value, kind)


@overload
def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """A decoder that any thread may use, as it knows its types already. Raises TypeError where `kind` is none that msgspec takes."""
    with _ONE_AT_A_TIME:
        return msgspec.msgpack.Decoder(kind)
