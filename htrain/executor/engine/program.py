"""A device's net as a program: straight-line stages, cut where a value from elsewhere comes in (docs/decisions/engine.md).

A stage is the run of ops that wait for the same messages. When they are all there for one context, and the stages before it
have run, it runs to its end without waiting. Each stage is one generated Python function: parameters and kernels are bound
into it, values of the stage are its locals, and values that a later stage needs are kept in the context.
"""

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from htrain.executor.engine.marks import Marks
from htrain.executor.engine.stage_keys import ANNOUNCE, PREFETCH, PREPARE, TAKE_ROWS, StageKey, message_of, stage_keys
from htrain.net.net import Net, Op, Tensor
from htrain.net.slices import readers
from htrain.ops import OPS
from htrain.ops.base import tensor_of
from htrain.ops.bundle import Bundle

Touches = Mapping[
    int, tuple[tuple[str, ...], Callable[..., None]]
]  # by the places of ops: the blobs of ids, and what marks the rows
Send = Callable[[str, tuple[str, ...], tuple[torch.Tensor, ...] | Bundle], None]


class Values(dict[str, Any]):
    """The blobs of a pass by name. Those of a message that came as a bundle are made when they are first asked for."""

    __slots__ = ("_messages", "bundles")

    def __init__(self, inputs: Mapping[str, torch.Tensor], messages: Mapping[str, int]) -> None:
        super().__init__(inputs)
        self._messages = messages
        self.bundles: dict[int, Bundle] = {}

    def __missing__(self, name: str) -> torch.Tensor:
        tensor = self[name] = self.bundles[self._messages[name]][name]
        return tensor

    def bundle(self, names: tuple[str, ...]) -> Bundle:
        """Blobs of one message, in this order."""
        found = self.bundles.get(self._messages[names[0]])
        return Bundle.of(names, [self[name] for name in names]) if found is None else found.pick(names)


@dataclass(frozen=True, eq=False)
class Stage:
    """Ops that wait for the same messages. `prefetch` stages only find out which rows to ask for: they read no parameter.
    An `announces` stage comes before these, when a batch is read, and tells the caches what it will ask for; one that `prepares` finds the
    slots of its rows, as soon as they have some, and brings to an accelerator what is known of it. A stage that `takes_rows`
    puts what was asked for into a cache, before the next batch may ask; one that `ends_push` has done what others wait for.
    `after` are the stages that must have run. A stage that steps dense weights has a clock of its own, `writes`; `reads` are the
    clocks whose weights this stage may be the first to read: others that may be are not among `after`."""

    index: int
    waits: frozenset[int]
    announces: bool
    prefetch: bool
    prepares: bool
    takes_rows: bool
    ends_push: bool
    ops: tuple[Op, ...]
    after: frozenset[int]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    source: str
    run: Callable[[Values, Send, int], None]


@dataclass(frozen=True)
class Program:
    """The stages of one net, and which message each received blob comes with."""

    net: Net
    stages: tuple[Stage, ...]
    messages: Mapping[str, int]
    peers: Mapping[int, str]
    num_clocks: int


def build_program(
    net: Net, parameters: Mapping[str, Any], *, gated: bool = True, marks: Marks | None = None
) -> Program:
    """Compile `net` over `parameters`, tensors and caches, which its updates change in place, and tell `marks` of the rows.

    Without `gated`, where no step has to wait for another's writes, weights are stepped within the pass that makes their gradients, out of whose
    caches these then come. Requires: a net that `htrain.plan.plan` has checked.
    """
    if marks:
        marks.hear_of(net, parameters)
    keys = stage_keys(net, gated=gated)
    first = {key: i for i, key in reversed(list(enumerate(keys)))}
    order = sorted(_that_do(net, keys, first), key=lambda key: (len(key[0]), key[1], first[key]))
    afters = [
        frozenset(i for i, other in enumerate(order[:index]) if other[0] <= key[0]) for index, key in enumerate(order)
    ]
    clocks = _clocks(net, keys, order, afters)
    homes = {output: keys[i] for i, op in enumerate(net.ops) for output in op.outputs}
    stages = []
    for index, key in enumerate(order):
        ops = tuple(op for op, k in zip(net.ops, keys, strict=True) if k == key)
        kept = _kept(net, key, keys, homes)
        bundled = _bundled(net, ops, kept, parameters)
        touches = _touches(ops, bundled, marks) if marks else {}
        source = _source(net, index, ops, kept, bundled=bundled, touches=touches)
        reads, writes = clocks[index]
        run = _compile(net, index, ops=ops, source=source, parameters=parameters, bundled=bundled, touches=touches)
        ends_push = any(OPS[op.type].phase == "push" for op in ops)
        kind = (key[1] == ANNOUNCE, key[1] == PREFETCH, key[1] == PREPARE, key[1] == TAKE_ROWS, ends_push)
        stages.append(Stage(index, key[0], *kind, ops, afters[index], reads, writes, source, run))
    received = {op.outputs[0]: op for op in net.ops if op.type == "Recv"}
    messages = {name: message_of(op) for name, op in received.items()}
    peers = {message_of(op): str(op.attrs["peer"]) for op in received.values()}
    return Program(net, tuple(stages), messages, peers, sum(len(w) for _, w in clocks))


def _that_do(net: Net, keys: Sequence[StageKey], first: Mapping[StageKey, int]) -> Iterator[StageKey]:
    """The stages without those that do nothing when a message has come, where another waits for it, too."""
    does = {key for op, key in zip(net.ops, keys, strict=True) if op.type != "Recv"}
    for key in first:
        if key in does or not any(key[0] <= other[0] for other in does):
            yield key


def _clocks(
    net: Net, keys: Sequence[StageKey], order: Sequence[StageKey], afters: Sequence[frozenset[int]]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """For each stage, the clocks it may read first and the clock it writes. A stage that steps dense weights has a clock.

    Which stage reads first is not known where two wait for different messages: each of them is told.
    """
    dense = {name for name, p in net.parameters.items() if p.kind == "weight"}
    place = {key: index for index, key in enumerate(order)}
    writers: dict[int, set[str]] = {}
    readers: dict[str, set[int]] = {}
    for op, key in zip(net.ops, keys, strict=True):
        written = OPS[op.type].written(op) & dense
        if written and OPS[op.type].steps_weights:
            writers.setdefault(place[key], set()).update(written)
        for name in dense.intersection(op.inputs):
            readers.setdefault(name, set()).add(place[key])
    reads: list[list[int]] = [[] for _ in order]
    writes: list[list[int]] = [[] for _ in order]
    for clock, (stage, names) in enumerate(sorted(writers.items())):
        writes[stage].append(clock)
        reading = set().union(*(readers[name] for name in names))
        for first in (reader for reader in reading if afters[reader].isdisjoint(reading)):
            reads[first].append(clock)
    return [(tuple(r), tuple(w)) for r, w in zip(reads, writes, strict=True)]


def _kept(net: Net, key: StageKey, keys: Sequence[StageKey], homes: Mapping[str, StageKey]) -> set[str]:
    """Blobs of this stage that another stage, or the caller, reads."""
    used = {name for op, k in zip(net.ops, keys, strict=True) if k != key for name in op.inputs} | set(net.outputs)
    return {name for name in used if homes.get(name) == key}


def _bundled(net: Net, ops: Sequence[Op], kept: set[str], parameters: Mapping[str, Any]) -> frozenset[int]:
    """The places of ops of a stage whose values come in bundles and leave as one: those of a list in one message, and all outputs in another."""
    messages = {op.outputs[0]: message_of(op) for op in net.ops if op.type == "Recv"}
    sends: dict[Hashable, list[str]] = {}
    for op in ops:
        if op.type == "Send":
            sends.setdefault((op.attrs["peer"], op.attrs["message"]), []).append(op.inputs[0])
    packets = {tuple(names) for names in sends.values()}
    read_by = readers(net.ops)

    def comes(op: Op) -> bool:
        lists = OPS[op.type].bundles(op)
        whole = [name for names in lists for name in names] == [
            name for name in op.inputs if name not in net.parameters
        ]
        return whole and all(
            len({messages.get(name) for name in names}) == 1 and names[0] in messages for names in lists
        )

    def leaves(op: Op) -> bool:
        return not op.outputs or (
            op.outputs in packets
            and kept.isdisjoint(op.outputs)
            and all(len(read_by[name]) == 1 for name in op.outputs)
        )

    def is_there(op: Op) -> bool:  # a program that is simulated has no parameters
        return all(isinstance(parameters[name], torch.Tensor) for name in op.inputs if name in net.parameters)

    return frozenset(
        place for place, op in enumerate(ops) if OPS[op.type].bundled and comes(op) and leaves(op) and is_there(op)
    )


def _touches(ops: Sequence[Op], bundled: frozenset[int], marks: Marks) -> Touches:
    found = {place: marks.touching(op, is_bundled=place in bundled) for place, op in enumerate(ops)}
    return {place: touch for place, touch in found.items() if touch}


def _source(
    net: Net, index: int, ops: Sequence[Op], kept: set[str], *, bundled: frozenset[int], touches: Touches
) -> str:
    """The stage as Python. Sends to one peer leave together, when the last of their values is made."""
    names: dict[str, str] = {}
    local = {output for op in ops if op.type != "Recv" for output in op.outputs}
    bundles = {ops[place].outputs: f"b{place}" for place in bundled}
    loads = [
        n
        for n in dict.fromkeys(n for i, op in enumerate(ops) if i not in bundled for n in op.inputs)
        if n not in local and n not in net.parameters
    ]
    lines = [f"def stage_{index}(values, send, batch):"]
    for name in loads:
        names[name] = f"v{len(names)}"
        lines.append(f"    {names[name]} = values[{name!r}]")
    last = {(op.attrs["peer"], op.attrs["message"]): i for i, op in enumerate(ops) if op.type == "Send"}
    last_use = {name: i for i, op in enumerate(ops) for name in op.inputs}
    pending: dict[tuple[Any, Any], list[str]] = {}
    for i, op in enumerate(ops):
        if op.type == "Recv":
            continue
        if op.type == "Send":
            packet = (op.attrs["peer"], op.attrs["message"])
            pending.setdefault(packet, []).append(op.inputs[0])
            if last[packet] == i:
                blobs = tuple(pending.pop(packet))
                values = bundles.get(blobs) or f"({', '.join(names[b] for b in blobs)},)"
                lines.append(f"    send({packet[0]!r}, {blobs!r}, {values})")
            continue
        if i in touches:
            lines.append(f"    t{i}({_given(net, touches[i][0], names, is_bundled=i in bundled)})")
        if i in bundled:
            lists = ", ".join(f"values.bundle({blobs!r})" for blobs in OPS[op.type].bundles(op))
            lines.append(f"    {f'b{i} = ' if op.outputs else ''}k{i}({lists})")
            continue
        lines += _call(net, i, op, names, kept)
        dead = [
            n
            for n in dict.fromkeys(op.inputs)
            if last_use[n] == i and n in local and not any(n in p for p in pending.values())
        ]
        if dead:
            lines.append(f"    del {', '.join(names[n] for n in dead)}")
    return "\n".join(lines if len(lines) > 1 else [*lines, "    pass"]) + "\n"


def _given(net: Net, blobs: tuple[str, ...], names: Mapping[str, str], *, is_bundled: bool) -> str:
    """Values as arguments."""
    if is_bundled:
        return f"values.bundle({blobs!r})"
    return ", ".join(f"p{net_index(net, blob)}" if blob in net.parameters else names[blob] for blob in blobs)


def _call(net: Net, position: int, op: Op, names: dict[str, str], kept: set[str]) -> list[str]:
    if op.type == "Constant":
        names[op.outputs[0]] = f"v{len(names)}"
        lines = [f"    {names[op.outputs[0]]} = c{position}"]
    else:
        known = _known(net) if OPS[op.type].bind else {}
        arguments = [f"p{net_index(net, n)}" if n in net.parameters else names[n] for n in op.inputs if n not in known]
        if OPS[op.type].needs_batch:
            arguments.append("batch=batch")
        for output in op.outputs:
            names[output] = f"v{len(names)}"
        targets = ", ".join(names[o] for o in op.outputs)
        comma = "," if len(op.outputs) == 1 and OPS[op.type].many else ""
        lines = [f"    {targets}{comma}{' = ' if targets else ''}k{position}({', '.join(arguments)})"]
    return lines + [f"    values[{o!r}] = {names[o]}" for o in op.outputs if o in kept]


def _known(net: Net) -> dict[str, Tensor | None]:
    """What does not change from step to step: the values of constants, and parameters, whose values are elsewhere."""
    constants = {op.outputs[0]: op.attrs["value"] for op in net.ops if op.type == "Constant"}
    return {
        name: value if isinstance(value, Tensor) else None
        for name, value in {**constants, **dict.fromkeys(net.parameters)}.items()
    }


def _bound(net: Net, op: Op, parameters: Mapping[str, Any]) -> Callable[..., Any]:
    """The kernel of an op with its attributes, and with what is known of its inputs where it has a use for that."""
    definition = OPS[op.type]
    if definition.bind:
        values = {
            name: parameters[name] if value is None else tensor_of(value)
            for name, value in _known(net).items()
            if name in op.inputs
        }
        if all(value is not None for value in values.values()):  # a program that is simulated has no parameters
            return definition.bind(*(values.get(name) for name in op.inputs), **op.attrs)
    return partial(definition.kernel, **op.attrs) if op.attrs else definition.kernel


def _bound_to_bundles(net: Net, op: Op, parameters: Mapping[str, Any]) -> Callable[..., Any]:
    bundled = OPS[op.type].bundled
    assert bundled
    return bundled([parameters[name] for name in op.inputs if name in net.parameters], op.outputs, **op.attrs)


def _views_parameter(net: Net, op: Op) -> bool:
    """Whether the op's outputs could share memory with a parameter, which an update changes in place."""
    return OPS[op.type].view and any(name in net.parameters for name in op.inputs)


def _copying(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel whose outputs are its own: a value that travels, or waits for its gradient, must not change under an update."""

    def run(*tensors: torch.Tensor, **attrs: Any) -> Any:
        made = kernel(*tensors, **attrs)
        return tuple(part.clone() for part in made) if isinstance(made, tuple) else made.clone()

    return run


def _one_at_a_time(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that waits for another run of itself, in whatever thread, to end. A parameter has one op that steps it, so this is a lock on the parameter."""
    lock = threading.Lock()

    def run(*tensors: torch.Tensor) -> Any:
        with lock:
            return kernel(*tensors)

    return run


def net_index(net: Net, parameter: str) -> int:
    """The place of a parameter in its net, which names it in generated code."""
    return list(net.parameters).index(parameter)


def _compile(
    net: Net,
    index: int,
    ops: Sequence[Op],
    source: str,
    parameters: Mapping[str, Any],
    *,
    bundled: frozenset[int],
    touches: Touches,
) -> Callable[[Values, Send, int], None]:
    space: dict[str, Any] = {
        f"p{i}": parameters[name] for i, name in enumerate(net.parameters) if any(name in op.inputs for op in ops)
    }
    for i, op in enumerate(ops):
        value = op.attrs.get("value")
        if op.type == "Constant" and isinstance(value, Tensor):
            space[f"c{i}"] = tensor_of(value)
        else:
            kernel = _bound_to_bundles(net, op, parameters) if i in bundled else _bound(net, op, parameters)
            kernel = _one_at_a_time(kernel) if OPS[op.type].exclusive else kernel
            space[f"k{i}"] = _copying(kernel) if _views_parameter(net, op) else kernel
    space |= {f"t{place}": touch for place, (_, touch) in touches.items()}
    exec(compile(source, f"<{net.name} stage {index}>", "exec"), space)
    run: Callable[[Values, Send, int], None] = space[f"stage_{index}"]
    return run
