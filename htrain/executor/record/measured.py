"""What a run measured beside what its plan predicted, by device and by edge.

Both are for one example that goes through the device: EPS, cores kept busy, CPU time, memory, and the bytes that devices send each other.
Measured is the steady part of a run: from the first reports of all roles, after the start-up, to the last before a trainer finished.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from htrain.costs.expected import expected, expected_blobs
from htrain.data.partition_file import read_facts
from htrain.decoding import from_json
from htrain.errors import CheckpointError, DataError
from htrain.executor.record.sent import sent_in
from htrain.files import put_file
from htrain.net.names import TRAINER, WORKERS, device_of, role_of
from htrain.net.net import Net
from htrain.ops.cache_rates import NO_RATES, Rates
from htrain.plan.plan import Plan
from htrain.sizes import memory_text
from htrain.spec.centres import in_group

FILE = "measured.json"
Reports = Mapping[str, Mapping[str, Any]]


class MeasuredDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device, all its roles together: `eps` examples a second through one role, `cores` that one keeps busy, CPU seconds an
    example, of the predicted ones those of messages apart, too; bytes of memory of one role."""

    name: str
    predicted_eps: float
    eps: float
    predicted_cores: float
    cores: float
    predicted_cpu_seconds: float
    predicted_message_seconds: float
    cpu_seconds: float
    predicted_memory: int
    memory: int


class Edge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes of an example from one device to another; of distinct ids and their rows as many as are to be expected."""

    source: str
    target: str
    predicted_bytes: float
    measured_bytes: float


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """measured.json of a run: `seconds` and `examples` of its steady part.

    Where workers hold each other's tables, rows[i][j] are the distinct rows of worker j that a batch of worker i needed, replicas among them, and
    predicted_rows[i][j] those that the partition tells of, as far as it could be read.
    """

    seconds: float
    examples: int
    predicted_eps: float
    eps: float
    devices: tuple[MeasuredDevice, ...]
    edges: tuple[Edge, ...]
    rows: tuple[tuple[float, ...], ...] = ()
    predicted_rows: tuple[tuple[float, ...], ...] = ()


NOTHING_MEASURED = Measured(0.0, 0, predicted_eps=0.0, eps=0.0, devices=(), edges=())


def measure(plan: Plan, before: Reports, after: Reports, seconds: float) -> Measured:
    """Compare a plan with the reports of its roles, `seconds` apart."""
    examples = int(_grown(before, after, plan.cluster.roles, "examples"))
    eps = examples / seconds if seconds > 0 else 0.0
    predicted, edges = predicted_edges(plan), _measured_edges(before, after)
    names = dict.fromkeys([*predicted, *edges])
    return Measured(
        seconds,
        examples,
        plan.predicted_eps,
        eps=eps,
        devices=tuple(_devices(plan, before, after, eps=eps, examples=examples, seconds=seconds)),
        edges=tuple(
            Edge(*pair, predicted.get(pair, 0.0), edges.get(pair, 0) / max(1, examples)) for pair in sorted(names)
        ),
        rows=(rows := _rows(plan, before, after)),
        predicted_rows=_predicted_rows(plan) if rows else (),
    )


def _rows(plan: Plan, before: Reports, after: Reports) -> tuple[tuple[float, ...], ...]:
    found = []
    for role in (role for role in plan.cluster.roles if role_of(role) == TRAINER):
        needed, earlier = (np.array(r.get(role, {}).get("caches", {}).get("needed", ())) for r in (after, before))
        if not needed.size or (earlier.size and earlier.shape != needed.shape):
            return ()
        steps = _grown(before, after, [role], "steps")
        grown = needed - earlier if earlier.size else needed
        found.append(tuple((grown / max(1.0, steps)).tolist()))
    return tuple(found)


def _predicted_rows(plan: Plan) -> tuple[tuple[float, ...], ...]:
    """What the partition of a plan tells; nothing where it is not there, or is another, or of other batches."""
    try:
        facts = read_facts(Path(plan.options.sparse_sync.partition_file))
    except DataError:
        return ()
    is_own = any(op.attrs.get("partition") == facts.digest for op in plan.train.ops)
    return facts.rows if is_own and facts.batch_size == plan.options.batch_size else ()


def _devices(
    plan: Plan, before: Reports, after: Reports, eps: float, examples: int, seconds: float
) -> Iterator[MeasuredDevice]:
    for name, load in plan.loads.items():
        roles = [role for role in plan.cluster.roles if device_of(role) == name]
        count = max(1, len(roles))
        cpu = _grown(before, after, roles, "cpu_seconds")
        yield MeasuredDevice(
            name=name,
            predicted_eps=plan.predicted_eps / count,
            eps=eps / count,
            predicted_cores=load.cpu_seconds_per_example * plan.predicted_eps / count,
            cores=cpu / seconds / count if seconds > 0 else 0.0,
            predicted_cpu_seconds=load.cpu_seconds_per_example,
            predicted_message_seconds=load.message_seconds_per_example,
            cpu_seconds=cpu / max(1, examples),
            predicted_memory=load.holds.total,
            memory=int(sum(float(after.get(role, {}).get("memory_bytes", 0)) for role in roles) / count),
        )


def _grown(before: Reports, after: Reports, roles: Any, key: str) -> float:
    return sum(float(after.get(r, {}).get(key, 0)) - float(before.get(r, {}).get(key, 0)) for r in roles)


def predicted_edges(plan: Plan, rates: Rates = NO_RATES) -> dict[tuple[str, str], float]:
    """Bytes that one example sends from device to device, its share of the background sync included; what holds rows asks for them at `rates`, or at the
    plan's own."""
    batch = plan.options.batch_size
    sizes = expected_blobs(plan.train, plan.cluster, batch, plan.known_rates(rates))
    edges: dict[tuple[str, str], float] = {}
    for device in plan.cluster.devices:
        nets = (plan.step_net(device), batch), (plan.sync_net(device), batch * plan.options.dense_sync.round_steps)
        for net, examples in nets:
            for target, num_bytes in _sent(expected(net, sizes), batch) if net else ():
                target, share = _crossing(device, target, plan)
                edges[device, target] = edges.get((device, target), 0.0) + share * num_bytes / examples
    for name, net in plan.centre_nets().items():
        source = str(name.run_by)
        for target, num_bytes in _sent(net, batch):
            share = 1 - 1 / plan.cluster.groups if source == target else 1.0
            edges[source, target] = edges.get((source, target), 0.0) + share * num_bytes / (
                batch * plan.options.dense_sync.round_steps
            )
    return edges


def _crossing(device: str, target: str, plan: Plan) -> tuple[str, float]:
    """The device that a message goes to, and in how many of all groups it leaves its role: a share of the centres is each group's own."""
    return (device, 1 - 1 / plan.cluster.groups) if in_group(target) else (target, 1.0)


def _sent(net: Net, batch_size: int) -> Iterator[tuple[str, int]]:
    for op in net.ops:
        if op.type == "Send" and op.attrs["peer"] != WORKERS:  # a thread of the trainer
            yield str(op.attrs["peer"]), sum(net.blob(name).num_bytes(batch_size) for name in op.inputs)


def _measured_edges(before: Reports, after: Reports) -> dict[tuple[str, str], int]:
    edges: dict[tuple[str, str], int] = {}
    for role, report in after.items():
        earlier = sent_in(before.get(role, {}))
        for peer, num_bytes in sent_in(report).items():
            pair = device_of(role), device_of(peer)
            edges[pair] = edges.get(pair, 0) + num_bytes - earlier.get(peer, 0)
    return edges


def save_measured(folder: Path, measured: Measured) -> None:
    """Write measured.json into a run folder."""
    put_file(folder / FILE, msgspec.json.format(msgspec.json.encode(measured)))


def load_measured(folder: Path) -> Measured:
    """measured.json of a run folder. Raises CheckpointError when there is none, or it is damaged."""
    path = folder / FILE
    try:
        return from_json(path.read_bytes(), Measured)
    except OSError as error:
        raise CheckpointError(
            f"{folder}: has no {FILE} ({error.strerror}): want the folder of a run that came to its end"
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: damaged: {error}") from error


def measured_text(measured: Measured) -> str:
    """Two tables: devices, and edges."""
    ratio = _ratio(measured.eps, measured.predicted_eps)
    lines = [
        f"predicted {measured.predicted_eps:,.0f} EPS, measured {measured.eps:,.0f} ({ratio}) over {measured.seconds:.1f} s",
        f"{'device':<13}{'EPS predicted':>14}{'measured':>10}{'cores':>8}{'measured':>10}{'CPU us/ex':>11}{'measured':>10}{'parameters':>12}{'memory':>10}",
    ]
    for d in measured.devices:
        lines.append(
            f"{d.name:<13}{d.predicted_eps:>14,.0f}{d.eps:>10,.0f}{d.predicted_cores:>8.2f}{d.cores:>10.2f}"
            f"{d.predicted_cpu_seconds * 1e6:>11.1f}{d.cpu_seconds * 1e6:>10.1f}{memory_text(d.predicted_memory):>12}{memory_text(d.memory):>10}"
        )
    lines.append(f"{'bytes of an example':<28}{'predicted':>12}{'measured':>10}")
    for kinds, (predicted, seen) in _by_roles(measured.edges).items():
        lines.append(f"{kinds[0] + ' to ' + kinds[1]:<28}{predicted:>12,.0f}{seen:>10,.0f}")
    if measured.rows:
        lines += _rows_text(measured)
    return "\n".join(lines)


def _rows_text(measured: Measured) -> Iterator[str]:
    """What batches needed of other workers, and as many lines below what was predicted."""
    yield "rows of a worker (column) that a batch of another (line) needed, replicas among them"
    yield from _matrix_text(measured.rows)
    if len(measured.predicted_rows) == len(measured.rows):
        yield "the same, as the partition predicts"
        yield from _matrix_text(measured.predicted_rows)


def _matrix_text(matrix: Sequence[Sequence[float]]) -> Iterator[str]:
    for i, row in enumerate(matrix):
        yield f"{i:<4}" + "".join(f"{'own' if i == j else f'{rows:,.1f}':>10}" for j, rows in enumerate(row))


def _by_roles(edges: tuple[Edge, ...]) -> dict[tuple[str, str], tuple[float, float]]:
    summed: dict[tuple[str, str], tuple[float, float]] = {}
    for edge in edges:
        pair = role_of(edge.source), role_of(edge.target)
        predicted, seen = summed.get(pair, (0.0, 0.0))
        summed[pair] = predicted + edge.predicted_bytes, seen + edge.measured_bytes
    return summed


def _ratio(measured: float, predicted: float) -> str:
    return f"{measured / predicted:.2f}x" if predicted else "nothing predicted"
