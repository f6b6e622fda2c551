"""Communication between devices, and the ops of a sync net with EASGD. All are effects: never dropped, merged or moved.

Send(x), y = Recv()                        one value between two devices; the engine carries them out
signal = Ack(), Begin()                    int8[0]: a device has made all updates of a step; a step has begun
s = Snapshot(w)                            a copy of a weight, for a round
d = ElasticDifference(centre, s)           d = alpha * (s - centre);  centre += d (EASGD, HT 2.2)
Relax(w, d), Advance(w, d)                 w -= d;  w += d
"""

from collections.abc import Callable, Sequence

import torch

from htrain.net.names import Device
from htrain.net.net import Blob, Op
from htrain.ops.base import Cost, OpDef, Signature, no_outputs, same_as_input
from htrain.ops.bundle import Bundle


def _by_engine(*tensors: torch.Tensor, **attrs: object) -> None:
    raise AssertionError("the engine carries out communication ops; they have no kernel of their own")


def _declared(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    raise AssertionError("a Recv's blob is declared by the pass that cuts the net")


def _ack() -> torch.Tensor:
    return torch.zeros(0, dtype=torch.int8)


def _bundled_signal(parameters: Sequence[torch.Tensor], outputs: tuple[str, ...]) -> Callable[[], Bundle]:
    signal = Bundle.of(outputs, (_ack(),)).packed()  # the same one at every step
    return lambda: signal


def _ack_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [((0,), "int8")]


def _snapshot(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.clone()


def _elastic_difference(center: torch.Tensor, snapshot: torch.Tensor, *, alpha: float) -> torch.Tensor:
    """alpha * (snapshot - center), which the centre absorbs and the group gives up: their sum stays (EASGD; HT 2.2)."""
    difference = (snapshot - center).mul_(alpha)
    center.add_(difference)
    return difference


def _relax(parameter: torch.Tensor, difference: torch.Tensor) -> None:
    parameter.sub_(difference)


def _advance(parameter: torch.Tensor, difference: torch.Tensor) -> None:
    parameter.add_(difference)


def begin_signal(device: str) -> str:
    """The blob that tells `device` that a step has begun; what reads dense weights there waits for it."""
    return f"begin_{Device.parse(device).plain}"


def done_signal(device: str) -> str:
    """The blob that tells the trainer that `device` has made all updates of a step."""
    return f"done_{Device.parse(device).plain}"


def _transfer(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    return Cost(0.0, float(sum(b.num_bytes(batch_size) for b in (*inputs, *outputs))))


_TO_AND_FROM = {"peer": str, "message": int}

DEFINITIONS = (
    OpDef(
        "Send",
        _by_engine,
        no_outputs,
        _transfer,
        None,
        effects=True,
        transfer="send",
        work="message",
        on_host=True,
        attributes=_TO_AND_FROM,
    ),
    OpDef(
        "Recv",
        _by_engine,
        _declared,
        _transfer,
        None,
        effects=True,
        transfer="receive",
        work="message",
        on_host=True,
        attributes=_TO_AND_FROM,
    ),
    # Runs after every update of its device in a step, so that the trainer knows that the step has ended there.
    OpDef(
        "Ack", _ack, _ack_infer, gradient=None, effects=True, transfer="signal", on_host=True, bundled=_bundled_signal
    ),
    # Tells a device that a step has begun, where nothing else would: what it does first waits for nothing, or for rows that are asked for ahead.
    OpDef(
        "Begin", _ack, _ack_infer, gradient=None, effects=True, transfer="signal", on_host=True, bundled=_bundled_signal
    ),
    OpDef("Snapshot", _snapshot, same_as_input(0), gradient=None, effects=True),
    OpDef("ElasticDifference", _elastic_difference, same_as_input(1), gradient=None, effects=True, writes=(0,)),
    OpDef("Relax", _relax, no_outputs, gradient=None, effects=True, writes=(0,)),
    OpDef("Advance", _advance, no_outputs, gradient=None, effects=True, writes=(0,)),
)
