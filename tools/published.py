"""What publishing costs a run, and what readers see of it (docs/how-to/publish.md).

    python tools/published.py --pairs 3 --seconds 60 --every 20        # versions to an S3 server on this machine, or --folder
    python tools/published.py --pairs 1 --seconds 90 --away 60         # which is away for a minute in the middle

Two groups with two sparse PSs and a dense PS train on Zipf ids, in pairs of runs of about the same length: without versions, and with. Prints examples and
CPU seconds of each, the sizes of versions, and for a reader that is killed and begun anew at random whether all that it read was whole.
The server is moto's (of the dev extra), on the same cores as the run, which pay for it: it holds all objects in its memory.
"""

import argparse
import json
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import htrain
from htrain.publishing.fingerprints import fingerprints_of
from htrain.sizes import memory_text
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options

PORT, BUCKET = 5873, "models"
SERVER = (
    "import sys, time; from moto.server import ThreadedMotoServer; "
    "s = ThreadedMotoServer(ip_address='127.0.0.1', port={port}, verbose=False); s.start(); "
    "import boto3; boto3.client('s3', endpoint_url='http://127.0.0.1:{port}').create_bucket(Bucket='{bucket}'); "
    "print('up', flush=True); time.sleep(1e6)"
)
READER = (
    "import sys, time, torch, htrain\n"
    "model = htrain.Published(sys.argv[1])\n"
    "while True:\n"
    "    if model.refresh():\n"
    "        assert all(bool(torch.isfinite(t).all()) for t in model.parameters.values())\n"
    "        print('read', model.version.number, model.version.examples, flush=True)\n"
    "    time.sleep(0.5)\n"
)


def fingerprint_rate() -> float:
    """Bytes per second of rows of 64 bytes, by one thread: the median of 5."""
    rows = torch.randn(2_000_000, 16)
    fingerprints_of(rows[:8])  # compiled
    rates = []
    for _ in range(5):
        began = time.thread_time()
        fingerprints_of(rows)
        rates.append(rows.nbytes / (time.thread_time() - began))
    return statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="that a run trains, about")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two versions")
    parser.add_argument("--full-every", type=int, default=12)
    parser.add_argument("--away", type=float, default=0.0, help="seconds for which the server does not answer")
    parser.add_argument("--folder", action="store_true", help="versions to a folder, without a server")
    parser.add_argument("--no-readers", action="store_true", help="nobody reads, on these cores, what is published")
    parser.add_argument("--zipf", type=float, default=1.05, help="exponent of the ids")
    parser.add_argument("--table-rows", type=int, default=100_000, help="of each of 26 tables of 16 columns")
    asked = parser.parse_args()
    print(f"fingerprints of rows of 64 bytes: {fingerprint_rate() / 1e9:.1f} GB/s by one thread")
    os.environ.update(
        {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{PORT}"}
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        measure(Path(scratch), asked)


def measure(scratch: Path, asked: argparse.Namespace) -> None:
    data = f"synthetic:?rows=1000000000&table_rows={asked.table_rows}&zipf={asked.zipf}"
    cluster = this_machine(groups=2, trainers=1, group_ps=1, sparse_ps=2, dense_ps=1)
    model = str(Path(__file__).parent.parent / "models" / "dlrm.py")
    htrain.compile(model, data=data, cluster=cluster, options=Options(batch_size=512)).save(scratch / "plan")
    ratios, costs = [], []
    for pair in range(asked.pairs):
        eps, cpu, _ = run(scratch, f"{pair}-alone", data, asked.seconds, [])
        with server(asked) as process:
            address = str(scratch / f"store-{pair}") if asked.folder else f"s3://{BUCKET}/{pair}"
            flags = [
                "--publish",
                address,
                "--publish-every",
                f"{asked.every}s",
                "--publish-full-every",
                str(asked.full_every),
            ]
            reading = None if asked.no_readers else Reading(address)
            away = threading.Timer(asked.seconds / 4, leave, (process, asked.away))
            if process and asked.away:
                away.start()
            other, other_cpu, said = run(scratch, f"{pair}-published", data, asked.seconds, flags)
            away.cancel()
            reads = reading.end() if reading else "nobody reads"
        ratios.append(other / eps)
        costs.append(other_cpu / cpu)
        print(
            f"pair {pair}: {eps:,.0f} EPS alone, {other:,.0f} with versions: {other / eps:.3f}; CPU {other_cpu / cpu:.3f}"
        )
        report(said, reads)
    print(
        f"median of {asked.pairs}: {statistics.median(ratios):.3f} of the EPS, {statistics.median(costs):.3f} of the CPU seconds of an example"
    )


def run(scratch: Path, name: str, data: str, seconds: float, flags: list[str]) -> tuple[float, float, str]:
    """EPS and CPU seconds of an example between the first second and the end, and what the run has said. It is stopped as by Ctrl-C."""
    folder = scratch / name
    command = [
        sys.executable,
        "-m",
        "htrain",
        "run",
        str(scratch / "plan"),
        "--data",
        data,
        "--out",
        str(folder),
        "--checkpoint-seconds",
        "end",
        *flags,
    ]
    with (scratch / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        while not (folder / "metrics.jsonl").exists():
            assert process.poll() is None, (scratch / f"{name}.log").read_text()
            time.sleep(0.1)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        process.wait(120)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    totals = [record for record in records if record["role"] == "run" and record["seconds"] > 2]
    cpu = {}
    for record in records:
        if record["role"] != "run":
            cpu[record["role"]] = record.get("cpu_seconds", 0.0)
    first, last = totals[0], totals[-2]
    eps = (last["examples"] - first["examples"]) / (last["seconds"] - first["seconds"])
    return eps, sum(cpu.values()) / last["examples"], (scratch / f"{name}.log").read_text()


@contextmanager
def server(asked: argparse.Namespace) -> Iterator[subprocess.Popen[str] | None]:
    """An S3-compatible server with an empty bucket."""
    if asked.folder:
        yield None
        return
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER.format(port=PORT, bucket=BUCKET)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "up\n", "the server has not come up"
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def leave(process: subprocess.Popen[str], seconds: float) -> None:
    """Have the server not answer for a while."""
    process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    process.send_signal(signal.SIGCONT)


class Reading:
    """Readers of an address, one after another, each killed after a while."""

    def __init__(self, address: str) -> None:
        self._address, self._ends, self._seen = address, threading.Event(), [""]
        self.killed = self.failed = 0
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        draw = random.Random(0)
        while not self._ends.is_set():
            reader = subprocess.Popen(
                [sys.executable, "-c", READER, self._address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            self._ends.wait(draw.uniform(5, 25))
            self.failed += reader.poll() is not None
            reader.kill()
            out, error = reader.communicate()
            self._seen += [*out.splitlines(), *([error.splitlines()[-1]] if error else [])]
            self.killed += 1

    def end(self) -> str:
        self._ends.set()
        self._thread.join()
        reads = [line for line in self._seen if line.startswith("read")]
        others = {line for line in self._seen if line and not line.startswith("read")}
        return f"{self.killed} readers killed, {len(reads)} versions read whole, {self.failed} readers ended by themselves {sorted(others) or ''}"


def report(said: str, reads: str) -> None:
    """The sizes of versions, and what a run said of those that could not be."""
    sizes: dict[str, list[float]] = {"all rows": [], "on top": []}
    for kind, size, unit in re.findall(r"published version .*?: (all rows|on top)[^,]*, ([\d.,]+) (\w+) in", said):
        sizes[kind].append(float(size.replace(",", "")) * {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit])
    full, deltas = sizes["all rows"], sizes["on top"]
    text = f"  {len(full)} full versions"
    if full and deltas:
        median = statistics.median(deltas)
        text += f" of {memory_text(statistics.median(full))}, {len(deltas)} others of {memory_text(median)}: {median / statistics.median(full):.3f}"
    print(text)
    print(f"  {reads}")
    for line in said.splitlines():
        if "not published" in line:
            print(f"  {line.strip()[:200]}")


if __name__ == "__main__":
    main()
