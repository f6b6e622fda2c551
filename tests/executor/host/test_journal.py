"""The last word of a process that is killed, wherever it is."""

import multiprocessing
import os
import random
import signal
import time

import pytest

from htrain.executor.host.journal import Journal


def word(number: int) -> bytes:
    """A word that shows which one it is, and whether it is whole."""
    return number.to_bytes(8, "big") * (1 + number % 5000)


def writes(journal: Journal, first: int) -> None:
    number = first
    while True:
        journal.write(word(number))
        number += 1


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
