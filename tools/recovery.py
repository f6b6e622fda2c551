"""What a run makes of roles that are killed: how soon it goes on, and whether every example was trained once.

    python tools/recovery.py --kills 20                  # of any role, at random
    python tools/recovery.py --kills 20 --role trainer   # of trainers alone

Two groups of two trainers and two group PSs, two sparse PSs and a dense PS train a model that counts: each row of its table is less by 1 for each
time that it was trained (tests/support/ledger.py), so that the last checkpoint says what was trained and what was not. Prints for each kill the
seconds until the launcher has told of it, until the first step after it, and until examples a second are 0.95 of what they have been so far while nobody
disturbed it: when a window of three seconds begins that has so many, and when it ends ("inf" for none within a minute); then their medians and worst, how many
windows of an undisturbed run have so many, and how the table is off: by nothing with --retry whole, with alone by no more than the batches that trainers
have told that they trained again, with partial also by what sparse PSs have lost.
PSs step rows by one thread: several that step one row at once may lose a step of it (Hogwild).
"""

import argparse
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from ledger import DATA, counted, ledger_plan, owed

from htrain.executor.record.kept import find_checkpoints
from htrain.spec.cluster import this_machine

_NEWS = re.compile("the run goes on|it is begun again")
_AGAIN = re.compile(r"batches that it had begun, and trains again: (\d+)")
_LOST = re.compile(r"had learnt of about ([\d,]+) examples")
_IDS_OF_AN_EXAMPLE = 26
_IDS_OF_A_BATCH = 32 * _IDS_OF_AN_EXAMPLE
_WANTED_SECONDS = 5.0
_WINDOW_SECONDS = 3.0  # over which examples a second are counted
_SHARE = 0.95  # of what the run usually does
_MOST_SECONDS = 60.0  # that it is waited for


@dataclass(frozen=True)
class Kill:
    """What came of one, in seconds since it."""

    role: str
    noticed: float
    stepped: float
    full: float  # when the window of `back` began
    back: float


class Run:
    """A run that goes on until it is told to stop."""

    def __init__(self, plan: Path, folder: Path, every: float, retry: str) -> None:
        command = [
            sys.executable,
            "-m",
            "htrain",
            "run",
            str(plan),
            "--data",
            DATA,
            "--out",
            str(folder),
            "--epochs",
            "1000000000",
        ]
        self.process = subprocess.Popen(
            [*command, "--checkpoint-seconds", str(every), "--workers", "1", "--retry", retry],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.folder = folder
        self.told: list[tuple[float, str]] = []
        self._read_bytes, self._reports = 0, list[tuple[float, int]]()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.told.append((time.time(), line.rstrip()))

    def reports(self) -> list[tuple[float, int]]:
        """Times of the run's reports, and examples. What was read is kept: to read all of it fifty times a second would take a core of the run's."""
        log = self.folder / "metrics.jsonl"
        if log.exists():
            with log.open() as file:
                file.seek(self._read_bytes)
                new = file.read().rpartition("\n")[0]
            self._read_bytes += len(new.encode()) + bool(new)
            found = (json.loads(line) for line in new.splitlines() if '"role": "run"' in line)
            self._reports += [(r["time"], r["examples"]) for r in found]
        return self._reports

    def wait(self, what: str, happened: "object", seconds: float = 120.0) -> None:
        """Until something has happened. Exits where it does not, or the run ends."""
        end = time.monotonic() + seconds
        while not happened():  # type: ignore[operator]
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit(f"{what}: not within {seconds:.0f} s; the run says: {self.told[-3:]}")
            time.sleep(0.02)

    @property
    def checkpoint(self) -> str:
        complete = find_checkpoints(self.folder).complete if self.folder.is_dir() else ()
        return complete[0][0].name if complete else ""


def window(reports: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """The last of them."""
    return [(at, examples) for at, examples in reports if at > reports[-1][0] - _WINDOW_SECONDS]


def eps(reports: list[tuple[float, int]]) -> float:
    """Examples a second of the last reports; 0 where they are too few, or of two tries."""
    (then, before), *_, (now, after) = [*window(reports), reports[-1]]
    return max(0.0, (after - before) / (now - then)) if now - then > _WINDOW_SECONDS / 2 else 0.0


class Usual:
    """What the run does while nobody disturbs it: a window of its own is as often above that as below, and says less."""

    def __init__(self) -> None:
        self._seconds, self._examples, self._windows = 0.0, 0, list[float]()

    def saw(self, reports: list[tuple[float, int]], since: float) -> None:
        """Nobody has disturbed it since then."""
        calm = [report for report in reports if report[0] > since]
        if len(calm) > 1:
            self._seconds += calm[-1][0] - calm[0][0]
            self._examples += calm[-1][1] - calm[0][1]
            self._windows += [found for end in range(2, len(calm) + 1) if (found := eps(calm[:end]))]

    @property
    def eps(self) -> float:
        return self._examples / self._seconds if self._seconds else 0.0

    def share_of_windows(self, of_eps: float) -> float:
        """How many of the undisturbed windows have so many examples a second."""
        return sum(found >= of_eps for found in self._windows) / max(1, len(self._windows))


def killed(run: Run, draw: random.Random, role: str, usually: Usual) -> Kill:
    """Kill a role that has trained since the last checkpoint, and wait until all is as before."""
    known, calm = run.checkpoint, time.time()
    run.wait("another checkpoint", lambda: run.checkpoint != known)
    time.sleep(_WINDOW_SECONDS + draw.random())
    usually.saw(run.reports(), calm)
    usual, places = usually.eps, json.loads((run.folder / "roles.json").read_text())
    victim = draw.choice(sorted(name for name in places if name.startswith(role)))
    heard, at = len(run.told), time.time()
    os.kill(places[victim]["pid"], signal.SIGKILL)
    run.wait("news of it", lambda: any(_NEWS.search(line) for _, line in run.told[heard:]))
    noticed = next(when for when, line in run.told[heard:] if _NEWS.search(line)) - at
    since = lambda: [r for r in run.reports() if r[0] > at + noticed]  # noqa: E731
    run.wait("a step", lambda: len({examples for _, examples in since()}) > 1)
    stepped = next(when for (_, first), (when, then) in zip(since(), since()[1:], strict=False) if then > first) - at
    end = at + _MOST_SECONDS
    run.wait("a report", lambda: eps(since()) >= _SHARE * usual or time.time() > end)
    if eps(since()) < _SHARE * usual:
        return Kill(victim, noticed, stepped, math.inf, math.inf)
    return Kill(victim, noticed, stepped, window(since())[0][0] - at, time.time() - at)


def holds(run: Run, plan: Path, draw: random.Random, asked: argparse.Namespace) -> bool:
    """Kill as many roles as are asked for, and hold what was trained against what was to be."""
    run.wait("a checkpoint", lambda: run.checkpoint)
    kills, usually = [], Usual()
    for _ in range(asked.kills):
        kills.append(kill := killed(run, draw, asked.role, usually))
        print(
            f"{kill.role:<14} told of after {kill.noticed:5.2f} s, a step after {kill.stepped:5.2f} s, "
            f"0.95 of the EPS from {kill.full:5.2f} s on, as known after {kill.back:5.2f} s",
            flush=True,
        )
    known = run.checkpoint
    run.wait("a last checkpoint", lambda: run.checkpoint != known)
    run.process.send_signal(signal.SIGINT)
    run.process.wait(60)
    for kind in sorted({kill.role.partition(":")[0] for kill in kills}):
        for name in ("noticed", "stepped", "full", "back"):
            seconds = [getattr(kill, name) for kill in kills if kill.role.startswith(kind)]
            within = sum(each <= _WANTED_SECONDS for each in seconds)
            print(
                f"{kind} {name}: median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s, {within} of {len(seconds)} within {_WANTED_SECONDS:.0f}"
            )
    print(
        f"undisturbed it trained {usually.eps:,.0f} examples a second; {usually.share_of_windows(_SHARE * usually.eps):.0%} of its windows of "
        f"{_WINDOW_SECONDS:g} s then had {_SHARE} of that"
    )
    off = counted(plan, run.folder) - owed(run.folder)
    again = [int(found[1]) for _, line in run.told if (found := _AGAIN.search(line))]
    lost = [int(found[1].replace(",", "")) for _, line in run.told if (found := _LOST.search(line))]
    print(
        f"{len(lost)} sparse PSs went back alone, without what they had learnt of about {sum(lost):,} examples in all"
    )
    print(
        f"{len(kills)} kills, {len(kills)} gone on by itself; {len(again)} trainers were begun again alone, and trained {sum(again)} batches again that they "
        f"had begun; by the table, {off[off > 0].sum() / _IDS_OF_A_BATCH:.1f} batches were trained twice, and {-off[off < 0].sum() / _IDS_OF_A_BATCH:.1f} not"
    )
    is_lost = -off[off < 0].sum() <= 1.5 * sum(lost) * _IDS_OF_AN_EXAMPLE
    return bool(is_lost and off[off > 0].sum() <= sum(again) * _IDS_OF_A_BATCH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--role", default="", help="whose name begins so")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint-seconds", type=float, default=5.0)
    parser.add_argument("--retry", default="alone", choices=("alone", "partial", "whole"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        plan, draw = Path(scratch) / "plan", random.Random(asked.seed)
        ledger_plan(this_machine(groups=2, trainers=2, group_ps=2, sparse_ps=2, dense_ps=1)).save(plan)
        run = Run(plan, Path(scratch) / "run", asked.checkpoint_seconds, asked.retry)
        try:
            sys.exit(not holds(run, plan, draw, asked))
        finally:
            run.process.kill()
            run.process.wait()


if __name__ == "__main__":
    main()
