"""A PS whose weights rounds have to themselves: a pass is counted before its trainer hears that it is over."""

import time
from collections.abc import Iterator

import pytest
import torch

from htrain.executor.engine.context import Context
from htrain.executor.engine.engine import Engine
from htrain.executor.engine.program import build_program
from htrain.executor.host.patience import Patience
from htrain.executor.host.watch import Watch
from htrain.executor.loops.server import Server
from htrain.executor.roles.server import ServerMachine
from htrain.executor.transport.port import Network
from htrain.executor.transport.wire import Values
from htrain.net.net import Blob, Net, Op

TRAINER = "trainer:0:0/0"


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network("inproc")
    yield made
    made.close()


def answering() -> Net:
    """y = relu(x): x comes from the trainer, y goes back to it."""
    ops = (
        Op("Recv", (), ("x",), {"peer": "trainer", "message": 0}, node_name="group_ps:0"),
        Op("Relu", ("x",), ("y",), node_name="group_ps:0"),
        Op("Send", ("y",), (), {"peer": "trainer", "message": 1}, node_name="group_ps:0"),
    )
    return Net("answering", ops, (), (), {name: Blob(name, (2,), "float32") for name in ("x", "y")}, {})


@pytest.mark.parametrize("workers", [1, 2])
def test_a_pass_is_counted_before_its_trainer_hears_of_its_end(network: Network, workers: int) -> None:
    """However long counting takes: a trainer that comes to rest with an answer, and a pause behind it, find the round of its step due."""
    engine = Engine(build_program(answering(), {}))
    machine = ServerMachine(engine, centers={}, apart=engine, bound=0, trainers=1)
    server = Server("group_ps:0:0", network, machine, workers=workers, watch=Watch(Patience(20.0, 20.0)), is_held=True)
    counted: list[int] = []

    def count(passes: int) -> None:
        time.sleep(0.2)
        counted.append(passes)

    server.on_step = count
    trainer = network.inbox(TRAINER)
    book = {inbox.name: inbox.address for inbox in (server.inbox, trainer)}
    server.start(book)
    outbox = network.outbox(book)
    for step in (1, 2):
        values = Values(TRAINER, Context(0, 0, 0, step), 2)
        outbox.send_values("group_ps:0:0", values, ["x"], [torch.tensor([-1.0, 2.0])])
        got = trainer.receive(20.0)
        assert got is not None
        assert counted[-1:] == [step]
        assert torch.equal(got[1]["y"], torch.tensor([0.0, 2.0]))
    server.stop()
    outbox.close()
    trainer.close()
    assert counted == [1, 2]
