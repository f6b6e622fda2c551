"""AllReduce and AllGather among trainers: the device `all_reduce`, which each trainer has beside it as a thread (HET 3, 4.1).

The trainer sends a bucket as soon as the backward pass has made it and goes on; the loop reduces buckets in the order of the net,
the same on all trainers, and sends back the sums. With the first bucket of a step travel the trainer's words on data and pause; those BEFORE the first step
travel alone.
"""

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from msgspec import structs

from htrain.errors import Error, PeerLost, RunError
from htrain.executor.host.patience import Wait
from htrain.executor.host.threads import begin_thread
from htrain.executor.transport.port import Network, Outbox
from htrain.executor.transport.wire import Values
from htrain.net.names import WORKERS
from htrain.net.net import Net
from htrain.ops import OPS
from htrain.sync.agreement import BEFORE, Verdict, Word
from htrain.sync.turns import Turns

_TAG = 0  # of all messages from trainer to trainer: they are sent in one order
STORE = "store"  # the endpoint of the first trainer at which all find each other


class Collective:
    """All trainers together, by torch.distributed's gloo over TCP; `store` is where they find each other.

    Every call is made by all of them, in one order. Raises PeerLost when one is gone, or has not come within the deadline.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, host: str, deadline_seconds: float) -> None:
        self.rank = rank
        self.size = size
        self._deadline_seconds = deadline_seconds
        gloo: Any = dist.ProcessGroupGloo  # its stubs are incomplete
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=deadline_seconds)
        with _as_peer_lost(deadline_seconds):
            self._group = gloo(store, rank, size, options)

    def all_reduce(self, flat: torch.Tensor) -> None:
        """Sum flat[n] over all trainers, in place."""
        with _as_peer_lost(self._deadline_seconds):
            self._group.allreduce([flat]).wait()

    def all_gather(self, own: torch.Tensor, sizes: Sequence[int] | None = None) -> list[torch.Tensor]:
        """Everybody's own[sizes[r],...], r the trainer's rank; alike where nobody says how long they are.

        In round d all send to the d-th behind them and receive from the d-th before: links carry both ways at once, and no two trainers send to one.
        """
        own, lengths = own.contiguous(), sizes or [len(own)] * self.size
        parts = [own if r == self.rank else own.new_empty((length, *own.shape[1:])) for r, length in enumerate(lengths)]
        with _as_peer_lost(self._deadline_seconds):
            for distance in range(1, self.size):
                source, target = (self.rank - distance) % self.size, (self.rank + distance) % self.size
                under_way = [self._group.recv([parts[source]], source, _TAG)] if parts[source].numel() else []
                under_way += [self._group.send([own], target, _TAG)] if own.numel() else []
                for each in under_way:
                    each.wait()
        return parts

    def broadcast(self, flat: torch.Tensor) -> None:
        """The first trainer's flat[n], in place of everybody's."""
        with _as_peer_lost(self._deadline_seconds):
            self._group.broadcast([flat]).wait()


class _as_peer_lost:
    """What gloo says when a peer is gone or late, in our words."""

    def __init__(self, deadline_seconds: float) -> None:
        self._deadline_seconds = deadline_seconds

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError):
            first = str(error).strip().splitlines()[0][:160]
            raise PeerLost(
                f"AllReduce did not end within {self._deadline_seconds:.0f} s, or another trainer is gone ({first})"
            ) from error


@dataclass(frozen=True)
class _Bucket:
    """What comes in with one message and goes out with another."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    mean: bool
    frees: frozenset[str]  # what no later one of a step reads


def buckets_of(net: Net) -> tuple[_Bucket, ...]:
    """The collectives of the net of `all_reduce`, in order."""
    collectives = [op for op in net.ops if OPS[op.type].place == "workers"]
    last = {name: number for number, op in enumerate(collectives) for name in op.inputs}
    return tuple(
        _Bucket(
            op.type, op.inputs, op.outputs, bool(op.attrs.get("mean")), frozenset(name for name in op.inputs if last[name] == number)
        )
        for number, op in enumerate(collectives)
    )  # fmt: skip


class CollectiveLoop:
    """The thread of one trainer's `all_reduce`. `word` says what to tell the others with a step."""

    def __init__(self, trainer: str, network: Network, net: Net, connect: "Connector") -> None:
        self.endpoint = f"{trainer}/{WORKERS}"
        self.inbox = network.inbox(self.endpoint)
        self.error: Exception | None = None
        self.bytes_reduced = 0
        self.on_change: Callable[[], None] = lambda: None  # of what `error` says, by its thread
        self.word: Callable[[int], Word] = lambda step: Word(has_data=True, wants_pause=False)
        self._network = network
        self._buckets = buckets_of(net)
        self._connect = connect
        self._verdicts: dict[int, Verdict] = {}
        self._verdict_made = threading.Condition()
        self._begins = threading.Event()  # the trainer has a word to say
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=self.endpoint, daemon=True)
        self._book: dict[str, str] = {}

    def start(self, book: dict[str, str]) -> None:
        """Reduce from now on. `book` has the addresses of all endpoints that are sent to, by name."""
        self._book = book
        self._thread.start()

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """The one that reduces."""
        return (self._thread,)

    def verdict(self, step: int, deadline_seconds: float) -> Verdict:
        """What all trainers said with a step, or BEFORE the first. Requires: `word` knows of that step. Raises PeerLost when it has not been reduced within the
        deadline."""
        self._begins.set()
        wait = Wait(deadline_seconds)
        with self._verdict_made:
            while not self._verdict_made.wait_for(lambda: step in self._verdicts or self.error, wait.until_next_look):
                if wait.is_over:
                    raise PeerLost(f"{self.endpoint}: step {step} was not reduced within {deadline_seconds:.0f} s")
            if self.error:
                raise self.error
            return self._verdicts.pop(step)

    def stop(self) -> None:
        """End the thread, in at most 10 s; buckets that wait for others are dropped."""
        self._stopping.set()
        self._begins.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=10)
        else:
            self.inbox.close()

    def _guarded(self) -> None:
        begin_thread()
        outbox = self._network.outbox(self._book)
        try:
            self._loop(self._connect(self._book, WORKERS), outbox)
        except Exception as error:
            self.error = (
                error if isinstance(error, Error) else RunError(f"{self.endpoint}: {type(error).__name__}: {error}")
            )
            with self._verdict_made:
                self._verdict_made.notify_all()
            self.on_change()
        finally:
            outbox.close()
            self.inbox.close()

    def _loop(self, collective: Collective, outbox: Outbox) -> None:
        """Buckets in the order of the net, whatever order their values come in."""
        arrived: dict[int, dict[str, torch.Tensor]] = {}
        turns = Turns([bucket.inputs for bucket in self._buckets])
        self._begins.wait()
        if not self._stopping.is_set():
            said = torch.tensor(self.word(BEFORE).numbers())
            collective.all_reduce(said)
            self._heard(BEFORE, said)
        while not self._stopping.is_set():
            got = self.inbox.receive(0.2)
            message = got[0] if got else None
            if not got or not isinstance(message, Values) or message.context.step <= turns.ended:  # a repeated message
                continue
            arrived.setdefault(message.context.step, {}).update(got[1])
            for turn in turns.came(message.context.step, list(got[1])):
                bucket = self._buckets[turn.bucket]
                values = [arrived[turn.step][name] for name in bucket.inputs]  # two tables may have one gradient
                results = self._run(collective, bucket, values, turn.step, first=turn.bucket == 0)
                answer = Values(self.endpoint, structs.replace(message.context, step=turn.step), message.batch_size)
                outbox.send_values(message.source, answer, bucket.outputs, results)
                for name in bucket.frees:
                    del arrived[turn.step][name]
            for step in [step for step in arrived if step <= turns.ended]:
                del arrived[step]

    def _run(
        self, collective: Collective, bucket: _Bucket, tensors: Sequence[torch.Tensor], step: int, *, first: bool
    ) -> list[torch.Tensor]:
        """One collective; the trainers' words go with the first of a step."""
        said = torch.tensor(self.word(step).numbers() if first else ())
        if bucket.kind == "AllGather":
            results = gathered(collective, tensors)
            if first:
                collective.all_reduce(said)
        else:
            flat = torch.cat([*(tensor.reshape(-1) for tensor in tensors), said])
            collective.all_reduce(flat)
            *parts, said = flat.split([*(tensor.numel() for tensor in tensors), said.numel()])
            results = [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
            for result in results if bucket.mean else ():
                result /= collective.size
        self.bytes_reduced += sum(tensor.nbytes for tensor in tensors)
        if first:
            self._heard(step, said)
        return results

    def _heard(self, step: int, said: torch.Tensor) -> None:
        """The sums of what all trainers say with a step."""
        with self._verdict_made:
            self._verdicts[step] = Verdict.of(*said.tolist())
            self._verdict_made.notify_all()


def gathered(collective: Collective, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """ids[u] and rows[u,D] of several tables, in turn: those of all trainers, who have different numbers of them.

    One exchange says how many, one brings all ids, and one for each width the rows.
    """
    ids, rows = tensors[::2], tensors[1::2]
    counts = torch.stack(collective.all_gather(torch.tensor([part.numel() for part in ids])))
    found: list[torch.Tensor] = [torch.empty(0)] * len(tensors)
    kinds = [[2 * table for table in range(len(ids))]]
    kinds += [
        [2 * t + 1 for t, part in enumerate(rows) if part.shape[1] == width]
        for width in sorted({r.shape[1] for r in rows})
    ]
    for places in kinds:
        lengths = counts[:, [place // 2 for place in places]]
        everybody = collective.all_gather(torch.cat([tensors[place] for place in places]), lengths.sum(1).tolist())
        parts = [whole.split(row) for whole, row in zip(everybody, lengths.tolist(), strict=True)]
        for number, place in enumerate(places):
            found[place] = torch.cat([part[number] for part in parts])
    return found


class Connector:
    """How the trainers find each other: by a store in this process, in the folder of their sockets, or at the first one's address and nowhere else.
    `endpoints` are what this trainer adds to the addresses."""

    def __init__(self, trainer: str, trainers: Sequence[str], network: Network, deadline_seconds: float) -> None:
        self._rank, self._size = trainers.index(trainer), len(trainers)
        self._name = f"{trainers[0]}/{STORE}"
        self._network = network
        self._deadline_seconds = deadline_seconds
        self._store: dist.Store | None = None
        self.endpoints: Mapping[str, str] = {}
        if network.scheme == "inproc":
            self._store = network.shared(self._name, dist.HashStore)
        elif not network.folder and self._rank == 0:
            host = network.trainers_host
            with socket.create_server((host, 0)) as listener:  # torch's own would listen on every address of this host
                port = listener.getsockname()[1]
                self._store = dist.TCPStore(
                    host, port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=deadline_seconds),
                    master_listen_fd=os.dup(listener.fileno()),
                )  # fmt: skip
            self.endpoints = {self._name: f"{host}:{port}"}

    def __call__(self, book: Mapping[str, str], purpose: str) -> Collective:
        """The trainers as a collective, when all addresses are known, for one purpose: those of two threads do not meet.

        Raises PeerLost when the trainers do not all come.
        """
        host = "127.0.0.1" if self._network.scheme == "inproc" else self._network.trainers_host
        store = dist.PrefixStore(purpose, self._client(book))
        return Collective(store, self._rank, self._size, host, self._deadline_seconds)

    def _client(self, book: Mapping[str, str]) -> dist.Store:
        """A connection to the store for one purpose: a client that waits for one thread has no ear for another."""
        timeout = timedelta(seconds=self._deadline_seconds)
        if self._network.folder:
            store = dist.FileStore(str(self._network.folder / STORE))
            store.set_timeout(timeout)
            return store
        if self._network.scheme == "inproc":
            assert self._store
            return self._store
        host, _, port = ({**book, **self.endpoints})[self._name].rpartition(":")
        with _as_peer_lost(self._deadline_seconds):
            return dist.TCPStore(host, int(port), is_master=False, timeout=timeout)
