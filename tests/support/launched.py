"""A run of a ledger's plan as a shell starts it, whose roles come from elsewhere, and what it says."""

import re
import subprocess
import sys
import time
from pathlib import Path

from ledger import DATA
from whole_runs import ENDLESS


class Launched:
    """`htrain run` of the plan in `folder`, into its `run`, with more words."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.run, self.log = folder / "run", folder / "log"
        words = [sys.executable, "-m", "htrain", "run", str(folder / "plan"), "--data", DATA, "--out", str(self.run)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*words, *ENDLESS, *more, "--checkpoint-seconds", "0.7"], stdout=log, stderr=log
            )

    def wait_for(self, what: str, times: int = 1) -> list[str]:
        """Until a pattern has been said so often; what it has found."""
        deadline = time.monotonic() + 120
        while len(found := re.findall(what, self.log.read_text())) < times:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)
        return found
