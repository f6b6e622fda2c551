"""The last word of a process that is killed, wherever it is."""

import mmap
import multiprocessing
import os
import random
import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htrain.executor.host.journal import Journal


def word(number: int) -> bytes:
    """A word that shows which one it is, and whether it is whole."""
    return number.to_bytes(8, "big") * (1 + number % 5000)


def writes(journal: Journal, first: int) -> None:
    number = first
    while True:
        journal.write(word(number))
        number += 1


class KilledError(Exception):
    """The process is no more."""


class MemoryOfTheKilled:
    """Memory of a process that is killed once it has written so many bytes: of what was being written then, any bytes may be there.

    Only its items can be written: what is packed into memory is written in who knows how many pieces.
    """

    def __init__(self, memory: mmap.mmap, written: int, draw: random.Random) -> None:
        self._memory, self._left, self._draw = memory, written, draw

    def __getitem__(self, place: int | slice) -> int | bytes:
        return self._memory[place]

    def __setitem__(self, place: int | slice, value: int | bytes) -> None:
        size = 1 if isinstance(place, int) else len(self._memory[place])
        self._left -= size
        if self._left >= 0:
            self._memory[place] = value  # type: ignore[index, assignment]
            return
        if isinstance(place, slice) and isinstance(value, bytes):
            both = zip(self._memory[place], value, strict=True)
            self._memory[place] = bytes(self._draw.choice((*each, self._draw.randrange(256))) for each in both)
        raise KilledError


@given(st.lists(st.binary(max_size=40), max_size=5), st.binary(max_size=40), st.integers(0, 50), st.integers())
def test_at_whichever_byte_a_process_is_killed_its_last_word_is_one_of_two_and_whole(
    words: list[bytes], last: bytes, written: int, seed: int
) -> None:
    journal = Journal()
    for each in words:
        journal.write(each)
    own = journal._memory
    journal._memory = MemoryOfTheKilled(own, written, random.Random(seed))  # type: ignore[assignment]
    try:
        journal.write(last)
    except KilledError:
        wanted = words[-1] if words else b""
    else:
        wanted = last
    journal._memory = own
    assert journal.read() == wanted
    journal.write(b"of the one in its place")
    assert journal.read() == b"of the one in its place"
    journal.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_process_that_is_killed_while_it_writes_has_left_a_whole_word_and_another_goes_on_behind(seed: int) -> None:
    draw, journal, last = random.Random(seed), Journal(), 0
    for _ in range(3):
        process = multiprocessing.get_context("fork").Process(target=writes, args=(journal, last + 1), daemon=True)
        process.start()
        deadline = time.monotonic() + 20
        while journal.read() in (b"", word(last)) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.03))
        assert process.pid
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        found = int.from_bytes(journal.read()[:8], "big")
        assert found > last
        assert journal.read() == word(found)
        last = found
    journal.close()


def test_a_journal_without_a_word_has_none_and_a_longer_word_than_it_has_room_for_is_refused() -> None:
    journal = Journal()
    assert journal.read() == b""
    journal.write(b"a")
    with pytest.raises(ValueError, match="1,048,576"):
        journal.write(bytes(1 << 20))
    assert journal.read() == b"a"
    journal.close()
