"""What a run makes of links between its hosts that break: one line for each fault (docs/decisions/sessions.md).

    python tools/links.py                                  # all of them, about seven minutes
    python tools/links.py --faults resets --seconds 60

Seven roles on four hosts and the launcher on a fifth, namespaces of this machine on links of 1 Gbit/s, train a model that counts (tests/support/ledger.py).

    resets   two connections a second, of any host, are reset
    loss     1 % of all packets are dropped, where the kernel can
    cut      a host's link is down for 10 s, and of another for 60 s
    stop     a role is stopped for 30 s (SIGSTOP)

Prints examples a second before, during and after a fault, how often the run began again from a checkpoint, and how many rows of the table are off. Needs root
and a kernel that ends connections for `ss -K`.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from ledger import DATA, counted, ledger_plan, owed
from netlab import Lab, unwind_when_ended

from htrain.executor.record.kept import find_checkpoints
from htrain.spec.cluster import this_machine

_ROLES = (
    ("trainer:0:0", "group_ps:0:0"),
    ("trainer:1:0", "group_ps:1:0"),
    ("sparse_ps:0",),
    ("sparse_ps:1", "dense_ps:0"),
)
_USUAL_SECONDS = 10.0
_SETTLE_SECONDS = 180.0  # that a run may take until it trains again


class Run:
    """A run of agents in a lab, until it is told to stop."""

    def __init__(self, lab: Lab, plan: Path, folder: Path, liveness: float) -> None:
        self.lab, self.folder = lab, folder
        self.told: list[str] = []
        secret = folder.with_name("secret")
        secret.write_text(os.urandom(32).hex())
        secret.chmod(0o600)
        launcher, *others = lab.hosts
        where = ["--listen", "eth0:7070", "--secret", str(secret), "--out", str(folder), "--epochs", "1000000000"]
        often = ["--checkpoint-seconds", "5", "--liveness-seconds", str(liveness), "--retries", "20"]
        self.launcher = _on(launcher, "run", str(plan), "--data", DATA, *where, *often)
        self.agents = [
            _on(host, "role", *roles, "--launcher", "10.77.0.1:7070", "--secret", str(secret))
            for host, roles in zip(others, _ROLES, strict=True)
        ]
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.launcher.stderr
        for line in self.launcher.stderr:
            self.told.append(line.rstrip())

    @property
    def retries(self) -> int:
        return sum("the run goes on" in line for line in self.told)

    def examples(self) -> int:
        """Those that have been trained so far, as the run reports it."""
        log = self.folder / "metrics.jsonl"
        lines = log.read_text().rpartition("\n")[0].splitlines() if log.exists() else []
        found = [json.loads(line)["examples"] for line in lines[-200:] if '"role": "run"' in line]
        return int(found[-1]) if found else 0

    def wait(self, what: str, happened: Callable[[], bool], seconds: float = _SETTLE_SECONDS) -> None:
        """Until something has happened. Exits where it does not, or the run ends."""
        end = time.monotonic() + seconds
        while not happened():
            if self.launcher.poll() is not None or time.monotonic() > end:
                sys.exit(f"{what}: not within {seconds:.0f} s; the run says: {self.told[-3:]}")
            time.sleep(0.1)

    def eps(self, seconds: float) -> float:
        """Examples a second of so many seconds from now on."""
        before, at = self.examples(), time.monotonic()
        time.sleep(seconds)
        return (self.examples() - before) / (time.monotonic() - at)

    def settle(self) -> None:
        """Wait until it trains."""
        before = self.examples()
        self.wait("a step", lambda: self.examples() > before)

    def stop(self) -> None:
        """End it with a checkpoint."""
        self.launcher.send_signal(signal.SIGINT)
        self.launcher.wait(60)
        for each in self.agents:
            each.wait(30)

    def kill(self) -> None:
        for each in (self.launcher, *self.agents):
            if each.poll() is None:
                each.kill()
            each.wait()


def _on(host: str, *words: str) -> subprocess.Popen[str]:
    command = ["ip", "netns", "exec", host, sys.executable, "-m", "htrain", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


# -- faults ----------------------------------------------------------------------------------------------------------


@contextmanager
def _resets(run: Run, draw: random.Random) -> Iterator[list[str]]:
    over, seen = threading.Event(), [0]

    def disturb() -> None:
        while not over.wait(0.5):
            host = draw.choice(run.lab.hosts)
            inside = ["ip", "netns", "exec", host, "ss"]
            listed = subprocess.run([*inside, "-Htn", "state", "established"], capture_output=True, text=True)
            pairs = [line.split()[2:4] for line in listed.stdout.splitlines()]
            if pairs:
                source, target = draw.choice(pairs)
                subprocess.run([*inside, "-K", "src", source, "dst", target], capture_output=True)
                seen[0] += 1

    thread = threading.Thread(target=disturb)
    thread.start()
    said: list[str] = []
    try:
        yield said
    finally:
        over.set()
        thread.join()
        said.append(f"{seen[0]} connections reset")


@contextmanager
def _loss(run: Run, draw: random.Random) -> Iterator[list[str]]:
    devices = [(host, "eth0") for host in run.lab.hosts]
    for host, device in devices:
        for words in (
            ("qdisc", "add", "dev", device, "clsact"),
            (
                "filter",
                "add",
                "dev",
                device,
                "ingress",
                "matchall",
                "action",
                "pass",
                "random",
                "netrand",
                "drop",
                "100",
            ),
        ):
            done = subprocess.run(["tc", "-n", host, *words], capture_output=True, text=True)
            if done.returncode:
                raise NotImplementedError(done.stderr.strip())
    try:
        yield []
    finally:
        for host, device in devices:
            subprocess.run(["tc", "-n", host, "qdisc", "del", "dev", device, "clsact"], capture_output=True)


def _cut(seconds: float) -> Callable[[Run, random.Random], object]:
    @contextmanager
    def cut(run: Run, draw: random.Random) -> Iterator[list[str]]:
        number = draw.randrange(1, len(run.lab.hosts))
        run.lab.set_link(number, up=False)
        time.sleep(seconds)
        run.lab.set_link(number, up=True)
        yield [f"the host of {' and '.join(_ROLES[number - 1])}"]

    return cut


@contextmanager
def _stop(run: Run, draw: random.Random) -> Iterator[list[str]]:
    places = json.loads((run.folder / "roles.json").read_text())
    victim = draw.choice(sorted(places))
    os.kill(places[victim]["pid"], signal.SIGSTOP)
    time.sleep(30)
    with suppress(ProcessLookupError):  # it was given up, and ended
        os.kill(places[victim]["pid"], signal.SIGCONT)
    yield [victim]


_FAULTS = {
    "resets": (_resets,),
    "loss": (_loss,),
    "cut": (_cut(10), _cut(60)),
    "stop": (_stop,),
}


def holds(name: str, fault: Callable[[Run, random.Random], object], asked: argparse.Namespace, scratch: Path) -> bool:
    """One fault in a run of its own; whether all was trained once."""
    draw, plan = random.Random(asked.seed), scratch / "plan"
    ledger_plan(this_machine(groups=2, trainers=1, group_ps=1, sparse_ps=2, dense_ps=1)).save(plan)
    with Lab(1 + len(_ROLES), rate="1gbit") as lab:
        run = Run(lab, plan, scratch / "run", asked.liveness)
        try:
            run.wait(
                "a checkpoint", lambda: bool(find_checkpoints(run.folder).complete) if run.folder.is_dir() else False
            )
            before = run.eps(_USUAL_SECONDS)
            began, retries = time.monotonic(), run.retries
            examples = run.examples()
            with fault(run, draw) as said:  # type: ignore[attr-defined]
                lasted = time.monotonic() - began
                if lasted < 5:  # it goes on
                    time.sleep(asked.seconds)
                during = (run.examples() - examples) / (time.monotonic() - began)
            run.settle()
            again = time.monotonic() - began
            after = run.eps(_USUAL_SECONDS)
            run.stop()
            off = int((counted(plan, run.folder) != owed(run.folder)).sum())
        except NotImplementedError as error:
            print(f"{name:<8} this kernel cannot: {error}", flush=True)
            return True
        finally:
            run.kill()
    print(
        f"{name:<8} examples/s before {before:,.0f}, during {during:,.0f} ({during / before:.0%}), after {after:,.0f} ({after / before:.0%}); "
        f"{again:.1f} s until it trained again; began again {run.retries - retries} times; rows off: {off}; {'; '.join(said)}",
        flush=True,
    )
    return off == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", nargs="+", choices=tuple(_FAULTS), default=list(_FAULTS))
    parser.add_argument("--seconds", type=float, default=60.0, help="that resets and losses last")
    parser.add_argument("--liveness", type=float, default=12.0, help="--liveness-seconds of the run")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    unwind_when_ended()
    all_hold = True
    for name in asked.faults:
        for fault in _FAULTS[name]:
            with tempfile.TemporaryDirectory() as scratch:
                all_hold &= holds(name, fault, asked, Path(scratch))
    sys.exit(not all_hold)


if __name__ == "__main__":
    main()
