"""Loops that processes beside this one compile: there when they are called, and nobody left behind."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import psutil
import pytest

from htrain import jit
from htrain.executor.host.ahead import compile_ahead, compiling

LOOPS = """
import time

from numba import typeof

from htrain.jit import njit


@njit(nogil=True, cache=True, usual="(i8[::1], f4)")
def many(values, by):
    return values.size * by


@njit(nogil=True, cache=True, usual=lambda: (typeof(1.0),))
def one(value):
    return value


@njit(nogil=True, cache=True, usual="(f4[::1],)")
def wrong(values):
    return values.no_such_thing


@njit(nogil=True, cache=True, usual="(i8,)")
def last(value):
    return value


@njit(nogil=True, cache=True)
def other(value):
    return value
"""


@pytest.fixture
def loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Loops that nobody has compiled yet."""
    name = f"loops_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(LOOPS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    invalidate_caches()
    yield import_module(name)
    del sys.modules[name]


def missing(loops: Any) -> set[str]:
    """The names of those that nobody has compiled."""
    return {name for name in ("many", "one", "last", "other") if jit.is_to_be_compiled(getattr(loops, name))}


def comes(true: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def in_a_fork(work: Callable[[], None]) -> multiprocessing.Process:
    """A process with one thread."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process  # type: ignore[return-value]


def test_what_is_missing_is_compiled_and_what_cannot_be_is_left_to_its_caller(loops: Any) -> None:
    assert missing(loops) == {"many", "one", "last"}
    assert not jit.is_to_be_compiled(loops.other), "nobody has said for which types"

    def begin() -> None:
        ahead = compile_ahead([loops.many, loops.one, loops.other, loops.last, loops.wrong])
        assert ahead
        ahead.join(60)
        assert ahead.exitcode == 0
        assert compile_ahead([loops.many, loops.other]) is None

    process = in_a_fork(begin)
    process.join(90)
    assert process.exitcode == 0
    assert not missing(loops)
    assert loops.one(2.5) == 2.5
    assert sum(loops.one.stats.cache_misses.values()) == 0


def test_one_that_cannot_be_compiled_keeps_no_other_from_it(loops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})

    def begin() -> None:
        ahead = compile_ahead([loops.wrong, loops.last])
        assert ahead
        ahead.join(60)

    process = in_a_fork(begin)
    process.join(90)
    assert "last" not in missing(loops)


def test_they_end_with_the_process_that_wants_them(loops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never_ready(loop: Any) -> None:
        time.sleep(60)

    monkeypatch.setattr("htrain.executor.host.ahead.compile_usual", never_ready)

    def begin() -> None:
        compile_ahead([loops.many, loops.one])
        time.sleep(60)

    process = in_a_fork(begin)
    count = min(2, len(os.sched_getaffinity(0)))
    assert comes(lambda: len(psutil.Process(process.pid).children(recursive=True)) == count)
    ahead = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.join()
    assert comes(lambda: all(not each.is_running() or each.status() == psutil.STATUS_ZOMBIE for each in ahead))


def test_beside_something_else_one_is_compiled_by_another_process(loops: Any) -> None:
    with compiling([loops.many, loops.last]):
        assert comes(lambda: missing(loops) == {"one"})
    before = psutil.Process().children()
    with compiling([loops.many]):
        assert psutil.Process().children() == before, "there is nothing to do"


def test_none_is_left_where_something_else_is_done_sooner(loops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("htrain.executor.host.ahead._IMPORTS", "import time; time.sleep(60)")
    before = psutil.Process().children()
    with compiling([loops.many]):
        (child,) = set(psutil.Process().children()).difference(before)
    assert not child.is_running()


def test_where_no_process_can_be_started_nothing_is_lost(loops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError("too many processes")

    monkeypatch.setattr(subprocess, "Popen", refused)
    with compiling([loops.many]):
        assert "many" in missing(loops)
    monkeypatch.setattr(sys, "executable", "")
    with compiling([loops.many]):
        assert "many" in missing(loops)


def test_where_no_process_can_be_forked_roles_begin_without(loops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refused)
    assert compile_ahead([loops.many]) is None


def test_it_imports_what_this_process_does_and_no_file_that_lies_about(
    loops: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python that is given its program in words looks for modules in the current folder first, where a user's may be called as one of the library is."""
    about = tmp_path / "about"
    about.mkdir()
    for name in ("random", "msgspec"):
        (about / f"{name}.py").write_text(f"from pathlib import Path; Path({str(about / 'ran')!r}).touch()")
    monkeypatch.chdir(about)
    monkeypatch.delenv("PYTHONPATH", raising=False)  # `loops` are found by what sys.path says
    with compiling([loops.many]):
        assert comes(lambda: "many" not in missing(loops))
    assert not (about / "ran").exists()


def test_a_program_that_python_is_frozen_into_is_not_begun_once_more(
    loops: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    before = psutil.Process().children()
    with compiling([loops.many]):
        assert psutil.Process().children() == before
