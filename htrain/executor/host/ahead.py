"""Loops that are compiled ahead, by processes beside this one: what nobody has called before on a machine would hold up whoever is the first to.

They are left in Numba's cache, where the process that calls one finds it, or waits until it is there (htrain.jit).
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.process import BaseProcess
from subprocess import DEVNULL
from typing import Any

from htrain.executor.host.process import end_with_parent, parent_number, python_command
from htrain.jit import compile_usual, is_to_be_compiled

_IMPORTS = "from htrain.executor.host.ahead import main"
_CALL = "main(*sys.argv[1:])"
_MOST_PROCESSES = 4
_MOST_LOOPS = 256  # a byte says which


def compile_ahead(loops: Iterable[Any]) -> BaseProcess | None:
    """Have a process compile those of `loops` that nobody has compiled yet for their usual types, with others where there are cores for them; None where there
    are no such.

    It ends with this process. What goes wrong there is left to whoever calls the loop. Requires: this process has one thread.
    """
    missing = [loop for loop in loops if is_to_be_compiled(loop)][:_MOST_LOOPS]
    try:
        return _fork(_begin, missing) if missing else None
    except OSError:  # no room for another process
        return None


@contextmanager
def compiling(loops: Sequence[Any]) -> Iterator[None]:
    """Have a process of its own compile those of `loops` that nobody has compiled yet for their usual types, while this one does something else; it ends with
    this one, and with this context. Where none can be started, whoever calls a loop compiles it."""
    names = [_name_of(loop) for loop in loops if is_to_be_compiled(loop)]
    process: subprocess.Popen[bytes] | None = None
    if names and sys.executable and not getattr(sys, "frozen", False):  # else it is no Python, but the user's program
        command = python_command(_IMPORTS, _CALL, str(os.getpid()), *names)
        with suppress(OSError):
            process = subprocess.Popen(command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        if process:
            process.kill()
            process.wait()


def main(parent: str, *names: str) -> None:
    """Be such a process."""
    end_with_parent(parent=int(parent))
    for name in names:
        module, _, loop = name.partition(":")
        compile_usual(getattr(import_module(module), loop))


def _name_of(loop: Any) -> str:
    return f"{loop.py_func.__module__}:{loop.py_func.__name__}"


def _fork(work: Callable[..., None], *words: Any) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=_be_apart, args=(work, *words))
    process.start()
    return process


def _be_apart(work: Callable[..., None], *words: Any) -> None:
    """A process that works, and leaves without its parent's own way out."""
    end_with_parent(parent=parent_number())
    with suppress(BaseException):
        work(*words)
    os._exit(0)


def _begin(missing: Sequence[Any]) -> None:
    """Compile what is missing, together with as many others as there are cores for."""
    todo, given = os.pipe()  # each byte is taken by one process
    os.write(given, bytes(range(len(missing))))
    os.close(given)
    others: list[BaseProcess] = []
    with suppress(OSError):  # no room for more
        for _ in range(min(_MOST_PROCESSES, len(os.sched_getaffinity(0)), len(missing)) - 1):
            others.append(_fork(_work, missing, todo))
    _work(missing, todo)
    for process in others:  # which would end with this one
        process.join()


def _work(loops: Sequence[Any], todo: int) -> None:
    while number := os.read(todo, 1):
        with suppress(Exception):  # whoever calls that loop says why; the others are compiled
            compile_usual(loops[number[0]])
