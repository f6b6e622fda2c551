"""What the sections of the page show: devices, tables, decisions, cluster and options, as values for the templates."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields

from htrain.costs.loads import RESOURCES, DeviceLoad
from htrain.costs.memory import use_text
from htrain.net.names import shard_name
from htrain.net.placement import Decision, Shard
from htrain.plan.plan import Plan
from htrain.plan.text import bottleneck_of, fold
from htrain.spec.cluster import Cluster
from htrain.spec.tree import flag_text, flat

_MOST_RULES = 12  # that have a line of their own
_ROLES = ("trainer", "group_ps", "sparse_ps", "dense_ps")


@dataclass(frozen=True)
class Bar:
    """How busy something is, `share` 0 to 1; `hot` where it is the bottleneck or too much."""

    share: float
    hot: bool


@dataclass(frozen=True)
class DeviceRow:
    """A device at the predicted EPS: bars for CPU, network, Python's lock and memory; `holds` says what its memory is for."""

    name: str
    load: DeviceLoad
    holds: str
    is_busiest: bool
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class SharedCores:
    """The cores that all roles share, where these are the bottleneck: CPU seconds of an example on all devices."""

    name: str
    cpu_seconds: float
    share: float


@dataclass(frozen=True)
class Devices:
    """The devices of a plan in rows; `idle` are those without ops, parameters and messages, their names folded."""

    rows: tuple[DeviceRow, ...]
    shared: SharedCores | None
    idle: tuple[str, ...]


def devices(plan: Plan) -> Devices:
    """Every device of a plan with a load, the bottleneck marked."""
    device, what = bottleneck_of(plan)
    busy = {name: load for name, load in plan.loads.items() if not _is_idle(load)}
    rows = tuple(_device(name, load, what if name == device else "") for name, load in busy.items())
    idle = tuple(fold(name for name in plan.loads if name not in busy))
    return Devices(rows, _shared_cores(plan, device) if device not in plan.loads else None, idle)


def _is_idle(load: DeviceLoad) -> bool:
    return not load.ops and not load.holds.parameters and not load.received_per_example + load.sent_per_example


def _device(name: str, load: DeviceLoad, what: str) -> DeviceRow:
    """`what` of it is the bottleneck, "" where it is not this device."""
    shares = {label: getattr(load, field) for field, label in RESOURCES.items()} | {"memory": load.memory}
    bars = tuple(Bar(share, label == what or share > 1) for label, share in shares.items())
    return DeviceRow(name, load, use_text(load.holds), bool(what), bars)


def _shared_cores(plan: Plan, name: str) -> SharedCores:
    seconds = sum(load.cpu_seconds_per_example for load in plan.loads.values())
    return SharedCores(name, seconds, seconds * plan.predicted_eps / (plan.cluster.shared_cores or 1))


@dataclass(frozen=True)
class TableRow:
    """Tables alike in size and place: `num_rows`, `columns` and `num_bytes`, with optimizer state, of each; `shards` where they are."""

    names: tuple[str, ...]
    count: int
    num_rows: int
    columns: int
    num_bytes: int
    shards: tuple[Shard, ...]


def tables(plan: Plan) -> tuple[TableRow, ...]:
    """The tables of a plan, those alike on one row."""
    sizes = _sizes(plan)
    alike: dict[tuple[int, int, int, tuple[Shard, ...]], list[str]] = {}
    for name, shards in plan.tables.items():
        places = tuple(Shard("", s.first_row, s.num_rows, s.device) for s in shards)
        alike.setdefault((sum(s.num_rows for s in shards), *sizes.get(name, (0, 0)), places), []).append(name)
    return tuple(TableRow(tuple(fold(names)), len(names), *size) for size, names in alike.items())


def _sizes(plan: Plan) -> dict[str, tuple[int, int]]:
    """Columns of each table, and its bytes with optimizer state."""
    parameters = plan.train.parameters
    state: dict[str, int] = {}
    for parameter in parameters.values():
        if parameter.kind == "state":
            state[parameter.of] = state.get(parameter.of, 0) + parameter.num_bytes
    sizes = {}
    for table_name, shards in plan.tables.items():
        names = [shard_name(table_name, i, len(shards)) for i in range(len(shards))]
        found = [parameters[name] for name in names if name in parameters]
        columns = found[0].shape[-1] if found else 0
        sizes[table_name] = columns, sum(p.num_bytes + state.get(p.name, 0) for p in found)
    return sizes


@dataclass(frozen=True)
class Decisions:
    """Each decision with the ops of its module, and the commonest rules with how often they decided."""

    rows: tuple[tuple[Decision, str], ...]
    rules: tuple[tuple[str, int], ...]


def decisions(plan: Plan) -> Decisions:
    """Every decision of a plan."""
    kinds: dict[str, Counter[str]] = {}
    for op in plan.train.ops:
        kinds.setdefault(op.module, Counter())[op.type] += 1
    rows = tuple((decision, _ops(kinds.get(decision.module, Counter()))) for decision in plan.decisions)
    return Decisions(rows, tuple(Counter(d.rule for d in plan.decisions).most_common(_MOST_RULES)))


def _ops(kinds: Counter[str]) -> str:
    return ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in kinds.items())


@dataclass(frozen=True)
class RoleRow:
    """The devices of a role, and what each of them has."""

    role: str
    devices: str
    cores: int
    memory: int
    bandwidth: int


@dataclass(frozen=True)
class Settings:
    """The cluster and the options: `rates` are those of the cost model."""

    roles: tuple[RoleRow, ...]
    options: tuple[tuple[str, str], ...]
    rates: tuple[tuple[str, str], ...]


def settings(plan: Plan) -> Settings:
    """Devices by role, every option, and every rate."""
    cluster = plan.cluster
    options = {name: flag_text(value) for name, value in flat(plan.options).items()}
    return Settings(tuple(_roles(cluster)), tuple(options.items()), tuple(_rates(cluster)))


def _roles(cluster: Cluster) -> Iterator[RoleRow]:
    counts = {"trainer": f"{cluster.trainers} a group", "group_ps": f"{cluster.group_ps} a group"}
    for role in _ROLES:
        devices = counts.get(role) or str(getattr(cluster, role))
        yield RoleRow(role, devices, cluster.cores_of(role), cluster.memory_of(role), cluster.bandwidth_of(role))


def _rates(cluster: Cluster) -> Iterator[tuple[str, str]]:
    for field in fields(Cluster):
        if field.name.startswith(("core_", "op_", "message_", "gemm_")):
            yield field.name, f"{getattr(cluster, field.name):,}"
