"""What every unit and every value between units costs, as flat arrays: what a search over placements works on (HT 3.2.1).

A net is looked at once. After that a placement is an array of device numbers, and moving a unit changes the loads of the few devices
that hold it or its neighbours. All numbers are for one example that the group trains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from htrain.cluster import Cluster, role_of
from htrain.expected import expected, expected_blobs
from htrain.net import Net
from htrain.ops.collective import ALL_REDUCE
from htrain.options import Options
from htrain.tagging.cost import op_seconds, tensor_seconds
from htrain.tagging.units import Unit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
TRAINER = "trainer"
CPU, RECEIVED, SENT, MEMORY = range(4)
DIMENSIONS = ("CPU", "network in", "network out", "memory")


@dataclass(frozen=True)
class Workload:
    """Units and values of a train net on the devices of one group.

    `devices`: first those that units can be on (`num_places` of them: the trainer, then the group PSs), then those of fixed ops.
    `unit_cpu[u]` seconds, `unit_memory[u, d]` bytes, `allowed[u, d]`. `base[d, 4]` is what the fixed ops ask: CPU seconds, and bytes
    in memory; their messages are values, too. `capacity[d, 4]`: CPU seconds a second, bytes a second in and out, bytes.
    A value v of `value_bytes[v]`, whose message costs `value_cpu[v]` seconds at each end, is made by unit `maker[v]`, or where that is
    -1 on device `made_on[v]`; `read_on[v, d]` counts its fixed readers. `reader_of[i]` is a unit that reads value `read[i]`, and
    entries of one unit stand together. `host_cores` is 0 where devices do not share cores. `pinned` says of units by name who pinned them.
    """

    devices: tuple[str, ...]
    num_places: int
    units: tuple[Unit, ...]
    unit_cpu: Floats
    unit_memory: Floats
    allowed: NDArray[np.bool_]
    base: Floats
    capacity: Floats
    host_cores: float
    values: tuple[str, ...]
    value_bytes: Floats
    value_cpu: Floats
    maker: Ints
    made_on: Ints
    read_on: Ints
    read: Ints
    reader_of: Ints
    pinned: Mapping[str, str] = field(default_factory=dict)

    def loads(self, places: Ints) -> Floats:
        """loads[d, 4] of a placement: CPU seconds, bytes in, bytes out of an example; bytes of memory."""
        loads = self.base.copy()
        np.add.at(loads[:, CPU], places, self.unit_cpu)
        np.add.at(loads[:, MEMORY], places, self.unit_memory[np.arange(len(places)), places])
        readers = self.read_on.copy()
        np.add.at(readers, (self.read, places[self.reader_of]), 1)
        made = np.where(self.maker >= 0, places[self.maker], self.made_on)
        crosses = readers > 0
        crosses[np.arange(len(made)), made] = False
        copies = crosses.sum(1)
        loads[:, RECEIVED] += crosses.T @ self.value_bytes
        loads[:, CPU] += crosses.T @ self.value_cpu
        np.add.at(loads[:, SENT], made, copies * self.value_bytes)
        np.add.at(loads[:, CPU], made, copies * self.value_cpu)
        return loads

    def utilization(self, places: Ints) -> Floats:
        """Seconds per example (CPU, in, out) and the used share of memory, of each device that units can be on."""
        return self.loads(places)[: self.num_places] / self.capacity[: self.num_places]

    def seconds(self, places: Ints) -> float:
        """Seconds per example of the busiest device, or of the host: 1 / EPS of a group, all devices busy."""
        loads = self.loads(places)
        busiest = float((loads[: self.num_places, :MEMORY] / self.capacity[: self.num_places, :MEMORY]).max())
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
    fixed = {op: TRAINER if device == ALL_REDUCE else device for op, device in fixed.items()}  # beside every trainer
    places = (TRAINER, *(f"group_ps:{k}" for k in range(cluster.group_ps)))
    devices = (*places, *sorted(set(fixed.values()) - set(places)))
    number = {device: d for d, device in enumerate(devices)}
    unit_of = {i: u for u, unit in enumerate(units) for i in unit.ops}
    sized = expected(net, expected_blobs(net, cluster, options.batch_size))
    seconds = [
        op_seconds(op, [sized.blob(n) for n in op.inputs], [sized.blob(n) for n in op.outputs], cluster, options.batch_size)
        / options.batch_size
        for op in net.ops
    ]
    base = np.zeros((len(devices), 4))
    for index, device in fixed.items():
        base[number[device], CPU] += seconds[index]
    allowed = np.ones((len(units), len(places)), bool)
    if cluster.group_ps and cluster.trainers > 1:
        allowed[[u for u, unit in enumerate(units) if unit.weights], 0] = False
    return Workload(
        devices, len(places), tuple(units),
        np.array([sum(seconds[i] for i in unit.ops) for unit in units], np.float64), _memory(net, units, len(places), cluster, options),
        allowed, base, _capacity(devices, cluster), float(cluster.host_cores) / cluster.groups,
        **_values(sized, unit_of, fixed, number, cluster, options),
    )  # fmt: skip


def _memory(net: Net, units: Sequence[Unit], num_places: int, cluster: Cluster, options: Options) -> Floats:
    """Weights with their state, and the most that the unit's ops make for every context that may be in flight on a device."""
    made = np.array(
        [
            sum(net.blobs[o].num_bytes(options.batch_size) for i in unit.ops for o in net.ops[i].outputs)
            for unit in units
        ],
        float,
    )
    contexts = np.full(num_places, float(options.net_replicas * cluster.trainers))
    contexts[0] = options.net_replicas
    return np.array([unit.weight_bytes for unit in units], float)[:, None] + made[:, None] * contexts


def _capacity(devices: Sequence[str], cluster: Cluster) -> Floats:
    """The trainers of a group share its examples; every other device sees all of them."""
    capacity = np.empty((len(devices), 4))
    for d, device in enumerate(devices):
        copies = cluster.trainers if device == TRAINER else 1
        bandwidth = copies * cluster.bandwidth_of(device)
        shared = 1 if role_of(device) in (TRAINER, "group_ps") else cluster.groups
        capacity[d] = (
            copies * cluster.cores_of(device) / shared,
            bandwidth / shared,
            bandwidth / shared,
            cluster.memory_of(device),
        )
    return capacity


def _values(
    net: Net, unit_of: Mapping[int, int], fixed: Mapping[int, str], number: Mapping[str, int], cluster: Cluster, options: Options
) -> dict[str, Any]:  # fmt: skip
    """The arrays of blobs that some other unit or device than their maker's reads."""
    maker = {o: i for i, op in enumerate(net.ops) for o in op.outputs}
    homes = {name: (unit_of.get(i, -1), number[fixed[i]] if i in fixed else -1) for name, i in maker.items()}
    homes.update(dict.fromkeys(net.inputs, (-1, 0)))
    names: list[str] = []
    rows: list[Ints] = []
    read: list[int] = []
    reader_of: list[int] = []
    for name, indices in _readers(net).items():
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
    starts = cluster.message_nanoseconds * 1e-9 * _share_of_message(net, names, homes, rows)
    return {
        "values": tuple(names),
        "value_bytes": sizes / options.batch_size,
        "value_cpu": (starts + [tensor_seconds(size, cluster) for size in sizes]) / options.batch_size,
        "maker": np.array([homes[name][0] for name in names], np.int64),
        "made_on": np.array([homes[name][1] for name in names], np.int64),
        "read_on": np.array(rows, np.int64).reshape(len(names), len(number)),
        "read": np.array(read, np.int64)[order],
        "reader_of": np.array(reader_of, np.int64)[order],
    }


def _readers(net: Net) -> dict[str, list[int]]:
    """The ops that read each blob, -1 for the run itself, which takes the outputs at the trainer."""
    readers: dict[str, list[int]] = {}
    for index, op in enumerate(net.ops):
        for name in op.inputs:
            if name in net.blobs:
                readers.setdefault(name, []).append(index)
    for name in net.outputs:
        readers.setdefault(name, []).append(-1)
    return readers


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
