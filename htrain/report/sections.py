"""The sections of the page that are tables: devices, tables, decisions, cluster and options."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

from htrain.costs.loads import DeviceLoad
from htrain.costs.memory import use_text
from htrain.net.names import shard_name
from htrain.net.placement import Shard
from htrain.plan.plan import Plan
from htrain.plan.text import bottleneck_of, fold
from htrain.report.markup import bar, shown, table
from htrain.report.names import called
from htrain.sizes import bandwidth_text, memory_text
from htrain.spec.cluster import Cluster
from htrain.spec.tree import flag_text, flat

_MOST_RULES = 12
_ROLES = ("trainer", "group_ps", "sparse_ps", "dense_ps")


def devices(plan: Plan) -> str:
    """A bar for CPU, network, Python's lock and memory of each device, the bottleneck marked; idle devices share a row."""
    device, what = bottleneck_of(plan)
    heads = ("device", "ops", "kflop/ex", "CPU µs/ex", "in B/ex", "out B/ex", "memory")
    head = "".join(f"<th{' class=n' if h != 'device' else ''}>{h}</th>" for h in heads)
    rows = [_device(name, load, name == device, what) for name, load in plan.loads.items() if not _idle(load)]
    if device not in plan.loads:
        rows.append(_shared_cores(plan, device))
    idle = fold(name for name, load in plan.loads.items() if _idle(load))
    if idle:
        rows.append(
            f'<tr class="dim"><td>{shown(", ".join(idle))}</td><td colspan="10">nothing is placed here</td></tr>'
        )
    bars = "<th>CPU</th><th>network</th><th>Python lock</th><th>memory</th>"
    return f'<table id="devices"><thead><tr>{head}{bars}</tr></thead>\n<tbody>{"".join(rows)}</tbody></table>\n'


def _idle(load: DeviceLoad) -> bool:
    return not load.ops and not load.holds.parameters and not load.received_per_example + load.sent_per_example


def _device(name: str, load: DeviceLoad, hot: bool, what: str) -> str:
    figures = (
        f"{load.ops:,}", f"{load.flops_per_example / 1e3:,.1f}", f"{load.cpu_seconds_per_example * 1e6:,.2f}",
        f"{load.received_per_example:,.0f}", f"{load.sent_per_example:,.0f}",
    )  # fmt: skip
    numbers = "".join(f'<td class="n">{figure}</td>' for figure in figures)
    numbers += f'<td class="n" title="{shown(use_text(load.holds))}">{memory_text(load.holds.total)}</td>'
    shares = {"CPU": load.cpu, "network": load.network, "Python lock": load.lock, "memory": load.memory}
    bars = "".join(
        f'<td class="wide">{bar(share, kind="hot" if (hot and dimension == what) or share > 1 else "")}</td>'
        for dimension, share in shares.items()
    )
    return f"<tr{_HOT if hot else ''}><td>{shown(name)}{_BADGE if hot else ''}</td>{numbers}{bars}</tr>\n"


_HOT = ' class="busiest"'
_BADGE = '<span class="badge">bottleneck</span>'


def _shared_cores(plan: Plan, name: str) -> str:
    """The row of the cores that all roles share."""
    seconds = sum(load.cpu_seconds_per_example for load in plan.loads.values())
    share = seconds * plan.predicted_eps / (plan.cluster.shared_cores or 1)
    return (
        f'<tr class="busiest"><td colspan="3">{shown(name)}{_BADGE}</td><td class="n">{seconds * 1e6:,.2f}</td><td colspan="3"></td>'
        f'<td class="wide">{bar(share, kind="hot")}</td><td colspan="3"></td></tr>\n'
    )


def tables(plan: Plan) -> str:
    """Tables alike in size and place on one row; bytes with optimizer state."""
    sizes = _sizes(plan)
    alike: dict[tuple[int, int, int, tuple[Shard, ...]], list[str]] = {}
    for name, shards in plan.tables.items():
        places = tuple(Shard("", s.first_row, s.num_rows, s.device) for s in shards)
        alike.setdefault((sum(s.num_rows for s in shards), *sizes.get(name, (0, 0)), places), []).append(name)
    rows = []
    for (num_rows, dimension, num_bytes, places), names in alike.items():
        each = " each" if len(names) > 1 else ""
        rows.append(
            (shown(", ".join(fold(names))), str(len(names)), f"{num_rows:,}{each}", str(dimension),
             memory_text(num_bytes) + each, _places(places))
        )  # fmt: skip
    heads = ("table", "tables", "rows", "columns", "with optimizer state", "on")
    return table("tables", heads, rows, numbers=heads[1:5])


def _sizes(plan: Plan) -> dict[str, tuple[int, int]]:
    """Columns of each table, and its bytes with optimizer state."""
    parameters = plan.nets["train"].parameters
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


def _places(shards: tuple[Shard, ...]) -> str:
    if len(shards) == 1:
        return shown(shards[0].device)
    return "<br>".join(f"{shown(s.device)}: rows {s.first_row:,} to {s.first_row + s.num_rows - 1:,}" for s in shards)


def decisions(plan: Plan) -> str:
    """Every decision, with a filter."""
    kinds: dict[str, Counter[str]] = {}
    for op in plan.nets["train"].ops:
        kinds.setdefault(op.module, Counter())[op.type] += 1
    rows = (
        (shown(called(d.module)), shown(d.device), shown(d.rule), shown(d.reason), _ops(kinds.get(d.module, Counter())))
        for d in plan.decisions
    )
    heads = ("module", "device", "rule", "reason", "ops")
    rules = Counter(decision.rule for decision in plan.decisions).most_common(_MOST_RULES)
    buttons = "".join(f'<button data-word="{shown(rule)}">{shown(rule)} {count:,}</button>' for rule, count in rules)
    tools = f'<div class="tools"><input id="wanted" placeholder="module, device, rule, reason" aria-label="filter decisions">{buttons}'
    count = f'<span class="dim" id="shown">{len(plan.decisions):,}</span></div>'
    return f'{tools}{count}\n<div class="tall">{table("decisions", heads, rows)}</div>\n'


def _ops(kinds: Counter[str]) -> str:
    return shown(", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in kinds.items()))


def settings(plan: Plan) -> str:
    """Devices by role, constraints, and every option; the rates of the cost model folded away."""
    cluster, options = plan.cluster, plan.options
    counts = {
        "trainer": f"{cluster.trainers} a group", "group_ps": f"{cluster.group_ps} a group",
        "sparse_ps": str(cluster.sparse_ps), "dense_ps": str(cluster.dense_ps),
    }  # fmt: skip
    heads = ("role", "devices", "cores", "memory", "network each way")
    rows = (
        (
            role,
            counts[role],
            str(cluster.cores_of(role)),
            memory_text(cluster.memory_of(role)),
            bandwidth_text(cluster.bandwidth_of(role)),
        )
        for role in _ROLES
    )
    roles = table("roles", heads, rows, numbers=heads[1:])
    constraints = "".join(f"<p>{text}</p>" for text in _constraints(cluster))
    rates = {
        f.name: getattr(cluster, f.name)
        for f in fields(Cluster)
        if f.name.startswith(("core_", "op_", "message_", "gemm_"))
    }
    return (
        f"{roles}{constraints}<h3>Options</h3>{_pairs({k: flag_text(v) for k, v in flat(options).items()})}"
        f"<details><summary>Rates of the cost model</summary>{_pairs({k: f'{v:,}' for k, v in rates.items()})}</details>\n"
    )


def _constraints(cluster: Cluster) -> Iterator[str]:
    if cluster.shared_cores:
        yield f"All roles share {cluster.shared_cores} cores."
    for pattern, device in cluster.pin:
        yield f"<code>{shown(pattern)}</code> is pinned to {shown(device)}."
    for patterns in cluster.together:
        yield f"{' and '.join(f'<code>{shown(pattern)}</code>' for pattern in patterns)} share a device."


def _pairs(values: dict[str, str]) -> str:
    items = "".join(f"<div><span>{shown(name)}</span><b>{shown(value)}</b></div>" for name, value in values.items())
    return f'<div class="settings">{items}</div>'
