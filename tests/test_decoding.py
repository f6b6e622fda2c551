"""Decoding: threads that meet a type in the same moment, of which another must not be decoded while the first looks at it."""

import os
import sys
import threading
import time
from typing import Annotated, Any

import msgspec
import pytest

from htrain.decoding import converted, from_json, msgpack_decoder

NUM_THREADS = 4


def first_met() -> tuple[Any, list[Any]]:
    """A type that nobody has met, and a document of it."""
    count = Annotated[int, msgspec.Meta(ge=0)]
    inner = msgspec.defstruct("Inner", [("a", str), ("b", count), ("c", tuple[count, ...])], array_like=True)
    outer = msgspec.defstruct("Outer", [("x", inner), ("y", dict[str, inner])], array_like=True)
    return tuple[outer, bool], [[["a", 1, [2]], {"b": ["b", 3, []]}], True]


def in_threads(way: str) -> int:
    """How many threads have decoded, each of which begins at once."""
    sys.setswitchinterval(1e-6)
    kind, value = first_met()
    packed, text, begin, done = (
        msgspec.msgpack.encode(value),
        msgspec.json.encode(value),
        threading.Barrier(NUM_THREADS),
        [],
    )

    def decode() -> None:
        begin.wait()
        if way == "json":
            done.append(from_json(text, kind))
        elif way == "convert":
            done.append(converted(value, kind))
        else:
            done.append(msgpack_decoder(kind).decode(packed))

    threads = [threading.Thread(target=decode) for _ in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(found[1] is True and found[0].y["b"].b == 3 for found in done)


@pytest.mark.parametrize("way", ["json", "convert", "msgpack"])
def test_threads_that_meet_a_type_in_the_same_moment_all_decode_it(way: str) -> None:
    for _ in range(15):  # without a lock one in three crashes
        child = os.fork()
        if child == 0:
            os._exit(0 if in_threads(way) == NUM_THREADS else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_that_is_forked_while_another_thread_decodes_can_decode() -> None:
    over = threading.Event()

    def go_on() -> None:
        while not over.is_set():
            from_json(b"[1, 2, 3]", list[int])

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(0 if from_json(b"[1]", list[int]) == [1] else 1)
            assert ended(child, within=20) == 0
    finally:
        over.set()
        thread.join()


def ended(child: int, within: float) -> int | None:
    """How a process has ended; None where it has not, and is ended."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return None
