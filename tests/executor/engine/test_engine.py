"""Many passes over one program: what each has received is its own, and every stage of each runs once."""

import threading

import pytest
import torch

from htrain.executor.engine.context import Context
from htrain.executor.engine.engine import Engine, Pass
from htrain.executor.engine.program import Stage, build_program
from htrain.net.net import Attr, Blob, Init, Net, Op, Parameter

SHAPE = (2,)
PEERS = ("trainer", "group_ps:1", "sparse_ps:0")


def op(type: str, inputs: tuple[str, ...], outputs: tuple[str, ...], **attrs: Attr) -> Op:
    return Op(type, inputs, outputs, attrs, "group_ps:0", "m")


def sum_of_three() -> Net:
    """total = (a + b) + c + w: a and b come with message 0, c with message 1 and d, unused, with message 2."""
    ops = (
        op("Recv", (), ("a",), peer="trainer", message=0),
        op("Recv", (), ("b",), peer="trainer", message=0),
        op("Add", ("a", "b"), ("ab",)),
        op("Recv", (), ("c",), peer="group_ps:1", message=1),
        op("Recv", (), ("d",), peer="sparse_ps:0", message=2),
        op("Add", ("ab", "c"), ("abc",)),
        op("Add", ("abc", "w"), ("total",)),
        op("Send", ("total",), (), peer="trainer", message=3),
    )
    blobs = {name: Blob(name, SHAPE, "float32") for name in ("a", "b", "c", "d", "ab", "abc", "total")}
    weight = Parameter("w", SHAPE, "float32", "weight", Init("constant", (0.0,)))
    return Net("sum", ops, (), ("total",), blobs, {"w": weight})


def engine_of(net: Net) -> Engine:
    return Engine(build_program(net, {name: torch.full(p.shape, 100.0) for name, p in net.parameters.items()}))


def pass_of(engine: Engine, step: int = 0) -> Pass:
    return engine.begin(Context(0, 0, 0, step), "trainer:0:0/0", 2, {})


def nobody(peer: str, names: tuple[str, ...], tensors: tuple[torch.Tensor, ...]) -> None:
    """Sends that nobody looks at."""


def finish(engine: Engine, state: Pass, ready: list[Stage]) -> None:
    while ready:
        ready += engine.run(state, ready.pop(), nobody)


def value(number: float) -> torch.Tensor:
    return torch.full(SHAPE, number)


def test_a_message_is_there_when_the_last_of_its_blobs_is() -> None:
    engine = engine_of(sum_of_three())
    state = pass_of(engine)
    assert engine.start(state) == []
    assert engine.receive(state, {"a": value(1)}) == []
    assert engine.receive(state, {"a": value(1)}) == []
    (stage,) = engine.receive(state, {"b": value(2)})
    assert [o.type for o in stage.ops] == ["Recv", "Recv", "Add"]
    assert engine.receive(state, {"c": value(4)}) == []
    (last,) = engine.run(state, stage, nobody)
    assert [o.type for o in last.ops] == ["Add", "Add", "Send"]


def test_the_first_value_of_a_repeated_blob_stays() -> None:
    engine = engine_of(sum_of_three())
    state = pass_of(engine)
    finish(engine, state, engine.receive(state, {"a": value(1), "b": value(2)}))
    finish(engine, state, engine.receive(state, {"a": value(7), "b": value(7), "c": value(4)}))
    assert torch.equal(state.values["total"], value(107))
    assert not engine.done(state)
    finish(engine, state, engine.receive(state, {"d": value(0)}))
    assert engine.done(state)


def test_a_blob_that_the_net_does_not_receive_is_a_key_error() -> None:
    engine = engine_of(sum_of_three())
    with pytest.raises(KeyError, match="'total'"):
        engine.receive(pass_of(engine), {"total": value(1)})


def test_the_peers_that_a_pass_waits_for_are_named() -> None:
    engine = engine_of(sum_of_three())
    state = pass_of(engine)
    assert engine.missing(state) == ["group_ps:1", "sparse_ps:0", "trainer"]
    finish(engine, state, engine.receive(state, {"c": value(1)}))
    assert engine.missing(state) == ["sparse_ps:0", "trainer"]
    finish(engine, state, engine.receive(state, {"d": value(1)}))
    finish(engine, state, engine.receive(state, {"a": value(1), "b": value(1)}))
    assert engine.missing(state) == []


def test_passes_share_parameters_and_nothing_else() -> None:
    engine = engine_of(sum_of_three())
    states = [pass_of(engine, step) for step in range(3)]
    for name in ("c", "a", "d", "b"):
        for step, state in enumerate(states):
            finish(engine, state, engine.receive(state, {name: value(step)}))
    assert [float(state.values["total"][0]) for state in states] == [100.0 + 3 * step for step in range(3)]
    assert all(engine.done(state) for state in states)


def test_a_net_without_ops_is_done_at_once() -> None:
    engine = engine_of(Net("", (), (), (), {}, {}))
    state = pass_of(engine)
    assert engine.start(state) == []
    assert engine.done(state)


def test_every_stage_runs_once_when_many_threads_bring_the_messages() -> None:
    """Each message unlocks a stage of its own, and all together one more."""
    count = 40
    ops: list[Op] = []
    for i in range(count):
        ops.append(op("Recv", (), (f"x{i}",), peer="trainer", message=i))
        ops.append(op("Relu", (f"x{i}",), (f"y{i}",)))
    ops.append(op("Sum", tuple(f"y{i}" for i in range(count)), ("total",)))
    names = [f"{letter}{i}" for i in range(count) for letter in "xy"]
    net = Net("wide", tuple(ops), (), ("total",), {n: Blob(n, SHAPE, "float32") for n in (*names, "total")}, {})
    engine = engine_of(net)
    for step in range(20):
        state = pass_of(engine, step)
        run: list[int] = []
        barrier = threading.Barrier(4)

        def bring(first: int, state: Pass = state, run: list[int] = run, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(10)
            for i in range(first, count, 4):
                ready = engine.receive(state, {f"x{i}": value(i)})
                while ready:
                    stage = ready.pop()
                    run.append(stage.index)
                    ready += engine.run(state, stage, nobody)

        threads = [threading.Thread(target=bring, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(run) == list(range(count + 1))
        assert torch.equal(state.values["total"], value(sum(range(count))))


def test_nobody_hears_of_a_stage_before_its_end_is_known() -> None:
    """A replica that heard of its last write before the gate did would begin its next step beside more others than there may be."""
    engine = engine_of(sum_of_three())
    state = pass_of(engine)
    finish(engine, state, engine.receive(state, {"a": value(1), "b": value(2)}))
    (last,) = engine.receive(state, {"c": value(4)})
    told: list[str] = []

    def end() -> None:
        told.append("end")
        assert last.index not in state.ended

    engine.run(state, last, lambda peer, names, tensors: told.append(peer), ended=end)
    assert told == ["end", "trainer"]
    assert last.index in state.ended
