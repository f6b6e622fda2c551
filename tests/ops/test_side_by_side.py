"""Work that is shared out among threads."""

import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htrain.ops import side_by_side as module
from htrain.ops.side_by_side import side_by_side


@given(sizes=st.lists(st.integers(0, 50), max_size=12), small=st.integers(0, 200), threads=st.integers(1, 4))
def test_each_place_is_done_once(sizes: list[int], small: int, threads: int) -> None:
    done: list[int] = []
    parts: list[tuple[int, int]] = []

    def some(first: int, last: int) -> None:
        parts.append((first, last))
        done.extend(range(first, last))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_threads", lambda: threads)
        side_by_side(some, sizes, small=small)
    assert sorted(done) == list(range(len(sizes)))
    assert len(parts) <= (threads if sum(sizes) >= small else 1)


def test_work_is_shared_with_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_threads", lambda: 2)
    together = threading.Barrier(2, timeout=10)
    side_by_side(lambda first, last: [together.wait() for _ in range(first, last)], [1, 1], small=1)  # type: ignore[arg-type,return-value]


def test_what_a_thread_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_threads", lambda: 2)

    def some(first: int, last: int) -> None:
        if last == 2:
            raise ValueError("the second of two")

    with pytest.raises(ValueError, match="the second of two"):
        side_by_side(some, [1, 1], small=1)


_FORKED = """
import os
from htrain.ops import side_by_side as module
module._threads = lambda: 2
module.side_by_side(lambda first, last: None, [1, 1], small=1)
if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
done = []
module.side_by_side(lambda first, last: done.append(last), [1, 1], small=1)
os._exit(sorted(done) != [1, 2])
"""


def test_a_forked_process_has_threads_of_its_own() -> None:
    assert subprocess.run([sys.executable, "-c", _FORKED], timeout=60).returncode == 0
