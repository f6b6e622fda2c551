"""Stages of a program: when they run, in which order, what they keep; against nets that are run op by op."""

import random
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_nets import DEVICE, SHAPE, TABLES, WEIGHTS, Letter, draw_values, messages_for, random_net, run_in_order

from htrain.executor.engine.context import Context
from htrain.executor.engine.engine import Engine, Pass
from htrain.executor.engine.program import Program, Stage, build_program
from htrain.executor.engine.stage_keys import ANNOUNCE, COMPUTE, GATE, stage_keys
from htrain.executor.transport.wire import bundle_of
from htrain.net.net import Attr, Blob, Init, Net, Op, Parameter
from htrain.ops import OPS
from htrain.ops.bundle import Bundle
from htrain.plan.plan import Plan

quick = settings(max_examples=120, deadline=None, derandomize=True)
DRAWS = st.randoms(use_true_random=False)
CONTEXT = Context(0, 0, 0, 0)


# -- random nets ------------------------------------------------------------------------------------------------------


class Runner:
    """One pass over a program: messages come and ready stages run in a random order. `run` are the stages in run order."""

    def __init__(self, program: Program, arriving: dict[str, torch.Tensor], draw: random.Random) -> None:
        self.engine = Engine(program)
        self.arriving = arriving
        self.draw = draw
        self.run: list[Stage] = []
        self.sent: dict[Letter, torch.Tensor] = {}
        self.packets: list[tuple[str, list[str]]] = []
        inputs = {name: arriving[name] for name in program.net.inputs}
        self.state: Pass = self.engine.begin(CONTEXT, "", SHAPE[0], inputs)
        self.ready = self.engine.start(self.state)

    def finish_ready(self) -> None:
        while self.ready:
            stage = self.ready.pop(self.draw.randrange(len(self.ready)))
            self.run.append(stage)
            self.ready += self.engine.run(self.state, stage, self._send)

    def deliver(self) -> Iterator[int]:
        """Bring every message, its blobs one by one, together, or as a bundle, some of them twice; yield each when it is complete."""
        messages = sorted(set(self.engine.program.messages.values()))
        self.draw.shuffle(messages)
        for message in messages:
            names = [name for name, m in self.engine.program.messages.items() if m == message]
            self.draw.shuffle(names)
            whole = self.draw.random() < 0.7
            for part in [names] if whole else [[name] for name in names]:
                for _ in range(self.draw.choice((1, 1, 2))):
                    tensors = [self.arriving[name] for name in part]
                    as_bundle = self.draw.random() < 0.5
                    self.ready += self.engine.receive(
                        self.state, bundle_of(part, tensors) if as_bundle else dict(zip(part, tensors, strict=True))
                    )
            yield message

    def _send(self, peer: str, names: tuple[str, ...], tensors: tuple[torch.Tensor, ...] | Bundle) -> None:
        self.packets.append((peer, sorted(names)))
        for name, tensor in zip(names, tensors.values() if isinstance(tensors, Bundle) else tensors, strict=True):
            assert (peer, name) not in self.sent
            self.sent[peer, name] = tensor  # not a copy: what has been sent must not change any more


def runner_of(net: Net, draw: random.Random) -> tuple[Runner, dict[str, torch.Tensor]]:
    parameters = draw_values(WEIGHTS + TABLES, 1)
    received = tuple(op.outputs[0] for op in net.ops if op.type == "Recv")
    program = build_program(net, parameters, gated=draw.random() < 0.5)
    return Runner(program, draw_values(net.inputs + received, 2), draw), parameters


@quick
@given(draw=DRAWS)
def test_a_program_computes_what_its_net_does_in_whatever_order_messages_come(draw: random.Random) -> None:
    net = random_net(draw)
    runner, parameters = runner_of(net, draw)
    expected_parameters = draw_values(WEIGHTS + TABLES, 1)
    expected, expected_sent = run_in_order(net, expected_parameters, runner.arriving)
    runner.finish_ready()
    for _ in runner.deliver():
        if draw.random() < 0.6:
            runner.finish_ready()
    runner.finish_ready()
    assert runner.engine.done(runner.state)
    assert runner.sent.keys() == expected_sent.keys()
    for letter, tensor in expected_sent.items():
        assert torch.equal(runner.sent[letter], tensor), letter
    for name in net.outputs:
        assert torch.equal(runner.state.values[name], expected[name])
    for name, value in expected_parameters.items():
        assert torch.equal(parameters[name], value), name


@quick
@given(draw=DRAWS)
def test_an_op_runs_as_soon_as_its_messages_are_there_and_once(draw: random.Random) -> None:
    net = random_net(draw)
    runner, _ = runner_of(net, draw)
    needs = {id(op): need for op, need in zip(net.ops, messages_for(net), strict=True)}
    does = {id(op) for op in net.ops if op.type != "Recv"}
    arrived: set[int] = set()
    for message in chain([GATE], runner.deliver()):
        arrived.add(message)
        runner.finish_ready()
        run = [id(op) for stage in runner.run for op in stage.ops]
        assert len(run) == len(set(run))
        assert (
            {key for key, need in needs.items() if need <= arrived and key in does}
            <= set(run)
            <= {key for key, need in needs.items() if need <= arrived}
        )


@quick
@given(draw=DRAWS)
def test_values_that_wait_for_the_same_and_go_the_same_way_leave_together(draw: random.Random) -> None:
    net = random_net(draw)
    runner, _ = runner_of(net, draw)
    runner.finish_ready()
    for _ in runner.deliver():
        runner.finish_ready()
    together: dict[tuple[str, object], list[str]] = {}
    for op in net.ops:
        if op.type == "Send":
            together.setdefault((str(op.attrs["peer"]), op.attrs["message"]), []).append(op.inputs[0])
    assert sorted(runner.packets) == sorted((peer, sorted(names)) for (peer, _), names in together.items())


@quick
@given(draw=DRAWS)
def test_a_pass_keeps_what_came_and_what_another_stage_or_the_caller_reads(draw: random.Random) -> None:
    net = random_net(draw)
    runner, _ = runner_of(net, draw)
    runner.finish_ready()
    for _ in runner.deliver():
        runner.finish_ready()
    home = {name: stage.index for stage in runner.run for op in stage.ops for name in op.outputs}
    crossing = {
        name
        for stage in runner.run
        for op in stage.ops
        for name in op.inputs
        if name in home and home[name] != stage.index
    }
    assert all(torch.equal(runner.state.values[name], value) for name, value in runner.arriving.items())
    assert set(runner.state.values) == runner.arriving.keys() | crossing | set(net.outputs)


@quick
@given(draw=DRAWS)
def test_a_stage_that_steps_weights_has_a_clock_that_starts_where_they_are_read_first(draw: random.Random) -> None:
    """In whatever order messages come: whichever stage reads one of these weights first, the clock has started."""
    net = random_net(draw)
    runner, _ = runner_of(net, draw)
    stages = runner.engine.program.stages
    stepped = [{op.inputs[0] for op in stage.ops if op.type == "Sgd"} for stage in stages]
    weights = {clock: names for stage, names in zip(stages, stepped, strict=True) for clock in stage.writes}
    assert [len(stage.writes) for stage in stages] == [int(bool(names)) for names in stepped]
    assert sorted(weights) == list(range(runner.engine.program.num_clocks))
    runner.finish_ready()
    for _ in runner.deliver():
        if draw.random() < 0.6:
            runner.finish_ready()
    runner.finish_ready()
    started: set[int] = set()
    for stage in runner.run:
        read = {clock for clock, names in weights.items() if any(names & set(op.inputs) for op in stage.ops)}
        assert set(stage.reads) <= read
        started |= set(stage.reads)
        assert read <= started


def test_of_stages_that_wait_for_different_messages_each_starts_the_clock_of_what_it_reads() -> None:
    net = net_of(
        op("Recv", (), ("a",), peer="trainer", message=0),
        op("Mul", ("a", "v"), ("x",)),
        op("Recv", (), ("b",), peer="trainer", message=1),
        op("Mul", ("b", "w"), ("y",)),
        op("Add", ("x", "y"), ("z",)),
        op("Sgd", ("v", "z"), (), lr=0.5),
        op("Sgd", ("w", "z"), (), lr=0.5),
        inputs=(),
        weights=("v", "w"),
    )
    stages = build_program(net, {name: torch.ones(SHAPE) for name in ("v", "w")}).stages
    assert [(sorted(stage.waits), stage.reads, stage.writes) for stage in stages] == [
        ([0], (0,), ()),
        ([1], (0,), ()),
        ([0, 1], (), ()),
        ([-1, 0, 1], (), (0,)),
    ]


def test_what_reads_weights_waits_for_the_trainer_to_begin_the_step() -> None:
    """Rows that were asked for ahead may be there before; a message of the trainer's comes after, and says as much."""
    net = net_of(
        op("Recv", (), ("begin_group_ps_0",), peer="trainer", message=0),
        op("Recv", (), ("rows",), peer="sparse_ps:0", message=1),
        op("Relu", ("rows",), ("x",)),
        op("Mul", ("x", "w"), ("y",)),
        op("Recv", (), ("dy",), peer="trainer", message=2),
        op("Mul", ("dy", "w"), ("dx",)),
        op("Cast", ("v",), ("narrow",), dtype="bfloat16"),
        op("Mul", ("x", "narrow"), ("z",)),
        inputs=(),
        weights=("v", "w"),
    )
    stages = build_program(net, {name: torch.ones(SHAPE) for name in ("v", "w")}).stages
    assert [(sorted(stage.waits), [o.type for o in stage.ops]) for stage in stages] == [
        ([1], ["Recv", "Relu"]),
        ([2], ["Recv", "Mul"]),
        ([0, 1], ["Mul", "Cast", "Mul"]),
    ]


# -- one stage by itself ------------------------------------------------------------------------------------------------


def op(type: str, inputs: tuple[str, ...], outputs: tuple[str, ...], **attrs: Attr) -> Op:
    return Op(type, inputs, outputs, attrs, DEVICE, "m")


def net_of(
    *ops: Op, inputs: tuple[str, ...] = ("x",), outputs: tuple[str, ...] = (), weights: tuple[str, ...] = ()
) -> Net:
    names = {name for o in ops for name in (*o.inputs, *o.outputs)} | set(inputs)
    blobs = {name: Blob(name, SHAPE, "float32") for name in sorted(names - set(weights))}
    parameters = {name: Parameter(name, SHAPE, "float32", "weight", Init("constant", (0.0,))) for name in weights}
    return Net("small", ops, inputs, outputs, blobs, parameters)


def run_alone(net: Net, parameters: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor]) -> Pass:
    """Run a net that waits for nobody to its end."""
    engine = Engine(build_program(net, parameters))
    state = engine.begin(CONTEXT, "", 5, inputs)
    ready = engine.start(state)
    while ready:
        ready += engine.run(state, ready.pop(0), lambda *packet: None)
    assert engine.done(state)
    return state


def test_a_value_is_freed_when_its_last_reader_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref] = []
    alive: list[int] = []

    def relu(x: torch.Tensor) -> torch.Tensor:
        alive.append(sum(ref() is not None for ref in made))
        y = torch.relu(x)
        made.append(weakref.ref(y))
        return y

    monkeypatch.setitem(OPS, "Relu", replace(OPS["Relu"], kernel=relu))
    chain_of_six = [op("Relu", ("x" if i == 0 else f"y{i - 1}",), (f"y{i}",)) for i in range(6)]
    state = run_alone(net_of(*chain_of_six, outputs=("y5",)), {}, {"x": torch.ones(SHAPE)})
    assert alive == [0, 1, 1, 1, 1, 1]
    assert state.values.keys() == {"x", "y5"}


def test_a_stage_is_straight_python_whose_sends_leave_with_the_last_of_their_values() -> None:
    net = net_of(
        op("Relu", ("x",), ("a",)),
        op("Send", ("a",), (), peer="trainer", message=4),
        op("Mul", ("a", "w"), ("b",)),
        op("Send", ("b",), (), peer="trainer", message=4),
        op("Sigmoid", ("b",), ("c",)),
        outputs=("c",),
        weights=("w",),
    )
    (stage,) = build_program(net, {"w": torch.ones(SHAPE)}).stages
    assert stage.source.splitlines() == [
        "def stage_0(values, send, batch):",
        "    v0 = values['x']",
        "    v1 = k0(v0)",
        "    v2 = k2(v1, p0)",
        "    send('trainer', ('a', 'b'), (v1, v2,))",
        "    v3 = k4(v2)",
        "    values['c'] = v3",
        "    del v2",
    ]


def test_ops_with_one_output_of_many_or_with_a_batch_give_what_they_do_elsewhere() -> None:
    x = torch.arange(6.0).reshape(SHAPE)
    net = net_of(
        op("Split", ("x",), ("only",), axis=1, split=(3,)),
        op("Split", ("x",), ("left", "right"), axis=1, split=(1, 2)),
        op("Fill", (), ("filled",), shape=(-1, 2), value=0.5, dtype="float32"),
        outputs=("only", "left", "right", "filled"),
    )
    values = run_alone(net, {}, {"x": x}).values
    assert torch.equal(values["only"], x)
    assert torch.equal(torch.cat([values["left"], values["right"]], 1), x)
    assert torch.equal(values["filled"], torch.full((5, 2), 0.5))


def test_stages_that_only_ask_for_rows_are_apart_and_read_no_parameter() -> None:
    net = net_of(
        op("Relu", ("x",), ("ids",)),
        op("Mul", ("x", "w"), ("scaled",)),
        op("Send", ("ids",), (), peer="sparse_ps:0", message=0),
        op("Send", ("scaled",), (), peer="trainer", message=1),
        op("Recv", (), ("rows",), peer="sparse_ps:0", message=2),
        op("Add", ("rows", "scaled"), ("y",)),
        outputs=("y",),
        weights=("w",),
    )
    stages = build_program(net, {"w": torch.ones(SHAPE)}).stages
    assert [(stage.prefetch, [o.type for o in stage.ops]) for stage in stages] == [
        (True, ["Relu", "Send"]),
        (False, ["Mul", "Send"]),
        (False, ["Recv", "Add"]),
    ]
    assert [sorted(stage.after) for stage in stages] == [[], [0], [0, 1]]


def test_a_cache_hears_late_of_ids_that_come_by_message() -> None:
    """Their announcement comes behind what makes them, in their step; others are announced before anything else."""
    net = net_of(
        op("HetAnnounce", ("x",), (), first_keys=(0,)),
        op("Recv", (), ("a",), peer="group_ps:0", message=0),
        op("Relu", ("a",), ("ids",)),
        op("HetAnnounce", ("ids",), (), first_keys=(0,)),
    )
    keys = stage_keys(net, gated=True)
    assert keys[0] == (frozenset(), ANNOUNCE)
    assert keys[2] == keys[3] == (frozenset({0}), COMPUTE)


def test_without_a_gate_weights_are_stepped_where_their_gradients_are_made() -> None:
    net = net_of(
        op("Mul", ("x", "w"), ("y",)),
        op("Sgd", ("w", "y"), (), lr=0.5),
        op("Relu", ("y",), ("z",)),
        outputs=("z",),
        weights=("w",),
    )

    def ops_of(gated: bool) -> list[list[str]]:
        return [
            [o.type for o in stage.ops] for stage in build_program(net, {"w": torch.ones(SHAPE)}, gated=gated).stages
        ]

    assert ops_of(gated=True) == [["Mul", "Relu"], ["Sgd"]]
    assert ops_of(gated=False) == [["Mul", "Sgd", "Relu"]]


@pytest.mark.parametrize(("optimizer", "state"), [("Adam", ("m", "s", "t")), ("Adagrad", ("s",))])
def test_steps_that_share_a_state_take_turns(
    optimizer: str, state: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without: Adam's second moment, scaled and not added to yet, makes another's step larger by orders of magnitude."""
    inside, most = 0, 0

    def slow(*tensors: torch.Tensor) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.02)
        inside -= 1

    monkeypatch.setitem(OPS, optimizer, replace(OPS[optimizer], kernel=slow))
    net = net_of(op("Mul", ("x", "w"), ("g",)), op(optimizer, ("w", *state, "g"), ()), weights=("w", *state))
    engine = Engine(build_program(net, {name: torch.ones(SHAPE) for name in ("w", *state)}))
    assert engine.program.num_clocks == 1

    def run_one(number: int) -> None:
        state = engine.begin(Context(0, 0, number, 0), "", 2, {"x": torch.ones(SHAPE)})
        ready = engine.start(state)
        while ready:
            ready += engine.run(state, ready.pop(0), lambda *packet: None)

    threads = [threading.Thread(target=run_one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == 1


def test_weights_are_converted_when_they_are_first_used_and_not_when_a_pass_begins() -> None:
    """A pass that waits for its inputs has not read a weight: more passes may begin than the bound on staleness lets read."""
    net = net_of(
        op("Cast", ("w",), ("narrow",), dtype="bfloat16"),
        op("Relu", ("x",), ("y",)),
        op("Recv", (), ("z",), peer="trainer", message=0),
        op("Mul", ("z", "narrow"), ("dy",)),
        op("Sgd", ("w", "dy"), (), lr=0.5),
        outputs=("y",),
        weights=("w",),
    )
    stages = build_program(net, {"w": torch.ones(SHAPE)}).stages
    assert [([o.type for o in stage.ops], stage.reads) for stage in stages] == [
        (["Relu"], ()),
        (["Cast", "Recv", "Mul"], (0,)),
        (["Sgd"], ()),
    ]


def test_each_net_of_a_plan_becomes_a_program_that_runs_all_its_ops_once(plan: Plan) -> None:
    for device in ("trainer", "group_ps:0", "group_ps:1", "sparse_ps:0"):
        net = plan.net_of(device)
        store = {name: torch.zeros(p.shape) for name, p in net.parameters.items()}
        program = build_program(net, store)
        run = [id(o) for stage in program.stages for o in stage.ops]
        assert len(run) == len(set(run))
        assert {id(o) for o in net.ops if o.type != "Recv"} <= set(run) <= {id(o) for o in net.ops}
        assert {m for stage in program.stages for m in stage.waits if m >= 0} == set(
            program.peers
        )  # no pass ends before all its messages are there
        assert program.messages.keys() == {o.outputs[0] for o in net.ops if o.type == "Recv"}
        assert set(program.peers) == set(program.messages.values())
