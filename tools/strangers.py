"""What a run makes of strangers: each attack at a real run, and what came of it.

    python tools/strangers.py                        # all attacks: encrypted over TCP, open over TCP, and in a folder of sockets
    python tools/strangers.py --at tcp --fuzz 100000 # one of these (keyed, tcp, ipc), and then so many fuzzed messages
    python tools/strangers.py --decoder 100000       # fuzzed messages with the right token, at the decoder alone
    python tools/strangers.py --keys                 # examples a second with and without keys; --network for that of other hosts

A deterministic run of a trainer, a group PS, a sparse PS and a dense PS trains without end while strangers attack all sockets at which any of its processes
listens, attack after attack; then it is asked to stop. A line for each attack: whether the run trained on behind it, the memory of the role that has grown most
over what it had before the first attack, and messages of strangers that roles had dropped by then. Then whether the run ended as it was asked to, and whether
its loss and its parameters are, bit for bit, those of as many steps that nobody disturbed.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import psutil
import torch

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from attacks import (
    AT_CONNECTIONS,
    AT_MESSAGES,
    Act,
    addresses_of,
    attacking,
    folder_untouched,
    fuzzed,
    real_messages,
    send_fuzzed,
)
from harness import run_roles
from ledger import DATA, ledger_plan
from whole_runs import parameters

from htrain.errors import RunError
from htrain.executor.record.kept import latest_checkpoint
from htrain.executor.settings import RunSettings
from htrain.executor.transport.wire import decode
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
RANKS = "5"
SETTINGS = ("keyed", "tcp", "ipc")
SETTLE_SECONDS = 1.0  # behind an attack
WAIT_SECONDS = 120.0
BATCH = 32


def command_of(setting: str, plan: Path, folder: Path, network: str = "127.0.0.1/32") -> list[str]:
    """The command of a run without end."""
    own = [
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
    if setting == "ipc":
        return [*own, "--retries", "0"]
    if not MPIEXEC:
        sys.exit(f"{setting}: there is no mpiexec here: pip install mpich mpi4py")
    return [MPIEXEC, "-n", RANKS, *own, "--network", network, *(["--no-encrypt"] if setting == "tcp" else [])]


class Run:
    """A run without end, in a new session."""

    def __init__(
        self, setting: str, plan: Path, folder: Path, *, deterministic: bool = True, network: str = "127.0.0.1/32"
    ) -> None:
        self.folder, self.said = folder, ""
        words = [*command_of(setting, plan, folder, network), *(["--deterministic"] if deterministic else [])]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.wait_for(1)
        self.addresses = addresses_of(psutil.Process(self.process.pid))
        self.roles = {role: place["pid"] for role, place in json.loads((folder / "roles.json").read_text()).items()}

    def reports(self) -> list[dict[str, object]]:
        """The lines of its metrics."""
        log = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in log.read_text().rpartition("\n")[0].splitlines()] if log.exists() else []

    def examples(self) -> int:
        """As far as it has told."""
        return max((int(r["examples"]) for r in self.reports() if r["role"] == "run"), default=0)  # type: ignore[call-overload]

    def strangers(self) -> int:
        """Messages of theirs that roles have told of."""
        last = {str(r["role"]): int(r.get("strangers", 0)) for r in self.reports()}  # type: ignore[call-overload]
        return sum(last.values())

    def wait_for(self, examples: int) -> bool:
        """Until it has trained so many; False where it ends before, or does not."""
        end = time.monotonic() + WAIT_SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            if self.examples() >= examples:
                return True
            time.sleep(0.1)
        return False

    def memory(self) -> dict[str, int]:
        """Resident bytes of each role."""
        return {
            role: psutil.Process(pid).memory_info().rss for role, pid in self.roles.items() if psutil.pid_exists(pid)
        }

    def stop(self) -> int:
        """Ask it to stop; its exit status."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.said = self.process.communicate(timeout=WAIT_SECONDS)[1]
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.said = self.process.communicate()[1]
        return self.process.returncode


class Memory:
    """The most that each role has had since `begin`."""

    def __init__(self, run: Run) -> None:
        self.most = run.memory()
        self._run, self._stopping = run, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stopping.wait(0.05):
            for role, found in self._run.memory().items():
                self.most[role] = max(self.most.get(role, 0), found)

    def stop(self) -> dict[str, int]:
        self._stopping.set()
        self._thread.join()
        return self.most


class Attacked:
    """A run, and the memory that its roles had before the first attack."""

    def __init__(self, setting: str, plan: Plan, scratch: Path) -> None:
        self.run, self._setting, self._plan = Run(setting, scratch / "plan", scratch / setting), setting, plan
        time.sleep(5.0)  # memory of a run that has just begun still grows by itself
        self._first, self.worst = self.run.memory(), 0.0
        of_role = statistics.median(self._first.values()) / 2**20
        print(f"{setting}: {len(self.run.addresses)} sockets, a role has {of_role:.0f} MiB", flush=True)

    def by(self, name: str, act: Act) -> None:
        """Print what comes of one attack."""
        memory, before, began = Memory(self.run), self.run.examples(), time.monotonic()
        with attacking(act, self.run.addresses, self._plan):
            time.sleep(SETTLE_SECONDS)
            ratio = max(found / self._first[role] for role, found in memory.stop().items())
        self.worst = max(self.worst, ratio)
        effect = "none" if self.run.wait_for(before + 1) else "THE RUN STANDS"
        said = f"{time.monotonic() - began:5.1f} s   memory {ratio:.2f}   {self.run.strangers():>9,} dropped so far"
        print(f"{self._setting:<6} {name:<60} {effect}   {said}", flush=True)


def attacked(setting: str, plan: Plan, scratch: Path, attacks: Mapping[str, Act]) -> bool:
    """Print what comes of attacks on one run; whether nothing did."""
    tried = Attacked(setting, plan, scratch)
    run = tried.run
    try:
        for name, act in attacks.items():
            tried.by(name, act)
    finally:
        status = run.stop()
    same = status == 130 and is_undisturbed(plan, run.folder, scratch / f"{setting}-alone")
    told = next(
        (line.strip() for line in run.said.splitlines() if "strangers" in line), "no message of strangers was dropped"
    )
    ended = "stopped when asked" if status == 130 else f"ended with {status}: {run.said[-600:]}"
    alike, elsewhere = "equal" if same else "NOT EQUAL", "nothing" if folder_untouched() else "SOMETHING"
    print(f"{setting}: {ended}; memory {tried.worst:.2f}; {told}")
    print(f"{setting}: loss and parameters {alike} to those undisturbed; {elsewhere} saved elsewhere", flush=True)
    return same and folder_untouched()


def fuzz(count: int) -> Act:
    """So many fuzzed messages, as an attack."""
    return lambda addresses, plan, stack: send_fuzzed(addresses, plan, count)


def is_undisturbed(plan: Plan, run: Path, folder: Path) -> bool:
    """Whether as many steps without strangers come to the same loss and the same parameters."""
    checkpoint, manifest = latest_checkpoint(run)
    totals = manifest.trainers["trainer:0:0"].totals
    settings = RunSettings(
        folder, DATA, folder / "run", epochs=1_000_000_000, deterministic=True, stop_after_steps=totals.steps
    )
    roles = run_roles(plan, folder, settings, seconds=3600)
    trainer = roles["trainer:0:0"].trainer
    assert trainer
    held = {name: tensor for role in roles.values() for name, tensor in role.store.items()}
    found = {name.split(" ", 1)[1]: tensor for name, tensor in parameters(run).items()}
    print(
        f"  {checkpoint.name}: {totals.steps:,} steps, log loss {totals.log_loss!r}, undisturbed {trainer.totals.log_loss!r}",
        flush=True,
    )
    return trainer.totals.log_loss == totals.log_loss and all(
        torch.equal(found[name], held[name]) for name in found if name in held
    )


def at_decoder(plan: Plan, count: int) -> bool:
    """Fuzzed messages, as those of a role that has the token would be: what the decoder makes of them, and how much memory for each of their bytes."""
    read = refused = 0
    worst, other = 0.0, ""
    tracemalloc.start()
    for frames in fuzzed(real_messages(plan), count, random.randrange(2**32)):
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            decode(frames)
            read += 1
        except RunError:
            refused += 1
        except Exception as error:
            other = other or f"{type(error).__name__}: {error}"
        worst = max(worst, (tracemalloc.get_traced_memory()[1] - before) / (1000 + sum(map(len, frames))))
    print(f"decoder: {count:,} fuzzed messages: {read:,} read, {refused:,} refused, {other or 'no other error'}")
    print(f"decoder: at most {worst:.1f} times the bytes of a message, and 1000 more, were taken of memory for it")
    return not other


def print_keys(scratch: Path, seconds: float, runs: int, network: str) -> None:
    """Examples a second of runs that differ in how roles reach each other, in turn."""
    found: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    for number in range(runs):
        for setting in SETTINGS:
            run = Run(setting, scratch / "plan", scratch / f"{setting}{number}", deterministic=False, network=network)
            run.wait_for(20 * BATCH)
            begin, began = run.examples(), time.monotonic()
            time.sleep(seconds)
            found[setting].append((run.examples() - begin) / (time.monotonic() - began))
            run.stop()
    for setting, each in found.items():
        rate, base = statistics.median(each), statistics.median(found["tcp"])
        spread = 50 * (max(each) - min(each)) / rate
        print(
            f"{setting:<6} {rate:9,.0f} examples/s +-{spread:.0f} % (n={runs})   {100 * (rate / base - 1):+.1f} % of tcp without keys"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Strangers at a run.")
    parser.add_argument("--at", choices=SETTINGS, help="one kind of sockets (default: all)")
    parser.add_argument(
        "--fuzz", type=int, default=0, help="fuzzed messages behind the attacks of each run (default 0)"
    )
    parser.add_argument("--decoder", type=int, default=0, help="fuzzed messages at the decoder alone")
    parser.add_argument("--keys", action="store_true", help="examples a second with and without keys")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run of --keys (default 10)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each kind of --keys (default 3)")
    parser.add_argument("--network", default="127.0.0.1/32", help="of the hosts, for --keys (default: this host alone)")
    said = parser.parse_args()
    plan = ledger_plan(
        this_machine(groups=1, trainers=1, group_ps=1, sparse_ps=1, dense_ps=1), batch_size=BATCH, net_replicas=1
    )
    with tempfile.TemporaryDirectory() as scratch:
        plan.save(Path(scratch) / "plan")
        if said.keys:
            print_keys(Path(scratch), said.seconds, said.runs, said.network)
            return
        if said.decoder:
            sys.exit(not at_decoder(plan, said.decoder))
        attacks = {**AT_CONNECTIONS, **AT_MESSAGES}
        if said.fuzz:
            attacks[f"{said.fuzz:,} fuzzed messages"] = fuzz(said.fuzz)
        results = [attacked(setting, plan, Path(scratch), attacks) for setting in ((said.at,) if said.at else SETTINGS)]
        sys.exit(not all(results))


if __name__ == "__main__":
    main()
