"""What of this machine its processes may use: in a container, or as a service, a part of its memory and of its cores' time (control groups of Linux)."""

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/")


def memory_limit(root: Path = _ROOT) -> float:
    """Bytes of memory that this process's groups may take together; infinity where nothing is said. `root` is the folder that holds /proc and /sys."""
    limits = [_number(folder / name) for folder in _groups(root, "memory") for name in _MEMORY]
    return min(limits, default=math.inf)


def core_limit(root: Path = _ROOT) -> float:
    """How many cores' time this process's groups may take together; infinity where nothing is said."""
    shares = [share for folder in _groups(root, "cpu") for share in (_share(folder), _older_share(folder))]
    return min(shares, default=math.inf)


_MEMORY = "memory.max", "memory.limit_in_bytes"  # of version 2, and of version 1


def _share(folder: Path) -> float:
    """What cpu.max says: microseconds, or max, and of how many. Of version 2."""
    words = _text(folder / "cpu.max").split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0].isdigit() else math.inf


def _older_share(folder: Path) -> float:
    """The same of version 1, in which -1 is no limit."""
    quota, period = (_number(folder / f"cpu.cfs_{what}_us") for what in ("quota", "period"))
    return quota / period if math.isfinite(quota) and math.isfinite(period) else math.inf


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the groups that this process belongs to, from its own to that of all, as far as they can be seen from here."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / controllers
            base = base if base.is_dir() else root / "sys/fs/cgroup" / controller
        else:
            continue
        own = Path(path.lstrip("/"))
        yield from (base / each for each in (own, *own.parents))  # the last is base itself


def _number(path: Path) -> float:
    text = _text(path).strip()
    return float(text) if text.isdigit() else math.inf


def _text(path: Path) -> str:
    """What a file of the system says; "" where it is not there."""
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""
