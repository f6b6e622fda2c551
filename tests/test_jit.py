"""Loops whose machine code processes share: compiled once, whole, and by whoever is left."""

import fcntl
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module, invalidate_caches
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core import config
from numba.core.errors import TypingError

from htrain import jit

# As its index is written before its machine code, and both by whoever is ready, Numba alone mixes up entries of processes that compile at once.
LOOP = """
from htrain.jit import njit


@njit(nogil=True, cache=True)
def double(values):
    return values * 2


@njit(nogil=True, cache=True)
def loop(values, out):
    for n in range(values.size):
        out[n] = double(values[n]) + 1
"""
FORK = multiprocessing.get_context("fork")
KINDS = (np.int64, np.int32, np.float64, np.float32)


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A loop that nobody has compiled yet."""
    name = f"loop_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(LOOP)
    monkeypatch.syspath_prepend(tmp_path)
    invalidate_caches()
    yield import_module(name).loop
    del sys.modules[name]


def call(loop: Any, kind: type) -> None:
    """Call it, and check what it says."""
    values, out = np.arange(5, dtype=kind), np.zeros(5, kind)
    loop(values, out)
    np.testing.assert_array_equal(out, values * 2 + 1)


def together(tasks: list[Callable[[], int]]) -> list[int]:
    """What tasks say that begin in one moment, each in a process of its own."""
    gate = FORK.Barrier(len(tasks))
    said = FORK.SimpleQueue()
    processes = [FORK.Process(target=_task, args=(task, gate, said)) for task in tasks]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * len(tasks)
    return [said.get() for _ in tasks]


def _task(task: Callable[[], int], gate: Barrier, said: Any) -> None:
    gate.wait()
    said.put(task())


def misses(loop: Any, kind: type) -> int:
    """How many signatures a call compiles that were not on disk."""
    call(loop, kind)
    return sum(loop.stats.cache_misses.values())


def test_of_many_processes_that_need_a_loop_one_compiles_it(loop: Any) -> None:
    assert sum(together([lambda: misses(loop, np.int64)] * 4)) == 1
    assert together([lambda: misses(loop, np.int64)] * 2) == [0, 0]


def test_what_processes_compile_at_once_for_their_own_types_is_kept_for_all(loop: Any) -> None:
    assert sum(together([lambda kind=kind: misses(loop, kind) for kind in KINDS])) == len(KINDS)  # type: ignore[misc]
    assert together([lambda kind=kind: misses(loop, kind) for kind in KINDS]) == [0] * len(KINDS)  # type: ignore[misc]


def test_threads_that_need_a_loop_at_once_do_not_let_go_of_each_others_locks(loop: Any) -> None:
    def many(kinds: tuple[type, ...]) -> int:
        gate = threading.Barrier(8)

        def one(kind: type) -> bool:
            gate.wait()
            call(loop, kind)
            return True

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(one, kinds * (8 // len(kinds))))
        return len(loop.signatures)

    for kinds in (KINDS[:1], KINDS[:2], KINDS):
        assert together([lambda kinds=kinds: many(kinds)] * 2) == [len(kinds)] * 2  # type: ignore[misc]


def test_who_is_killed_while_it_compiles_keeps_nobody_waiting(loop: Any) -> None:
    compiles, compiled = FORK.Pipe()

    def compile_for_ever() -> None:
        loop._cache.save_overload = lambda *_: (compiled.send(True), time.sleep(60))
        call(loop, np.int64)

    process = FORK.Process(target=compile_for_ever)
    process.start()
    assert compiles.poll(60)
    assert compiles.recv()
    timer = threading.Timer(0.5, process.kill)
    timer.start()
    began = time.monotonic()
    assert together([lambda: misses(loop, np.int64)]) == [1]  # it waited, and compiled what nobody had kept
    assert time.monotonic() - began >= 0.5
    timer.join()
    process.join()


def test_who_has_been_stopped_keeps_others_for_a_time_only(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_PATIENCE", 0.2)
    path = Path(loop._cache.cache_path)
    path.mkdir(exist_ok=True)
    holds, ready = FORK.Pipe()

    def hold() -> None:
        file = os.open(path / f"{loop._cache._impl.filename_base}.lock", os.O_RDWR | os.O_CREAT)
        fcntl.lockf(file, fcntl.LOCK_EX)
        ready.send(True)
        time.sleep(60)

    process = FORK.Process(target=hold)
    process.start()
    assert holds.poll(60)
    assert holds.recv()
    assert together([lambda: misses(loop, np.int64)]) == [1]
    process.kill()
    process.join()


def test_a_fork_of_who_compiles_does_not_keep_the_others_out(loop: Any) -> None:
    """Writers of checkpoints are forks, and live on when a loop has long been compiled."""
    forked = FORK.Process(target=time.sleep, args=(60,))
    loop._cache.save_overload = lambda *_: forked.start()
    call(loop, np.int64)
    del loop._cache.save_overload
    began = time.monotonic()
    call(loop, np.float64)
    assert together([lambda: misses(loop, np.int32)]) == [3]
    assert time.monotonic() - began < jit._PATIENCE / 2
    forked.kill()
    forked.join()


def test_where_no_lock_can_be_had_each_compiles_for_itself(loop: Any) -> None:
    path = Path(loop._cache.cache_path)
    path.mkdir(exist_ok=True)
    (path / f"{loop._cache._impl.filename_base}.lock").mkdir()
    assert sum(together([lambda: misses(loop, np.int64)] * 2)) >= 1
    assert together([lambda: misses(loop, np.int64)]) == [0]


def test_a_loop_that_cannot_be_compiled_is_not_kept_from_others(loop: Any) -> None:
    with pytest.raises(TypingError):
        loop(object(), object())
    began = time.monotonic()
    assert together([lambda: misses(loop, np.int64)]) == [2]  # the one that failed is counted, too
    assert time.monotonic() - began < jit._PATIENCE / 2


def test_a_disk_that_refuses_costs_time_alone(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop._cache._cache_file, "save", full)
    call(loop, np.int64)
    call(loop, np.int64)


@pytest.mark.parametrize("content", [b"", b"no pickle"], ids=["cut off", "spoiled"])
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_what_cannot_be_read_on_disk_is_compiled_anew(loop: Any, suffix: str, content: bytes) -> None:
    assert together([lambda: misses(loop, np.float32)]) == [1]
    (path,) = Path(loop._cache.cache_path).glob(f"*.loop-*.{suffix}")
    path.write_bytes(content)
    assert together([lambda: misses(loop, np.float32)]) == [1]
    assert together([lambda: misses(loop, np.float32)]) == [0]


def test_where_no_folder_can_be_written_each_process_compiles_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose file system is read-only, for a user without a home."""
    name = f"unkept_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(LOOP.replace("cache=True", "cache=True, usual='(i8[::1], i8[::1])'"))
    (tmp_path / "__pycache__").touch()
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    monkeypatch.syspath_prepend(tmp_path)
    invalidate_caches()
    loop = import_module(name).loop
    assert not jit.is_kept(loop)
    assert not jit.is_to_be_compiled(loop), "what nobody else would find is not compiled ahead"
    call(loop, np.int64)
    call(loop, np.float32)
    del sys.modules[name]
