"""What a plan says of each device, as values: what an example asks of it, what it holds, and how busy it is at the predicted EPS."""

from dataclasses import dataclass, fields

COST_MODEL = 4  # which way of counting loads this is: to be raised when plans of before would have other loads today
RESOURCES = {"cpu": "CPU", "network": "network", "lock": "Python lock"}  # what may be busy, by the name of its share


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that one role of a device holds at most; see `htrain.costs.memory` for what is counted where."""

    own: int = 0
    weights: int = 0
    state: int = 0
    caches: int = 0
    values: int = 0
    messages: int = 0
    sync: int = 0

    @property
    def total(self) -> int:
        """Bytes of all that is counted."""
        return sum(getattr(self, f.name) for f in fields(self))

    @property
    def parameters(self) -> int:
        """Weights and rows, with the optimizer's state."""
        return self.weights + self.state

    def __add__(self, other: "MemoryUse") -> "MemoryUse":
        return MemoryUse(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class DeviceLoad:
    """What one example asks of a device: flops, bytes moved in its memory, CPU seconds (those of messages apart, too, and those under Python's
    lock), bytes received and sent, its share of the background sync and of collectives included. `messages` are those of a step, in and out;
    `holds` are the bytes that it must hold.

    `cpu`, `network` and `lock` are the shares of its cores, of its busier link and of Python's lock that are in use at the predicted EPS, `memory`
    the share of its memory.
    """

    ops: int
    flops_per_example: float
    bytes_per_example: float
    cpu_seconds_per_example: float
    message_seconds_per_example: float
    lock_seconds_per_example: float
    received_per_example: float
    sent_per_example: float
    messages: int
    holds: MemoryUse
    cpu: float
    network: float
    lock: float
    memory: float
