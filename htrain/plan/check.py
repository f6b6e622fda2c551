"""A plan checks itself: on `htrain check`, and before every run (docs/decisions/plan-folder.md)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple
from math import isclose

from htrain.costs.expected import expected, expected_blobs
from htrain.costs.loads import COST_MODEL, DeviceLoad
from htrain.costs.memory import memory_of_train, too_large_text
from htrain.costs.predict import demands_of, device_loads
from htrain.errors import PlanError
from htrain.net.names import DENSE_PS, GROUP_PS, SPARSE_PS, TRAINER, WORKERS, NetKind, role_of, shard_name
from htrain.net.net import Net, Op
from htrain.ops import OPS
from htrain.ops.comm import begin_signal
from htrain.ops.weights import WeightReaders
from htrain.plan.plan import Plan, digest_of
from htrain.plan.rates import require_own_rates
from htrain.spec.centres import centre_name, hosts_of, in_group

_SIDES: tuple[NetKind, ...] = ("sync", "centre")  # of a round


def check_plan(plan: Plan) -> Plan:
    """`plan` itself, if it can run. Raises PlanError naming the first op, blob, parameter or device that is wrong:

    each op of the train net is placed once, where its tag says; each crossing value has one Send and its Recv; no device
    waits for itself, or reads weights for a step that has not begun; every parameter has one owner, one first value and, if it
    is trained, one optimizer step; every table's shards cover it; memory is within limits.
    """
    for problem in _problems(plan):
        raise PlanError(problem)
    return plan


def _problems(plan: Plan) -> Iterator[str]:
    """The problems of a plan, a sentence each. Raises PlanError where a net is missing that every plan has."""
    devices = [*(d for d in plan.cluster.devices if role_of(d) != DENSE_PS), WORKERS]
    nets = {device: net for device in devices if (net := plan.step_net(device))}
    yield from _placement(plan.train, {TRAINER: plan.net_of(TRAINER), **nets})
    yield from _crossings(nets)
    yield from _owners(nets)
    yield from _steps(plan.train)
    yield from _changes(plan.train)
    yield from _first_values(plan, nets)
    yield from _shards(plan)
    yield from _centers(plan)
    yield from _waits(nets)
    yield from _begins_early(nets)
    require_own_rates(plan.train, plan.rates)
    yield from _loads(plan)
    if digest_of(plan.nets) != plan.digest:
        yield "plan.yaml: the digest is not that of the nets: a net was changed after the plan was made; compile again"


def _key(op: Op) -> str:
    return f"{op.node_name} | {op.module} | {op}"


def _placement(train: Net, nets: Mapping[str, Net]) -> Iterator[str]:
    wanted = Counter(_key(op) for op in train.ops)
    found: Counter[str] = Counter()
    for device, net in nets.items():
        for op in net.ops:
            if op.node_name != device:
                yield f"nets/{net.name}.onnx: {op.label} is tagged '{op.node_name}', this is the net of '{device}'"
            if not OPS[op.type].transfer:
                found[_key(op)] += 1
    for op in train.ops:
        if found[_key(op)] != wanted[_key(op)]:
            yield f"{op.label} is placed {found[_key(op)]} times, want {wanted[_key(op)]} (on '{op.node_name}')"
    for extra in found.keys() - wanted.keys():
        yield f"a device runs an op that the train net does not have: {extra}"


def _crossings(nets: Mapping[str, Net]) -> Iterator[str]:
    sends: Counter[tuple[object, ...]] = Counter(
        (d, op.attrs.get("peer"), op.inputs[0], op.attrs.get("message"))
        for d, n in nets.items()
        for op in n.ops
        if op.type == "Send"
    )
    receives: Counter[tuple[object, ...]] = Counter(
        (op.attrs.get("peer"), d, op.outputs[0], op.attrs.get("message"))
        for d, n in nets.items()
        for op in n.ops
        if op.type == "Recv"
    )
    for key in sends.keys() | receives.keys():
        if sends[key] != 1 or receives[key] != 1:
            yield f"blob '{key[2]}' from '{key[0]}' to '{key[1]}' has {sends[key]} Send and {receives[key]} Recv, want one of each"


def _owners(nets: Mapping[str, Net]) -> Iterator[str]:
    owner: dict[str, str] = {}
    for device, net in nets.items():
        for name, parameter in net.parameters.items():
            if name in owner:
                yield f"{parameter.kind} '{name}' is on '{owner[name]}' and on '{device}': it must have one owner"
            owner[name] = device


def _steps(train: Net) -> Iterator[str]:
    written = (name for op in train.ops if not OPS[op.type].bounds_rows for name in OPS[op.type].written(op))
    steps = Counter(name for name in written if name in train.parameters and train.parameters[name].kind != "state")
    steps.update(
        name for op in train.ops if OPS[op.type].phase == "push" for name in op.inputs if _is_table(train, name)
    )
    for name, parameter in train.parameters.items():
        if parameter.kind == "cache":
            continue
        # A norm that a step runs twice moves its statistics twice, as in torch.
        if parameter.kind == "statistic" and steps[name]:
            continue
        wanted = int(parameter.kind == "statistic" or (parameter.trained and parameter.kind != "state"))
        if steps[name] != wanted:
            yield f"{parameter.kind} '{name}' has {steps[name]} optimizer steps, want {wanted}: it would {'silently never train' if wanted else 'change'}"


def _changes(train: Net) -> Iterator[str]:
    for op in train.ops:
        for change in OPS[op.type].changes(op):
            own = set(op.inputs) if OPS[op.type].phase == "push" else OPS[op.type].written(op)
            if change.ids not in op.inputs or not set(change.tensors) <= own:
                yield f"{op.label} tells of changes of {', '.join(change.tensors)} by '{change.ids}', which are not what it writes to and takes"


def _is_table(train: Net, name: str) -> bool:
    return name in train.parameters and train.parameters[name].kind == "table"


def _first_values(plan: Plan, nets: Mapping[str, Net]) -> Iterator[str]:
    for device, net in nets.items():
        filled = {op.inputs[0] for op in plan.init_net(device).ops} if net.parameters else set()
        for name in (n for n, p in net.parameters.items() if n not in filled and p.kind != "cache"):
            yield f"parameter '{name}' of '{device}' has no op in its init net"


def _shards(plan: Plan) -> Iterator[str]:
    parameters = plan.train.parameters
    for table, shards in plan.tables.items():
        expected = 0
        for index, shard in enumerate(shards):
            stored = parameters.get(shard_name(table, index, len(shards)))
            if (
                shard.first_row != expected
                or stored is None
                or stored.shape[0] != shard.num_rows
                or stored.first_row != shard.first_row
            ):
                yield f"plan.yaml: shard {index} of table '{table}' does not continue at row {expected}, or the nets hold another one"
            expected = shard.first_row + shard.num_rows


def _centers(plan: Plan) -> Iterator[str]:
    hosts = hosts_of(plan.options.dense_sync, plan.cluster)
    weights = [p.name for p in plan.train.parameters.values() if p.is_replicated]
    rounds = plan.nets_of_rounds()
    taken, absorbed = (_written(net for name, net in rounds.items() if name.kind == kind) for kind in _SIDES)
    for name in weights if hosts else ():
        host = plan.centers.get(name, "")
        if host not in hosts or taken[name] != 1 or absorbed[centre_name(name, host)] != 1:
            yield f"weight '{name}' is not synchronised with one centre {'with a group' if in_group(hosts[0]) else 'on a dense PS'}"


def _written(nets: Iterable[Net]) -> Counter[str]:
    """The number of ops that write each parameter."""
    return Counter(name for net in nets for op in net.ops for name in OPS[op.type].written(op))


def _waits(nets: Mapping[str, Net]) -> Iterator[str]:
    """Devices that wait for themselves. The nets are run without values, each device's stages as one: an op that never
    becomes ready waits for itself.
    """
    ran = _run_in_mind(nets, lambda device, op: True)
    for device, net in nets.items():
        for op in (op for op in net.ops if id(op) not in ran):
            yield f"'{device}' would wait for ever: {op.label} never gets '{(op.inputs or op.outputs)[0]}'"


def _begins_early(nets: Mapping[str, Net]) -> Iterator[str]:
    """Devices that read a trained weight of a group PS for a step that has not begun: the bound on staleness counts
    steps that have (HT 3.1.1).

    What may run before a step begins is run without values: the trainer asks for rows, and all others do what follows
    from that.
    """

    def is_ahead(device: str, op: Op) -> bool:
        return device != TRAINER or (
            op.type != "Recv" and (op.type != "Send" or role_of(str(op.attrs.get("peer"))) == SPARSE_PS)
        )

    ran = _run_in_mind(nets, is_ahead)
    for device, net in nets.items():
        weights, waits = WeightReaders(net), any(begin_signal(device) in op.outputs for op in net.ops)
        for op in net.ops:
            if weights.reads(op) and id(op) in ran and role_of(device) == GROUP_PS and not waits:
                yield f"'{device}' would not wait for the beginning of a step: {op.label} reads '{op.inputs[0]}' for the next one, too: compile again"


def _run_in_mind(nets: Mapping[str, Net], may_run: Callable[[str, Op], bool]) -> set[int]:
    """The ids of the ops that become ready when those run for which `may_run` holds."""
    known: dict[str, set[str]] = {d: set(n.inputs) | set(n.parameters) for d, n in nets.items()}
    waiting = {d: [op for op in n.ops if may_run(d, op)] for d, n in nets.items()}
    sent: set[tuple[object, object, str]] = set()
    ran: set[int] = set()
    progress = True
    while progress:
        progress = False
        for device, ops in waiting.items():
            for op in ops:
                arrives = (op.attrs.get("peer"), device, op.outputs[0]) in sent if op.type == "Recv" else True
                if arrives and known[device].issuperset(op.inputs):
                    progress = True
                    ran.add(id(op))
                    known[device].update(op.outputs)
                    sent.update({(device, op.attrs.get("peer"), op.inputs[0])} if op.type == "Send" else ())
            waiting[device] = [op for op in ops if id(op) not in ran]
    return ran


def _loads(plan: Plan) -> Iterator[str]:
    """Whether every device holds what it must, as compiling counts it, and whether the loads that are told are those of this plan."""
    cluster, options = plan.cluster, plan.options
    if set(plan.loads) != set(cluster.devices):
        yield f"plan.yaml: loads are of {', '.join(plan.loads) or 'no device'}, the cluster has {', '.join(cluster.devices)}: compile again"
        return
    train = plan.train
    sized = expected(train, expected_blobs(train, cluster, options.batch_size))
    fused = memory_of_train(sized, {i: op.node_name for i, op in enumerate(train.ops)}, cluster, options)
    for device, load in plan.loads.items():
        use = max(load.holds, fused[device], key=lambda use: use.total)  # what is fused makes less than what was placed
        if use.total > cluster.memory_of(device):
            yield too_large_text(device, use, cluster.memory_of(device))
    if plan.cost_model != COST_MODEL:
        return  # what an older one counted was right when it was compiled
    told = device_loads(
        plan.nets, {d: load.holds for d, load in plan.loads.items()}, demands_of(plan.nets, cluster, options, plan.rates), cluster, options,
        eps=plan.predicted_eps,
    )  # fmt: skip
    for device, load in plan.loads.items():
        if not _alike(load, told[device]):
            yield f"plan.yaml: the load of '{device}' is not what its nets, cluster and options make: one was changed after compiling; compile again"


def _alike(load: DeviceLoad, other: DeviceLoad) -> bool:
    """Whether two loads are equal, but for the rounding of another machine."""
    return all(
        mine == theirs or (isinstance(mine, float) and isclose(mine, theirs, rel_tol=1e-6, abs_tol=1e-9))
        for mine, theirs in zip(astuple(load), astuple(other), strict=True)
    )
