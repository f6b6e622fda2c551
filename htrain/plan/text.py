"""A plan in words: what `htrain show` and `htrain diff` print."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

from htrain.costs.loads import RESOURCES, MemoryUse
from htrain.errors import PlanError
from htrain.net.placement import Search
from htrain.plan.plan import Plan
from htrain.sizes import memory_text
from htrain.spec.optimizers import Optimizer
from htrain.spec.schedules import ConstantRate, Schedule
from htrain.spec.tree import flag_text, flat


def _sync_text(plan: Plan) -> str:
    """How dense replicas are kept alike, where tables are, and what stands before them."""
    dense = plan.options.dense_sync
    alike = "one dense replica" if dense.centred and plan.cluster.groups == 1 else f"dense sync {dense.kind}"
    often = f" every {dense.round_steps} steps" if dense.has_rounds(plan.cluster) else ""
    return f"{alike}{often}, sparse sync {plan.options.sparse_sync.kind}, cache {plan.options.cache.kind}"


def plan_text(plan: Plan) -> str:
    """Per device: ops, flops, bytes, memory, utilization; then tables and decisions."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    cluster, options = plan.cluster, plan.options
    yield f"plan of {plan.model}, digest {plan.digest[:12]}"
    yield (
        f"{cluster.groups} groups x ({cluster.trainers} trainers x {options.net_replicas} net replicas + {cluster.group_ps} group PSs), "
        f"{cluster.sparse_ps} sparse PSs, {cluster.dense_ps} dense PSs; batch {options.batch_size}"
    )
    dense = _rate_text(options.dense_optimizer, options.dense_schedule)
    rates = f"dense {dense}, sparse {_rate_text(options.sparse_optimizer, options.sparse_schedule)}"
    shares = f" (of it, {flag_text(options.rates)})" if options.rates else ""
    yield f"{rates}{shares}, loss {options.loss}, seed {options.seed}"
    yield _sync_text(plan)
    bottleneck, what = bottleneck_of(plan)
    yield f"predicted {plan.predicted_eps:,.0f} EPS; the bottleneck is the {what} of {bottleneck}"
    yield found_text(plan.search)
    yield from (f"note: {note}" for note in plan.notes)
    yield ""
    yield f"{'device':<14}{'ops':>5}{'kflop/ex':>11}{'CPU us/ex':>11}{'in B/ex':>10}{'out B/ex':>10}{'CPU':>8}{'net':>8}{'lock':>8}{'mem':>8}"
    for device, load in plan.loads.items():
        yield (
            f"{device:<14}{load.ops:>5}{load.flops_per_example / 1e3:>11.1f}{load.cpu_seconds_per_example * 1e6:>11.2f}{load.received_per_example:>10.0f}"
            f"{load.sent_per_example:>10.0f}{load.cpu:>8.1%}{load.network:>8.1%}{load.lock:>8.1%}{load.memory:>8.1%}"
        )
    yield ""
    yield from _memory(plan)
    yield ""
    yield "tables"
    yield from _tables(plan)
    yield ""
    yield "modules"
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for decision in plan.decisions:
        reasons.setdefault((decision.device, decision.rule, decision.reason), []).append(decision.module)
    for (device, rule, reason), modules in reasons.items():
        yield f"  {device} by rule '{rule}': {reason}"
        yield f"    {', '.join(fold(modules))}"


def _rate_text(optimizer: Optimizer, schedule: Schedule) -> str:
    """An optimizer with its rate, and how that changes where it does."""
    warmup = f" after a warm-up of {schedule.warmup:,} updates" if schedule.warmup else ""
    changes = f" ({schedule.kind}{warmup})" if schedule != ConstantRate() else ""
    return f"{optimizer.kind} lr {optimizer.lr:g}{changes}"


def _memory(plan: Plan) -> Iterator[str]:
    """What each device holds, by kind, and its memory."""
    kinds = [f.name for f in fields(MemoryUse)]
    yield f"{'memory':<14}" + "".join(f"{kind:>11}" for kind in kinds) + f"{'in all':>11}{'of':>11}"
    for device, load in plan.loads.items():
        held = (getattr(load.holds, kind) for kind in kinds)
        cells = [memory_text(size) if size else "-" for size in held]
        cells += [memory_text(load.holds.total), memory_text(plan.cluster.memory_of(device))]
        yield f"{device:<14}" + "".join(f"{cell:>11}" for cell in cells)


def _tables(plan: Plan) -> Iterator[str]:
    """Whole tables of one size and device on one line; a table in pieces on its own."""
    whole: dict[tuple[int, str], list[str]] = {}
    for table, shards in plan.tables.items():
        rows = sum(s.num_rows for s in shards)
        if len(shards) > 1:
            yield f"  {table}: {rows:,} rows on {_places(plan, table)}"
        else:
            whole.setdefault((rows, shards[0].device), []).append(table)
    for (rows, device), tables in whole.items():
        yield f"  {', '.join(fold(tables))}: {rows:,} rows{' each' if len(tables) > 1 else ''} on {device}"


def fold(names: Iterable[str]) -> list[str]:
    """Names that differ in their last number only as one: c1, c2, c3, c7 as `c{1-3,7}`; in order of their first."""
    series: dict[tuple[str, str, bool], list[int]] = {}
    for name in names:
        prefix, number, suffix = _LAST_NUMBER.match(name).groups()  # type: ignore[union-attr]
        numbered = number is not None
        series.setdefault((prefix, suffix or "", numbered), []).extend([int(number)] if numbered else [])
    return [prefix + _ranges(sorted(numbers)) + suffix for (prefix, suffix, _), numbers in series.items()]


_LAST_NUMBER = re.compile(r"^(.*?)(?:(0|[1-9]\d{0,17})(\D*))?$", re.DOTALL)


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers as text, in braces where there are several: 1, 2, 3, 7 is `{1-3,7}`."""
    if len(numbers) < 2:
        return "".join(map(str, numbers))
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "{" + ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) + "}"


def found_text(search: Search) -> str:
    """How a placement was found, and how good it is, in a sentence."""
    by = {"rules": "placement by rules", "greedy": "placement by rules and greedy refinement"}.get(
        search.solver, f"placement by {search.solver}"
    )
    if search.solver != "rules" and search.seconds:
        by += f", {search.start_seconds / search.seconds:.2f}x the EPS of the rules ({search.note})"
    return f"{by}; within {search.gap:.1%} of the best possible"


def bottleneck_of(plan: Plan) -> tuple[str, str]:
    """The busiest device of a plan, and the name of its resource that is the busiest."""
    loads = ((getattr(load, what), device, what) for device, load in plan.loads.items() for what in RESOURCES)
    most, device, what = max(loads, default=(0.0, "trainer", "cpu"), key=lambda entry: entry[0])
    if most < 0.999 and plan.cluster.shared_cores:
        return f"the {plan.cluster.shared_cores} cores that all roles share", "CPU"
    return device, RESOURCES[what]


def net_text(plan: Plan, name: str) -> str:
    """A net of the plan as text. Raises PlanError, listing the nets, for a name that none has."""
    if name not in plan.nets:
        raise PlanError(f"the plan has no net '{name}'; it has {', '.join(plan.nets)}")
    return plan.nets[name].text()


def plan_diff(old: Plan, new: Plan) -> list[str]:
    """What moved or changed from one plan to the other, a line each; empty when nothing did."""
    return [
        *_changed("cluster", vars(old.cluster), vars(new.cluster)),
        *_changed("option", flat(old.options), flat(new.options)),
        *_moved(old, new),
    ]


def _changed(kind: str, old: dict[str, object], new: dict[str, object]) -> Iterator[str]:
    for name in dict.fromkeys([*old, *new]):
        before, after = old.get(name, "not there"), new.get(name, "gone")
        if before != after:
            yield f"{kind} {name}: {before} -> {after}"


def _moved(old: Plan, new: Plan) -> Iterator[str]:
    before = {d.module: d.device for d in old.decisions} | {f"table {t}": _places(old, t) for t in old.tables}
    after = {d.module: d.device for d in new.decisions} | {f"table {t}": _places(new, t) for t in new.tables}
    for name in [*before, *(n for n in after if n not in before)]:
        if before.get(name) != after.get(name):
            yield f"{name}: {before.get(name, 'not there')} -> {after.get(name, 'gone')}"
    for name in dict.fromkeys([*old.nets, *new.nets]):
        left, right = old.nets.get(name), new.nets.get(name)
        if left is None or right is None:
            yield f"net {name}: {'new' if left is None else 'gone'}"
        elif left != right:
            yield f"net {name}: {len(left.ops)} -> {len(right.ops)} ops"


def _places(plan: Plan, table: str) -> str:
    return ", ".join(f"{s.device} [{s.first_row}, {s.first_row + s.num_rows})" for s in plan.tables[table])
