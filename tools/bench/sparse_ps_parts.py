"""The processes of tools/bench/sparse_ps.py: the real sparse PS, a bare pyzmq server of the same frames, and the client that plays all others.

    sparse_ps_parts.py serve|echo|drive PLAN HOST WORKERS IDS

Each answers a line of JSON for each line of JSON that it is told, and ends with the last.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import torch
import zmq

from htrain.executor.engine.context import Context
from htrain.executor.host.memory import keep_pages
from htrain.executor.launch.role import RunningRole
from htrain.executor.roles.endpoints import endpoint_of
from htrain.executor.settings import RunSettings
from htrain.executor.transport.port import Network
from htrain.executor.transport.wire import Values, bundle_of, encode
from htrain.ops import OPS
from htrain.ops.bundle import DTYPES
from htrain.plan.plan import Plan, load_plan

SPARSE, GROUP, TRAINER = "sparse_ps:0", "group_ps:0", "trainer"
DIFFERENT_STEPS = 8
TOKEN = bytes(16)  # of a run that is not one: both ends know it
WAIT_MILLISECONDS = 60_000


def sent(plan: Plan, source: str, target: str) -> list[str]:
    """The blobs that one device sends another, in their order on the wire."""
    return [op.inputs[0] for op in plan.net_of(source).ops if op.type == "Send" and op.attrs["peer"] == target]


def drawn(plan: Plan, names: Sequence[str], ids: int, seed: int) -> list[torch.Tensor]:
    """Tensors as they travel: so many distinct ids of each table; rows and gradients small, or any bytes."""
    generator = torch.Generator().manual_seed(seed)
    tables, blobs = [p for p in plan.nets["train"].parameters.values() if p.kind == "table"], plan.nets["train"].blobs
    made = []
    for name in names:
        shape = [d if isinstance(d, int) else d.at(ids) for d in blobs[name].shape]
        if blobs[name].dtype == "int64":
            value = torch.randperm(tables[0].shape[0], generator=generator)[: shape[0]]
        else:
            value = torch.rand(shape, generator=generator).mul_(1e-3).to(DTYPES[blobs[name].dtype])
        made.append(value)
    return made


def frames_of(plan: Plan, names: Sequence[str], ids: int, seed: int) -> list[Any]:
    """Such tensors as frames, without a header."""
    return encode(Values("", Context(0, 0, 0, 0), 0), bundle_of(names, drawn(plan, names, ids, seed)))[1:]


def tell(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def hear() -> dict[str, Any]:
    return json.loads(sys.stdin.readline() or "{}")


def usage() -> dict[str, float]:
    process = psutil.Process()
    times = process.cpu_times()
    return {"cpu": times.user + times.system, "memory": process.memory_info().rss}


def serve(plan: Plan, folder: Path, host: str, workers: int) -> None:
    """The sparse PS, as htrain.executor.launch.play has it."""
    torch.set_grad_enabled(False)
    keep_pages()
    network = Network("tcp", host, token=TOKEN)
    role = RunningRole(SPARSE, plan, RunSettings(folder, "synthetic:", folder / "run", workers=workers), network)
    OPS["NormalFill"].kernel(
        torch.empty(1, 1), seed=0, first_row=0, mean=0.0, std=1.0
    )  # Numba imports itself at its first loop
    bare = usage()["memory"]
    role.fill()
    stored = sum(tensor.nbytes for tensor in role.store.values())
    tell(address=role.endpoints[SPARSE], bare=bare, filled=usage()["memory"], stored=stored)
    role.start(hear()["book"])
    while hear():
        tell(**usage(), error=str(role.error or ""))
    role.stop()


def echo(plan: Plan, host: str, ids: int) -> None:
    """The same number of frames of the same sizes; their header is the client's own, which tells it the step."""
    keep_pages()
    context = zmq.Context(io_threads=1)
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.set(zmq.RCVHWM, 0)
    push.set(zmq.SNDHWM, 0)
    pull.bind(f"tcp://{host}:*")
    tell(address=pull.get_string(zmq.LAST_ENDPOINT))
    push.connect(hear()["book"][GROUP])
    rows, asks = (
        frames_of(plan, sent(plan, source, target), ids, 0) for source, target in ((SPARSE, GROUP), (TRAINER, SPARSE))
    )
    asked = sum(map(len, asks))
    poller = zmq.Poller()
    poller.register(pull, zmq.POLLIN)
    poller.register(sys.stdin, zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if pull in ready:
            head, *frames = pull.recv_multipart(copy=False)
            answer = rows if sum(map(len, frames)) == asked else [b""]
            push.send_multipart([head, *answer], copy=False)
        elif not hear():
            return
        else:
            tell(**usage(), error="")


class Client:
    """All other roles, on one socket each way. It reads headers and counts bytes."""

    def __init__(self, plan: Plan, host: str, ids: int) -> None:
        self._plan, self._ids = plan, ids
        self._context = zmq.Context(io_threads=1)
        self._pull, self._push = self._context.socket(zmq.PULL), self._context.socket(zmq.PUSH)
        self._pull.set(zmq.RCVHWM, 0)
        self._pull.set(zmq.RCVTIMEO, WAIT_MILLISECONDS)
        self._pull.bind(f"tcp://{host}:*")
        self._push.set(zmq.SNDHWM, 0)
        self.address = self._pull.get_string(zmq.LAST_ENDPOINT)
        self._asks, self._pushes = (self._messages(source) for source in (TRAINER, GROUP))
        self._step = 0

    def _messages(self, source: str) -> list[tuple[Values, list[Any]]]:
        """What a device sends in different steps: the header without its context, and the frames."""
        names, made = sent(self._plan, source, SPARSE), []
        for seed in range(DIFFERENT_STEPS):
            header = Values(source, Context(0, 0, 0, 0), self._plan.options.batch_size)
            made.append((header, encode(header, bundle_of(names, drawn(self._plan, names, self._ids, seed)))[1:]))
        return made

    def connect(self, address: str) -> None:
        self._push.connect(address)

    def _send(self, messages: list[tuple[Values, list[Any]]], context: Context) -> None:
        header, frames = messages[context.step % DIFFERENT_STEPS]
        header.context = context
        self._push.send_multipart([TOKEN + encode(header)[0], *frames], copy=False)

    def run(self, steps: int, open_steps: int) -> dict[str, float]:
        """Seconds and bytes of `steps` steps, from the end of one to that of another, while `open_steps` are always under way."""
        last = self._step + steps + 2 * open_steps  # some before counting begins, and some after it ends
        for _ in range(open_steps):
            self._begin()
        ended = received = 0
        marks = {}
        while ended < steps + 2 * open_steps:
            head, *frames = self._pull.recv_multipart(copy=False)
            context = msgspec.msgpack.decode(head.buffer[len(TOKEN) :], type=Values).context
            arrived = sum(map(len, frames))
            received += arrived
            if arrived:
                self._send(self._pushes, context)
                continue
            ended += 1
            marks[ended] = time.perf_counter(), received
            if self._step < last:
                self._begin()
        (began, before), (stopped, after) = marks[open_steps], marks[open_steps + steps]
        sent_bytes = sum(len(frame) for messages in (self._asks, self._pushes) for frame in messages[0][1])
        return {"seconds": stopped - began, "sent": steps * sent_bytes, "received": after - before}

    def _begin(self) -> None:
        self._send(self._asks, Context(0, 0, 0, self._step))
        self._step += 1


def drive(plan: Plan, host: str, ids: int) -> None:
    keep_pages()
    client = Client(plan, host, ids)
    tell(
        book=dict.fromkeys(
            (GROUP, endpoint_of(GROUP, Context(0, 0, 0, 0)), endpoint_of(TRAINER, Context(0, 0, 0, 0))), client.address
        )
    )
    client.connect(hear()["address"])
    while words := hear():
        tell(**client.run(words["steps"], words["open_steps"]), **usage())


def main() -> None:
    part, folder, host, workers, ids = sys.argv[1:]
    plan = load_plan(Path(folder))
    if part == "serve":
        serve(plan, Path(folder), host, int(workers))
    elif part == "echo":
        echo(plan, host, int(ids))
    else:
        drive(plan, host, int(ids))


if __name__ == "__main__":
    main()
