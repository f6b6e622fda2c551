"""Caches under messages that come twice, in another order, or late (docs/guarantees.md)."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import relative_differences, run_roles, torch_losses
from small_wide_deep import BATCH, DATA, small_plan

from htrain.errors import PeerLost
from htrain.executor.engine.context import Context
from htrain.executor.launch.role import RunningRole
from htrain.executor.loops.trainer import Trainer
from htrain.executor.settings import RunSettings
from htrain.executor.transport.port import Inbox, Network, Outbox
from htrain.executor.transport.wire import Values
from htrain.ops.het import REQUEST
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.sync.het.client import HetCache
from htrain.sync.het.messages import Answer
from htrain.sync.het.server import HetServer
from htrain.sync.request import Request

LR = 0.05
HET = with_flags(
    batch_size=BATCH, cache="het", cache_staleness=4, cache_capacity="30%", sparse_optimizer="sgd", sparse_lr=LR
)


@dataclass
class Wire:
    """A sparse PS of a plan, and a worker's end of the wire to it."""

    server: RunningRole
    cache: HetCache
    outbox: Outbox
    inbox: Inbox
    asked: tuple[str, ...]
    answered: tuple[str, ...]

    def send(self, step: int, requests: list[Request]) -> None:
        tensors = [torch.from_numpy(np.ascontiguousarray(getattr(r, part))) for r in requests for part in REQUEST]
        values = Values(self.inbox.name, Context(0, 0, 0, step), 1)
        self.outbox.send_values("sparse_ps:0", values, self.asked, tensors)

    def answer(self, seconds: float = 5.0) -> tuple[int, Answer] | None:
        """The next answer, and the step that it is for."""
        got = self.inbox.receive(seconds)
        if not got or not isinstance(got[0], Values):
            return None
        return got[0].context.step, Answer(*(got[1][name].numpy() for name in self.answered))

    def rows(self, keys: np.ndarray) -> torch.Tensor:
        """The server's own rows."""
        tables = [t for name, t in self.server.store.items() if name.startswith("embeddings") and ":" not in name]
        return torch.cat(tables)[keys].clone()


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    _, plan = small_plan(with_flags(HET, cache_table=(("wide.*", "none"),)))
    plan.save(tmp_path / "plan")
    network, elsewhere = Network("inproc"), Network("inproc")
    settings = RunSettings(tmp_path / "plan", DATA, tmp_path / "run", deadline_seconds=5)
    server, trainer = (
        RunningRole("sparse_ps:0", plan, settings, network),
        RunningRole("trainer:0:0", plan, settings, elsewhere),
    )
    server.fill()
    inbox = network.inbox("trainer:0:0/0")
    book = {**server.endpoints, inbox.name: inbox.address}
    ask, pull = (next(op for op in plan.nets["train"].ops if op.type == t) for t in ("HetAsk", "HetPull"))
    server.start(book)
    outbox = network.outbox(book)
    yield Wire(server, trainer.caches[ask.inputs[0]], outbox, inbox, ask.outputs[1:], pull.outputs)
    server.stop()
    trainer.stop()
    outbox.close()
    inbox.close()
    network.close()
    elsewhere.close()


KEYS = np.arange(0, 60, 3, dtype=np.int64)


def step(wire: Wire, number: int, gradient: float) -> None:
    """A step of the worker: every row of KEYS gets the same gradient."""
    slots, requests = wire.cache.ask(KEYS)
    wire.send(number, requests)
    answer = wire.answer()
    assert answer
    assert answer[0] == number
    rows = wire.cache.read(slots, [answer[1]])
    wire.cache.write(slots, np.full_like(rows, gradient))


def test_a_repeated_request_is_not_carried_out_again(wire: Wire) -> None:
    before = wire.rows(KEYS)
    step(wire, 0, 1.0)
    flush = wire.cache.flush()
    for number in (1, 1, 0, 1):
        wire.send(number, flush)
    seen = wire.answer()
    assert seen
    assert seen[0] == 1
    assert wire.answer(0.3) is None
    torch.testing.assert_close(wire.rows(KEYS), before - LR)


def test_requests_that_overtake_each_other_are_carried_out_in_order(wire: Wire) -> None:
    """The row that step 2 fetches holds the update that step 1 has evicted, although its request came first."""
    before = wire.rows(KEYS)
    step(wire, 0, 2.0)
    flush = wire.cache.flush()
    wire.cache.read(
        np.empty(0, np.int64), [Answer(np.empty((0, 16), np.float32), np.empty(0, np.int32), np.empty(0, np.int32))]
    )
    slots, fetch = wire.cache.ask(KEYS)
    wire.send(2, fetch)
    assert wire.answer(0.3) is None
    wire.send(1, flush)
    (first, _), (second, answer) = wire.answer() or (0, None), wire.answer() or (0, None)
    assert (first, second) == (1, 2)
    assert answer
    torch.testing.assert_close(torch.from_numpy(wire.cache.read(slots, [answer])), before - LR * 2)


def trained(tmp_path: Path, options: Options, *, deadline_seconds: float = 20.0) -> tuple[Trainer, list[float]]:
    """A whole run of one worker, and PyTorch's losses."""
    model, plan = small_plan(options)
    settings = RunSettings(
        tmp_path / "plan", DATA, tmp_path / "run", deadline_seconds=deadline_seconds, warm_up_seconds=deadline_seconds
    )
    trainer = run_roles(plan, tmp_path / "plan", settings)["trainer:0:0"].trainer
    assert trainer
    return trainer, torch_losses(model, DATA, options)


@pytest.mark.parametrize("dense_sync", ["easgd", "allreduce"])
def test_a_run_in_which_every_message_comes_twice_trains_the_same(
    dense_sync: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Outbox.send_values

    def twice(self: Outbox, *arguments: object) -> None:
        send(self, *arguments)  # type: ignore[arg-type]
        send(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Outbox, "send_values", twice)
    trainer, wanted = trained(tmp_path, with_flags(HET, dense_sync=dense_sync))  # type: ignore[arg-type]
    assert max(relative_differences(trainer.losses, wanted)) < 1e-4


def test_a_server_that_answers_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pull = HetServer.pull

    def late(self: HetServer, request: Request) -> Answer:
        slept.append(0.02)
        time.sleep(0.02)
        return pull(self, request)

    slept: list[float] = []
    monkeypatch.setattr(HetServer, "pull", late)
    trainer, wanted = trained(tmp_path, with_flags(HET, prefetch=False))  # else steps hide it, slow ones all of it
    assert max(relative_differences(trainer.losses, wanted)) < 1e-4
    assert trainer.seconds_waited > sum(slept) / 4


def test_a_server_that_never_answers_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HetServer, "pull", lambda self, request: time.sleep(3.0))
    with pytest.raises(PeerLost, match="trainer:0:0/0: nothing from sparse_ps:0 for 1 s at step 0"):
        trained(tmp_path, HET, deadline_seconds=1.0)
