"""The way of values to an accelerator and back (cDLRM 5.2.2).

y = ToAccelerator(x), x = ToHost(y)        one value; a constant stays there from the start
packet = PackBatch(x_1 ..)                 all that a step needs, ahead of it, in one copy from pinned memory
y_1 .. = UnpackBatch(packet)               in the step, which waits for the copy on the device alone
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from htrain.net.net import Blob, Op
from htrain.ops.base import OpDef, Signature, same_as_input

_ALIGNED = 256  # bytes: where kernels like values to begin
_IN_FLIGHT = 3  # copies that have not ended when memory for another one is taken


def _to_accelerator(x: torch.Tensor, *, device: str) -> torch.Tensor:
    return x.to(device, non_blocking=True)


def _bind_to_accelerator(x: torch.Tensor | None, *, device: str) -> Callable[..., torch.Tensor]:
    """A constant, brought there once."""
    if x is None:
        return lambda value: _to_accelerator(value, device=device)
    there = x.to(device)
    return lambda: there


def _to_host(x: torch.Tensor) -> torch.Tensor:
    return x.cpu()


@dataclass(frozen=True)
class Packet:
    """Values on their way to a device: each lies in `there` from its start, with its dtype and shape. `arrived` is the CUDA event of their copy."""

    there: torch.Tensor
    parts: Sequence[tuple[int, torch.dtype, torch.Size]]
    arrived: Any

    def values(self) -> tuple[torch.Tensor, ...]:
        """What the present stream's kernels read when the copy has ended; the host waits for nothing."""
        if self.arrived:
            stream = torch.cuda.current_stream(self.there.device)
            stream.wait_event(self.arrived)
            self.there.record_stream(stream)
        return tuple(
            self.there.narrow(0, start, math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
            for start, dtype, shape in self.parts
        )


@dataclass
class Packer:
    """Packs values for a device. Of its pinned buffers one is used again when the copy out of it has ended: whoever packs waits for that. For one thread."""

    device: torch.device
    _buffers: deque[tuple[torch.Tensor, Any]] = field(default_factory=deque)
    _stream: Any = None

    def __call__(self, *values: torch.Tensor) -> Packet:
        """Begin to copy them."""
        parts, end = [], 0
        for value in values:
            parts.append((end, value.dtype, value.shape))
            end += -(-value.numel() * value.dtype.itemsize // _ALIGNED) * _ALIGNED
        buffer = self._buffer(end)
        for value, (start, dtype, shape) in zip(values, parts, strict=True):
            buffer.narrow(0, start, value.numel() * dtype.itemsize).view(dtype).view(shape).copy_(value)
        return self._sent(buffer, end, parts)

    def _buffer(self, num_bytes: int) -> torch.Tensor:
        """Pinned memory that nothing is copied out of."""
        if len(self._buffers) < _IN_FLIGHT:
            buffer = None
        else:
            buffer, copied = self._buffers.popleft()
            if copied:
                copied.synchronize()
        if buffer is None or buffer.numel() < num_bytes:
            buffer = torch.empty(num_bytes * 5 // 4, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        return buffer

    def _sent(
        self, buffer: torch.Tensor, num_bytes: int, parts: Sequence[tuple[int, torch.dtype, torch.Size]]
    ) -> Packet:
        whole = buffer.narrow(0, 0, num_bytes)
        if self.device.type != "cuda":
            self._buffers.append((buffer, None))
            return Packet(whole.clone(), parts, None)
        with torch.cuda.device(self.device):
            self._stream = self._stream or torch.cuda.Stream()
            with torch.cuda.stream(self._stream):
                there = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
                there.copy_(whole, non_blocking=True)
                arrived = torch.cuda.Event()
                arrived.record(self._stream)
        self._buffers.append((buffer, arrived))
        return Packet(there, parts, arrived)


def _pack(*values: torch.Tensor, device: str) -> Packet:
    return Packer(torch.device(device))(*values)


def _bind_pack(*known: torch.Tensor | None, device: str) -> Callable[..., Packet]:
    return Packer(torch.device(device))


def _unpack(packet: Packet) -> tuple[torch.Tensor, ...]:
    return packet.values()


def _made_later(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    raise AssertionError(f"{op.label} is made where a role starts: its blobs are given")


DEFINITIONS = (
    OpDef("ToAccelerator", _to_accelerator, same_as_input(0), gradient=None, bind=_bind_to_accelerator, work="message"),
    OpDef("ToHost", _to_host, same_as_input(0), gradient=None, work="message"),
    OpDef(
        "PackBatch", _pack, _made_later, gradient=None, bind=_bind_pack, on_host=True, phase="prepare", work="message"
    ),
    OpDef("UnpackBatch", _unpack, _made_later, gradient=None, many=True, work="message"),
)
