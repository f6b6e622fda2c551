"""AllReduce and AllGather among hosts with limited links: gloo, which htrain takes, beside MPI's own.

    python tools/bench/collectives.py [--hosts 2 3 4] [--rate 1gbit] [--runs 30]

Wants root. Hosts are namespaces (tools/netlab.py), one rank each. For each size the median of the wall seconds of a collective and the mean of rank 0's CPU
seconds; beside it what the link alone takes for a ring's bytes. MPI's requests are asked for with sleeps between, as a thread must that leaves the
core to the engine.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

from netlab import Lab, bits_per_second, unwind_when_ended

from htrain.executor.transport.collective import Collective

SIZES = (8, 40_000, 400_000, 4_000_000)
PORT = 29511


def measure(runs: int) -> None:
    """What a rank does; rank 0 prints a line for each case."""
    MPI = import_module("mpi4py.MPI")  # whose import makes a process a rank
    world = MPI.COMM_WORLD
    first = world.bcast(socket.gethostname())
    torch.set_num_threads(1)
    store = dist.TCPStore(first, PORT, is_master=world.rank == 0, wait_for_workers=False)
    gloo = Collective(store, world.rank, world.size, socket.gethostname(), 60.0)

    def wait(request: Any) -> None:
        pause = 0.0
        while not request.Test():
            time.sleep(pause)
            pause = min(pause + 2e-6, 2e-4)

    for num_bytes in SIZES:
        flat = torch.zeros(num_bytes // 4)
        everybody = np.empty((world.size, len(flat)), np.float32)
        cases: dict[str, Callable[[], object]] = {
            "gloo AllReduce": lambda flat=flat: gloo.all_reduce(flat),
            "MPI AllReduce": lambda flat=flat: wait(world.Iallreduce(MPI.IN_PLACE, flat.numpy())),
            "gloo AllGather": lambda flat=flat: gloo.all_gather(flat),
            "MPI AllGather": lambda flat=flat, everybody=everybody: wait(world.Iallgather(flat.numpy(), everybody)),
        }
        for name, case in cases.items():
            case()
            walls, begun = [], time.process_time()
            for _ in range(runs):
                now = time.perf_counter()
                case()
                walls.append(time.perf_counter() - now)
            spent = (time.process_time() - begun) / runs
            if world.rank == 0:
                print(
                    json.dumps({"case": name, "bytes": num_bytes, "wall": statistics.median(walls), "cpu": spent}),
                    flush=True,
                )
    world.Barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        measure(asked.runs)
        return
    unwind_when_ended()
    print(f"{'case':<16}{'hosts':>6}{'bytes':>11}{'wall ms':>9}{'link ms':>9}{'CPU ms':>8}")
    for hosts in asked.hosts:
        with Lab(hosts, rate=asked.rate) as lab:
            command = [sys.executable, str(Path(__file__).resolve()), "--rank", "--runs", str(asked.runs)]
            done = subprocess.run(lab.ranks(command), capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise SystemExit(done.stderr)
        for line in map(json.loads, done.stdout.splitlines()):
            travels = line["bytes"] * (hosts - 1) * (1 if line["case"].endswith("Gather") else 2 / hosts)
            ideal = 8 * travels / bits_per_second(asked.rate)
            print(
                f"{line['case']:<16}{hosts:>6}{line['bytes']:>11,}{1e3 * line['wall']:>9.2f}{1e3 * ideal:>9.2f}{1e3 * line['cpu']:>8.2f}"
            )


if __name__ == "__main__":
    main()
