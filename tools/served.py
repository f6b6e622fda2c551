"""`htrain serve` beside a tool, for as long as the tool needs its tables."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(plan: Path) -> Iterator[Path]:
    """The folder, beside `plan`, in which its tables are served."""
    folder = plan.with_name("served")
    command = [str(Path(sys.executable).with_name("htrain")), "serve", str(plan), "--out", str(folder)]
    servers = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (folder / "serving.json").exists():
            assert servers.poll() is None, f"{' '.join(command)} has ended"
            time.sleep(0.1)
        yield folder
    finally:
        os.kill(servers.pid, signal.SIGINT)
        servers.wait()
