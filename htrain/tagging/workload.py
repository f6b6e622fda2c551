"""What every unit and every value between units costs, as flat arrays: what a search over placements works on (HT 3.2.1).

A net is looked at once. After that a placement is an array of device numbers, and moving a unit changes the loads of the few devices
that hold it or its neighbours. Loads are for one example that the group trains; memory is what `htrain.costs.memory` counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from htrain.costs.expected import expected, expected_blobs
from htrain.costs.loads import MemoryUse
from htrain.costs.memory import held_steps, made_bytes, memory_of, synced_bytes
from htrain.costs.roles import busy_cores, contexts_of
from htrain.costs.seconds import PYTHON_SHARE, locked_seconds, message_seconds, op_seconds, tensor_seconds
from htrain.net.names import GROUP_PS, IN_GROUP, SPARSE_PS, TRAINER, WORKERS, Device, number_of, role_of
from htrain.net.net import Net, Op
from htrain.net.slices import makers, readers
from htrain.ops import OPS
from htrain.ops.collective import ring_bytes
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.tagging.units import Unit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
CPU, RECEIVED, SENT, LOCK, MEMORY = range(5)
DIMENSIONS = ("CPU", "network in", "network out", "Python's lock", "memory")


@dataclass(frozen=True)
class Workload:
    """Units and values of a train net on the devices of one group.

    `devices`: first those that units can be on (`num_places` of them: the trainer, then the group PSs), then those of fixed ops.
    `unit_load[u, 4]` is what a unit asks of the device that it is on, messages apart: CPU seconds, bytes in and out (of the background sync), seconds
    of Python's lock; `unit_holds[u]` is what its parameters take, `unit_made[u]` the bytes that it makes in a step, of which a device d holds
    `steps[d]` at once; `allowed[u, d]`. `base[d, 4]` is what the fixed ops ask of a device, and `base_holds[d]` what they hold; their messages are
    values, too. `capacity[d, 5]`: CPU seconds a second, bytes a second in and out, locks, bytes.
    A value v of `value_bytes[v]`, whose message costs `value_cpu[v]` seconds at each end, `value_lock[v]` of them under the lock, and takes
    `value_memory[v, d]` bytes of a device d that receives it, is made by unit `maker[v]`, or where that is
    -1 on device `made_on[v]`; `read_on[v, d]` counts its fixed readers. `reader_of[i]` is a unit that reads value `read[i]`, and
    entries of one unit stand together. `host_cores` is 0 where devices do not share cores. `pinned` says of units by name who pinned them.
    """

    devices: tuple[str, ...]
    num_places: int
    units: tuple[Unit, ...]
    unit_load: Floats
    unit_holds: tuple[MemoryUse, ...]
    unit_made: Floats
    steps: Ints
    allowed: NDArray[np.bool_]
    base: Floats
    base_holds: tuple[MemoryUse, ...]
    capacity: Floats
    host_cores: float
    values: tuple[str, ...]
    value_bytes: Floats
    value_cpu: Floats
    value_lock: Floats
    value_memory: Floats
    maker: Ints
    made_on: Ints
    read_on: Ints
    read: Ints
    reader_of: Ints
    pinned: Mapping[str, str] = field(default_factory=dict)

    @property
    def unit_cpu(self) -> Floats:
        """unit_cpu[u]: CPU seconds that unit u takes for an example, without its messages."""
        return self.unit_load[:, CPU]

    @cached_property
    def unit_memory(self) -> Floats:
        """unit_memory[u, d]: bytes that unit u takes of place d."""
        kept = np.array([use.total for use in self.unit_holds], np.float64)
        return kept[:, None] + self.unit_made[:, None] * self.steps[: self.num_places]

    def holds(self, places: Ints) -> tuple[MemoryUse, ...]:
        """What each device holds, by kind; in all, the bytes of `loads`."""
        found = list(self.base_holds)
        for u, d in enumerate(places.tolist()):
            found[d] += self.unit_holds[u] + MemoryUse(values=round(self.unit_made[u] * self.steps[d]))
        crosses, _ = self.crossings(places)
        messages = (crosses * self.value_memory).sum(0)
        return tuple(use + MemoryUse(messages=round(m)) for use, m in zip(found, messages.tolist(), strict=True))

    def loads(self, places: Ints) -> Floats:
        """loads[d, 5] of a placement: CPU seconds, bytes in, bytes out, seconds of the lock of an example; bytes of memory."""
        loads = np.column_stack([self.base, [use.total for use in self.base_holds]])
        np.add.at(loads[:, :MEMORY], places, self.unit_load)
        np.add.at(loads[:, MEMORY], places, self.unit_memory[np.arange(len(places)), places])
        crosses, made = self.crossings(places)
        copies = crosses.sum(1)
        loads[:, RECEIVED] += crosses.T @ self.value_bytes
        np.add.at(loads[:, SENT], made, copies * self.value_bytes)
        for dimension, cost in ((CPU, self.value_cpu), (LOCK, self.value_lock)):
            loads[:, dimension] += crosses.T @ cost
            np.add.at(loads[:, dimension], made, copies * cost)
        loads[:, MEMORY] += (crosses * self.value_memory).sum(0)
        return loads

    def holds_alone(self, u: int, d: int) -> MemoryUse:
        """What place d holds with unit u alone on it, messages apart."""
        return self.base_holds[d] + self.unit_holds[u] + MemoryUse(values=round(self.unit_made[u] * self.steps[d]))

    def crossings(self, places: Ints) -> tuple[NDArray[np.bool_], Ints]:
        """crosses[v, d], whether value v is sent to device d, and the device that makes each value."""
        readers = self.read_on.copy()
        np.add.at(readers, (self.read, places[self.reader_of]), 1)
        made = self.made_on.copy()
        by_unit = self.maker >= 0
        made[by_unit] = places[self.maker[by_unit]]
        crosses = readers > 0
        crosses[np.arange(len(made)), made] = False
        return crosses, made

    def utilization(self, places: Ints) -> Floats:
        """Seconds per example (CPU, in, out, lock) and the used share of memory, of each device."""
        return self.loads(places) / self.capacity

    def seconds(self, places: Ints) -> float:
        """Seconds per example of the busiest device, or of the host: 1 / EPS of a group, all devices busy."""
        loads = self.loads(places)
        busiest = float((loads[:, :MEMORY] / self.capacity[:, :MEMORY]).max())
        return max(busiest, float(loads[:, CPU].sum()) / self.host_cores if self.host_cores else 0.0)

    def fits(self, places: Ints) -> bool:
        """Whether every device holds what is on it, and every unit is where it may be."""
        return bool(
            (self.utilization(places)[:, MEMORY] <= 1).all() and self.allowed[np.arange(len(places)), places].all()
        )


def workload_of(
    net: Net, units: Sequence[Unit], fixed: Mapping[int, str], cluster: Cluster, options: Options
) -> Workload:
    """The workload of a train net whose ops in `fixed` have a device already.

    A unit that holds dense weights must be on a group PS where there is one, so that a group has one copy of them; on the only
    trainer of a group it may stay (HT 2.2).
    """
    places = (TRAINER, *(str(Device(GROUP_PS, k)) for k in range(cluster.group_ps)))
    homes = {op: TRAINER if device == WORKERS else device for op, device in fixed.items()}  # beside every trainer
    devices = (*places, *sorted({d for d in homes.values() if d not in places}, key=_number))
    number = {device: d for d, device in enumerate(devices)}
    sized = expected(net, expected_blobs(net, cluster, options.batch_size))
    costs = _op_costs(sized, cluster, options)
    base = np.zeros((len(devices), MEMORY))
    for index, device in homes.items():
        base[number[device]] += costs[index]
    held = memory_of(sized, fixed, cluster, options)
    allowed = np.ones((len(units), len(places)), bool)
    if cluster.group_ps and cluster.trainers > 1:
        allowed[[u for u, unit in enumerate(units) if unit.weights], 0] = False
    unit_load = np.array(
        [costs[list(unit.ops)].sum(0) + _sync_costs(sized, unit, cluster, options) for unit in units], np.float64
    ).reshape(len(units), MEMORY)
    return Workload(
        devices=devices, num_places=len(places), units=tuple(units), unit_load=unit_load,
        unit_holds=tuple(_holds(sized, unit, cluster, options) for unit in units),
        unit_made=np.array([sum(made_bytes(sized, sized.ops[i], cluster, options) for i in unit.ops) for unit in units], np.float64),
        steps=np.array([contexts_of(device, cluster, options) for device in devices], np.int64),
        allowed=allowed, base=base, base_holds=tuple(held[device] for device in devices), capacity=_capacity(devices, cluster, options),
        host_cores=float(cluster.shared_cores or 0) / cluster.groups,
        **_values(sized, {i: u for u, unit in enumerate(units) for i in unit.ops}, homes, number=number, cluster=cluster, options=options),
    )  # fmt: skip


def _number(device: str) -> tuple[str, int]:
    return role_of(device), number_of(device)


def _op_costs(sized: Net, cluster: Cluster, options: Options) -> Floats:
    """costs[op, 4] of an example: CPU seconds, seconds of the lock; on the network what a collective passes around its ring."""
    costs, workers = np.zeros((len(sized.ops), MEMORY)), cluster.groups * cluster.trainers
    for index, op in enumerate(sized.ops):
        inputs, outputs = [sized.blob(n) for n in op.inputs], [sized.blob(n) for n in op.outputs]
        seconds = op_seconds(op, inputs, outputs, cluster, options.batch_size)
        costs[index, CPU], costs[index, LOCK] = seconds, locked_seconds(op, seconds, cluster)
        if OPS[op.type].place == "workers":
            costs[index, RECEIVED:LOCK] = ring_bytes(op, sum(b.num_bytes(options.batch_size) for b in inputs), workers)
    return costs / options.batch_size


def _sync_costs(sized: Net, unit: Unit, cluster: Cluster, options: Options) -> Floats:
    """What the background sync of a unit's weights asks of its device for an example: each is copied, sent, received and relaxed in a round."""
    costs = np.zeros(MEMORY)
    for name in unit.weights:
        num_bytes = synced_bytes(sized, name, cluster, options)
        if num_bytes:
            blob = sized.blob(name)
            ops = [Op("Snapshot", (name,), ("s",)), Op("Relax", (name, "d"), ())]
            seconds = [op_seconds(op, [blob] * len(op.inputs), [blob] * len(op.outputs), cluster, 1) for op in ops]
            message = 2 * tensor_seconds(num_bytes, cluster)
            locked = sum(locked_seconds(op, s, cluster) for op, s in zip(ops, seconds, strict=True))
            times, crossing = (
                (1, 1.0) if options.dense_sync.uses_dense_ps else (2, 2 * (1 - 1 / cluster.groups))
            )  # its share of the centres is here, too
            costs += [
                times * (sum(seconds) + message),
                crossing * num_bytes,
                crossing * num_bytes,
                times * (locked + PYTHON_SHARE * message),
            ]
    return costs / (options.batch_size * options.dense_sync.round_steps)


def _holds(sized: Net, unit: Unit, cluster: Cluster, options: Options) -> MemoryUse:
    """What a unit's parameters take, with their part in the sync."""
    weights = sum(sized.parameters[name].num_bytes for name in unit.weights)
    synced = sum(synced_bytes(sized, name, cluster, options) for name in unit.weights)
    return MemoryUse(weights=weights, state=unit.weight_bytes - weights, sync=2 * synced)


def _capacity(devices: Sequence[str], cluster: Cluster, options: Options) -> Floats:
    """The trainers of a group share its examples; every other device sees all of them; sparse PSs those of all groups."""
    capacity = np.empty((len(devices), 5))
    for d, device in enumerate(devices):
        copies = cluster.trainers if device == TRAINER else 1
        shared = 1 if role_of(device) in IN_GROUP else cluster.groups
        share, bandwidth = copies / shared, cluster.bandwidth_of(device)
        cores, locks = (
            busy_cores(device, cluster, options),
            cluster.processes_of(device) if cluster.python_lock else 10**9,
        )
        capacity[d] = cores * share, bandwidth * share, bandwidth * share, locks * share, cluster.memory_of(device)
    return capacity


def _values(
    net: Net, unit_of: Mapping[int, int], fixed: Mapping[int, str], number: Mapping[str, int], cluster: Cluster, options: Options
) -> dict[str, Any]:  # fmt: skip
    """The arrays of blobs that some other unit or device than their maker's reads."""
    homes = {name: (unit_of.get(i, -1), number[fixed[i]] if i in fixed else -1) for name, i in makers(net.ops).items()}
    homes.update(dict.fromkeys(net.inputs, (-1, 0)))
    names: list[str] = []
    rows: list[Ints] = []
    read: list[int] = []
    reader_of: list[int] = []
    for name, indices in _read_by(net).items():
        unit, home = homes[name]
        outside = np.zeros(len(number), np.int64)
        for index in indices:
            if index < 0 or index in fixed:
                outside[0 if index < 0 else number[fixed[index]]] += 1
        inside = sorted({unit_of[i] for i in indices if i in unit_of} - {unit})
        if not inside and not np.any(np.delete(outside, home) if home >= 0 else outside):
            continue
        read += [len(names)] * len(inside)
        reader_of += inside
        names.append(name)
        rows.append(outside)
    order = np.argsort(np.array(reader_of, np.int64), kind="stable")
    sizes = np.array([net.blobs[name].num_bytes(options.batch_size) for name in names], float)
    starts = message_seconds(cluster) * _share_of_message(net, names, homes, rows)
    cpu = (starts + [tensor_seconds(size, cluster) for size in sizes]) / options.batch_size
    roles = [role_of(device) for device in number]
    from_sparse = np.array([homes[name][1] >= 0 and roles[homes[name][1]] == SPARSE_PS for name in names], bool)
    steps = np.array(
        [[held_steps(home, d, cluster, options) for d in number] for home in (TRAINER, str(Device(SPARSE_PS, 0)))],
        np.float64,
    )
    return {
        "values": tuple(names),
        "value_bytes": sizes / options.batch_size,
        "value_cpu": cpu,
        "value_lock": cpu * PYTHON_SHARE,
        "value_memory": sizes[:, None] * steps[from_sparse.astype(np.int64)].reshape(len(names), len(number)),
        "maker": np.array([homes[name][0] for name in names], np.int64),
        "made_on": np.array([homes[name][1] for name in names], np.int64),
        "read_on": np.array(rows, np.int64).reshape(len(names), len(number)),
        "read": np.array(read, np.int64)[order],
        "reader_of": np.array(reader_of, np.int64)[order],
    }


def _read_by(net: Net) -> dict[str, list[int]]:
    """The ops that read each blob, -1 for the run itself, which takes the outputs at the trainer."""
    found = {name: places for name, places in readers(net.ops).items() if places and name in net.blobs}
    for name in net.outputs:
        found.setdefault(name, []).append(-1)
    return found


def _share_of_message(
    net: Net, names: Sequence[str], homes: Mapping[str, tuple[int, int]], rows: Sequence[Ints]
) -> Floats:
    """What part of a message's fixed cost a value bears: values of parallel branches, alike and equally deep, travel as one."""
    depth: dict[str, int] = {}
    kind: dict[str, str] = {}
    for op in net.ops:
        below = 1 + max((depth.get(name, 0) for name in op.inputs), default=0)
        depth.update(dict.fromkeys(op.outputs, below))
        kind.update(dict.fromkeys(op.outputs, op.type))
    alike: dict[tuple[int, str], list[int]] = {}
    for v, name in enumerate(names):
        alike.setdefault((depth.get(name, 0), kind.get(name, "")), []).append(v)
    share = np.ones(len(names))
    for members in alike.values():
        ways = {(homes[names[v]], tuple(np.flatnonzero(rows[v]))) for v in members if homes[names[v]][1] >= 0}
        share[members] = min(1.0, max(1, len(ways)) / len(members))
    return share
