"""Ports against raw pyzmq with the same frames: throughput, latency, and CPU per message.

    python tools/bench/port.py [--runs 5]

Throughput: one tensor per message from another process, over sockets of a folder (ipc, as of a local run), over TCP loopback, and
over that encrypted, as between hosts (keyed).
Latency: a 64-float tensor goes there and back between two threads (inproc) and two processes. CPU: one thread sends and receives a
message with four small tensors (inproc).
Runs of htrain and pyzmq alternate; a line gives htrain's median, its spread over the runs, and pyzmq's median beside it.
"""

import argparse
import multiprocessing
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import zmq

from htrain.executor.engine.context import Context
from htrain.executor.host.sockets import sockets_folder
from htrain.executor.transport.port import Keys, Network, new_token
from htrain.executor.transport.wire import Values, bundle_of, encode

SIZES = {"1 kB": 1 << 10, "64 kB": 64 << 10, "1 MB": 1 << 20, "16 MB": 16 << 20}
RUN_BYTES = 256 << 20
MAX_MESSAGES = 10_000
ROUND_TRIPS = 2_000
CPU_MESSAGES = 20_000
STOP = 0
WAIT_SECONDS = 60.0


class Line(Protocol):
    """A way to send messages of some tensors to one peer, and to receive from it: `receive` returns the tensors' bytes."""

    address: str

    def connect(self, address: str) -> None: ...
    def send(self, tensors: list[torch.Tensor]) -> None: ...
    def receive(self) -> int: ...
    def close(self) -> None: ...


class PortLine:
    """Through htrain's ports."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._inbox = network.inbox("trainer:0:0/0")
        self.address = self._inbox.address

    def connect(self, address: str) -> None:
        self._outbox = self._network.outbox({"group_ps:0:0": address})

    def send(self, tensors: list[torch.Tensor]) -> None:
        values = Values("trainer:0:0/0", Context(0, 0, 0, 1), 128)
        self._outbox.send_values("group_ps:0:0", values, [f"blob_{i}" for i in range(len(tensors))], tensors)

    def receive(self) -> int:
        got = self._inbox.receive(WAIT_SECONDS)
        if got is None:
            raise SystemExit("nothing came")
        return sum(tensor.nbytes for tensor in got[1].values())

    def close(self) -> None:
        self._outbox.close()
        self._inbox.close()


class RawLine:
    """The same frames through pyzmq, made once per job and not decoded."""

    def __init__(self, network: Network) -> None:
        self._context = network.context
        self._pull = self._context.socket(zmq.PULL)
        self._pull.set(zmq.RCVHWM, 0)
        self._keys = network.keys
        if self._keys:
            self._pull.curve_server, self._pull.curve_secretkey = True, self._keys.secret
        places = {"tcp": f"tcp://{network.host}:*", "ipc": f"ipc://{network.folder}/raw"}
        self._pull.bind(places.get(network.scheme, f"inproc://raw-{id(self)}"))
        self.address = self._pull.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._tensors: list[torch.Tensor] = []
        self._frames: list[bytes | memoryview] = []

    def connect(self, address: str) -> None:
        self._push = self._context.socket(zmq.PUSH)
        self._push.set(zmq.SNDHWM, 0)
        if self._keys:
            self._push.curve_serverkey, (self._push.curve_publickey, self._push.curve_secretkey) = (
                self._keys.public,
                self._keys,
            )
        self._push.connect(address)

    def send(self, tensors: list[torch.Tensor]) -> None:
        if tensors is not self._tensors:
            self._tensors = tensors
            self._frames = encode(
                Values("trainer:0:0/0", Context(0, 0, 0, 1), 128),
                bundle_of([f"blob_{i}" for i in range(len(tensors))], tensors),
            )
        self._push.send_multipart(self._frames, copy=False)

    def receive(self) -> int:
        return sum(len(frame) for frame in self._pull.recv_multipart(copy=False)[1:])

    def close(self) -> None:
        self._push.close(linger=0)
        self._pull.close(linger=0)


LINES: dict[str, Callable[[Network], Line]] = {"htrain": PortLine, "pyzmq": RawLine}


@dataclass(frozen=True)
class Job:
    """What the peer is to do: send `count` messages of `num_bytes`, or send back as many as it gets."""

    kind: str
    count: int
    num_bytes: int
    echo: bool


def tensor_of(num_bytes: int) -> list[torch.Tensor]:
    return [torch.ones(num_bytes // 4)]


def serve(line: Line, job: Job) -> None:
    """The peer's part of a job."""
    tensors = tensor_of(job.num_bytes)
    for _ in range(job.count):
        if job.echo:
            line.receive()
        line.send(tensors)


def new_network(scheme: str, keys: Keys, token: bytes) -> Network:
    """`keyed` is TCP, encrypted as between hosts."""
    if scheme == "keyed":
        return Network("tcp", keys=keys, token=token)
    return Network(scheme, folder=sockets_folder() if scheme == "ipc" else None, token=token)


def close(network: Network) -> None:
    network.close()
    if network.folder:
        shutil.rmtree(network.folder)


def peer(pipe: "multiprocessing.connection.Connection", scheme: str, keys: Keys, token: bytes) -> None:
    """The other process: one line of each kind, and jobs until told to stop."""
    network = new_network(scheme, keys, token)
    lines = {kind: make(network) for kind, make in LINES.items()}
    pipe.send({kind: line.address for kind, line in lines.items()})
    for kind, address in pipe.recv().items():
        lines[kind].connect(address)
    while (job := pipe.recv()) != STOP:
        serve(lines[job.kind], job)
        pipe.send(STOP)
    close(network)


class OtherProcess:
    """Lines to a process of its own."""

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        keys, token = Keys.new(), new_token()
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=peer, args=(theirs, scheme, keys, token), daemon=True)
        self._process.start()
        self._network = new_network(scheme, keys, token)
        self.lines = {kind: make(self._network) for kind, make in LINES.items()}
        addresses = self._pipe.recv()
        self._pipe.send({kind: line.address for kind, line in self.lines.items()})
        for kind, line in self.lines.items():
            line.connect(addresses[kind])

    def run(self, job: Job) -> list[float]:
        """Seconds of each round trip; of the whole job when the peer only sends."""
        self._pipe.send(job)
        seconds = our_part(self.lines[job.kind], job)
        self._pipe.recv()
        return seconds

    def close(self) -> None:
        self._pipe.send(STOP)
        self._process.join(10)
        close(self._network)


class OtherThread:
    """Lines over inproc to a thread."""

    def __init__(self) -> None:
        self._network = Network("inproc")
        self.lines = {kind: make(self._network) for kind, make in LINES.items()}
        self._theirs = {kind: make(self._network) for kind, make in LINES.items()}
        for kind, line in self.lines.items():
            line.connect(self._theirs[kind].address)
            self._theirs[kind].connect(line.address)

    def run(self, job: Job) -> list[float]:
        thread = threading.Thread(target=serve, args=(self._theirs[job.kind], job))
        thread.start()
        seconds = our_part(self.lines[job.kind], job)
        thread.join()
        return seconds

    def close(self) -> None:
        self._network.close()


def our_part(line: Line, job: Job) -> list[float]:
    tensors = tensor_of(job.num_bytes)
    seconds = []
    num_bytes = 0
    began = time.perf_counter()
    for _ in range(job.count):
        if job.echo:
            start = time.perf_counter()
            line.send(tensors)
            num_bytes += line.receive()
            seconds.append(time.perf_counter() - start)
        else:
            num_bytes += line.receive()
    whole = time.perf_counter() - began
    if num_bytes != job.count * job.num_bytes:
        raise SystemExit(f"{job}: {num_bytes} bytes of tensors came, not {job.count * job.num_bytes}")
    return seconds if job.echo else [whole]


def alternate(runs: int, measure: Callable[[str], float]) -> dict[str, list[float]]:
    """`runs` measurements of each kind, in turn, after one of each that does not count."""
    for kind in LINES:
        measure(kind)
    found: dict[str, list[float]] = {kind: [] for kind in LINES}
    for _ in range(runs):
        for kind in LINES:
            found[kind].append(measure(kind))
    return found


def spread(values: list[float]) -> str:
    median = statistics.median(values)
    return f"+-{50 * (max(values) - min(values)) / median:.0f} %"


def print_throughput(other: OtherProcess, label: str, num_bytes: int, runs: int) -> None:
    count = min(MAX_MESSAGES, RUN_BYTES // num_bytes)
    found = alternate(runs, lambda kind: count / other.run(Job(kind, count, num_bytes, echo=False))[0])
    ours, raw = statistics.median(found["htrain"]), statistics.median(found["pyzmq"])
    megabytes = num_bytes / 1e6
    print(
        f"{other.scheme} {label:>5}  {ours:9,.0f} messages/s  {ours * megabytes:7,.0f} MB/s {spread(found['htrain'])} (n={runs})   "
        f"pyzmq {raw:9,.0f} messages/s {raw * megabytes:7,.0f} MB/s {spread(found['pyzmq'])}   ratio {ours / raw:.2f}"
    )


def print_latency(other: OtherProcess | OtherThread, label: str, runs: int) -> None:
    tails: dict[str, list[float]] = {kind: [] for kind in LINES}

    def measure(kind: str) -> float:
        seconds = sorted(other.run(Job(kind, ROUND_TRIPS, 256, echo=True)))
        tails[kind].append(seconds[len(seconds) * 99 // 100])
        return statistics.median(seconds)

    found = alternate(runs, measure)
    text = {
        kind: f"{1e6 * statistics.median(found[kind]):6.0f} us (99th percentile {1e6 * statistics.median(tails[kind]):.0f})"
        for kind in LINES
    }
    print(f"round trip, {label}  {text['htrain']} {spread(found['htrain'])} (n={runs})   pyzmq {text['pyzmq']}")


def print_cpu(runs: int) -> None:
    network = Network("inproc")
    lines = {kind: make(network) for kind, make in LINES.items()}
    for line in lines.values():
        line.connect(line.address)
    tensors = [torch.ones(16, 16) for _ in range(4)]

    def measure(kind: str) -> float:
        line = lines[kind]
        began = time.process_time()
        for _ in range(CPU_MESSAGES):
            line.send(tensors)
            line.receive()
        return (time.process_time() - began) / CPU_MESSAGES

    found = alternate(runs, measure)
    ours, raw = (1e6 * statistics.median(found[kind]) for kind in ("htrain", "pyzmq"))
    print(
        f"send + receive of 4 tensors of 1 kB  {ours:5.1f} CPU us {spread(found['htrain'])} (n={runs})   "
        f"pyzmq {raw:.1f} CPU us   {CPU_MESSAGES} messages"
    )
    network.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Ports against raw pyzmq.")
    parser.add_argument("--runs", type=int, default=5, help="runs of each side (default 5)")
    runs = parser.parse_args().runs
    print(f"{os.cpu_count()} cores, libzmq {zmq.zmq_version()}, pyzmq {zmq.__version__}, one I/O thread per process")
    print_cpu(runs)
    others: dict[str, Callable[[], OtherThread | OtherProcess]] = {
        "two threads (inproc)": OtherThread,
        "two processes (ipc) ": lambda: OtherProcess("ipc"),
        "two processes (tcp) ": lambda: OtherProcess("tcp"),
        "two processes (keyed)": lambda: OtherProcess("keyed"),
    }
    for label, make in others.items():
        other = make()
        print_latency(other, label, runs)
        if isinstance(other, OtherProcess):
            for size, num_bytes in SIZES.items():
                print_throughput(other, size, num_bytes, runs)
        other.close()


if __name__ == "__main__":
    main()
