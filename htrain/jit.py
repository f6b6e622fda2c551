"""Numba's `njit` with a cache on disk that processes share: what one compiles, the others read.

The roles of a run begin in the same moment and need the same loops. Numba's own cache lets each of them compile each loop, and its index is read, changed and
written by two at a time: an entry is lost, or names the machine code of another signature. Here whoever finds that a loop is missing has its cache to itself
until the loop is there.
"""

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock
from numba.core.sigutils import normalize_signature

Usual = str | Callable[[], tuple[Any, ...]]
_PATIENCE = 60.0  # seconds for another process that compiles; longer than any loop takes. One that has been stopped must not hold up the others
_LOOK_AGAIN = 0.01  # seconds
_NO_FOLDER = "no locator available"  # in what Numba says where it has none for its cache


def njit(*, cache: bool = False, usual: Usual = "", **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """As `numba.njit` of these options; with `cache`, the machine code of a loop is kept where Numba keeps it, and made by one process at a time.

    `usual` are the types of the arguments that it is called with as a rule, as Numba writes them, "(i8[::1], f4)", or makes them: with these it can be
    compiled before it is called (`compile_usual`).
    """

    def compiled(loop: Callable[..., Any]) -> Any:
        made: Any = numba.njit(**options)(loop)  # the loop itself where NUMBA_DISABLE_JIT is set
        shared = _shared_cache(loop) if cache and made is not loop else None
        if shared:
            made._cache = shared
            made.compile = shared.letting_go_after(made.compile)
            made.usual = usual
        return made

    return compiled


def is_kept(loop: Any) -> bool:
    """Whether the machine code of a loop, if there is any, has a place on disk, where other processes find it."""
    cache = getattr(loop, "_cache", None)
    return cache is None or isinstance(cache, SharedCache)


def usual_types(loop: Any) -> tuple[Any, ...]:
    """Numba's types of the arguments that a loop is called with as a rule; none where nobody has said which, or nothing is compiled."""
    usual = getattr(loop, "usual", "")
    types: tuple[Any, ...] = usual() if callable(usual) else normalize_signature(usual)[0] if usual else ()
    return types


def is_to_be_compiled(loop: Any) -> bool:
    """Whether nobody has compiled a loop for its usual types, neither this process nor one that left it in the cache."""
    types = usual_types(loop)
    return bool(types) and types not in loop.overloads and not loop._cache.holds(types)


def compile_usual(loop: Any) -> None:
    """Compile a loop for its usual types. Requires: it has some."""
    loop.compile(usual_types(loop))


class _Files(IndexDataCacheFile):
    """Those of one loop. What cannot be read, as one that a power cut has left empty, or another user's, is not there: it is made anew."""

    def _load_index(self) -> dict[Any, str]:
        try:
            found: dict[Any, str] = super()._load_index()
        except Exception:  # of unpickling: whatever those bytes say
            return {}
        return found

    def _load_data(self, name: str) -> Any:
        try:
            return super()._load_data(name)
        except Exception as error:
            raise OSError(f"{name}: {error}") from error  # by which Numba knows that it is not there


class SharedCache(FunctionCache):
    """The machine code of one loop on disk: read under a shared lock, and made under an exclusive one by whoever has found it missing.

    Locks are the process's (`lockf`), not the open file's: the writers of checkpoints are forks, and must not keep the locks of the role that they come from.
    Of the threads of a process one compiles at a time, by a lock of Numba's. Where a folder takes no locks, each process compiles for itself.
    """

    def __init__(self, loop: Callable[..., Any]) -> None:
        super().__init__(loop)
        files = self._cache_file
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, files._source_stamp)
        self._lock: int | None = None  # the file by which this process keeps the others out

    def holds(self, types: tuple[Any, ...]) -> bool:
        """Whether there is machine code of these types of arguments, made from the loop as it is now, by a processor of whatever kind: to ask Numba for the
        kind of this one takes a quarter of a second."""
        return any(key[0] == types for key in self._cache_file._load_index())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code of a signature, or None where it is now this process's to compile: others wait until `letting_go_after` lets them."""
        if self._lock is not None:  # of a loop that calls itself for another signature
            return super().load_overload(sig, target_context)
        path = Path(self.cache_path) / f"{self._impl.filename_base}.lock"
        self._lock = _locked(path, fcntl.LOCK_SH)
        found = super().load_overload(sig, target_context)
        if found is None and self._lock is not None:
            os.close(self._lock)  # two that read, and would have it to themselves, would wait for each other
            self._lock = _locked(path, fcntl.LOCK_EX)
            found = super().load_overload(sig, target_context)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the machine code of a signature. Where the disk refuses, each process compiles for itself."""
        with suppress(OSError):
            super().save_overload(sig, data)

    def letting_go_after(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """The work, and then the lock is the others'."""

        def compile(*words: Any) -> Any:
            with global_compiler_lock:  # another thread that compiles has a lock of its own behind this one's
                try:
                    return work(*words)
                finally:
                    if self._lock is not None:
                        os.close(self._lock)
                        self._lock = None

        return compile


def _shared_cache(loop: Callable[..., Any]) -> SharedCache | None:
    """That of one loop; None where no folder can be written, neither NUMBA_CACHE_DIR nor that of the source nor one below HOME, as in a container whose file
    system is read-only: each process compiles for itself then."""
    try:
        return SharedCache(loop)
    except RuntimeError as error:
        if _NO_FOLDER not in str(error):  # such as a NUMBA_CACHE_LOCATOR_CLASSES that there is not
            raise
        return None


def _locked(path: Path, kind: int) -> int | None:
    """A file that is locked. None where others keep it too long, or none can be had: what is compiled twice costs time alone."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return None
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            fcntl.lockf(file, kind | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            time.sleep(_LOOK_AGAIN)
        except OSError:
            break
        else:
            return file
    os.close(file)
    return None
