"""The pipeline: a captured model in, a plan out. `compile_net` is the list of its steps (docs/architecture.md)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import floor

from htrain.compiler.fusing import fuse_forward, fuse_placed
from htrain.compiler.lowering import (
    NO_FC_SPLITS,
    NO_SPLITS,
    as_trained,
    evaluation_net,
    forward_net,
    lowered,
    net_of_heads,
)
from htrain.costs.expected import expected, expected_blobs
from htrain.costs.loads import MemoryUse
from htrain.costs.memory import memory_of_train, too_large_text
from htrain.costs.predict import demands_of, device_loads, seconds_of
from htrain.errors import ModelError, PlacementError
from htrain.frontend.captured import Captured
from htrain.net.names import DENSE_PS, WORKERS, NetName, net_name, role_of
from htrain.net.net import COMPRESS, Net
from htrain.net.placement import Decision, Encoding, Search, Split
from htrain.ops.cache_rates import NO_RATES, Rates
from htrain.own.registry import sources_of
from htrain.plan.check import check_plan
from htrain.plan.plan import Plan, digest_of
from htrain.plan.rates import require_own_rates
from htrain.spec.cluster import Cluster
from htrain.spec.compatibility import compatible
from htrain.spec.fields import Section
from htrain.spec.options import Options
from htrain.spec.tree import kinds_of
from htrain.strategies.strategy import HoldsRows, Strategy, cache_of, strategies_of
from htrain.tagging.constraints import pinned
from htrain.tagging.encodings import allowed_encodings, encodable, place_encoded
from htrain.tagging.place import Solver, Tagger, by_rules, place_units, places_of
from htrain.tagging.rules import apply_tags
from htrain.tagging.workload import Ints, Workload, workload_of
from htrain.transform.compress import compress_values
from htrain.transform.evaluation import of_trained
from htrain.transform.init_nets import init_net
from htrain.transform.loss import final_sigmoid
from htrain.transform.low_precision import choose_fc_dtypes
from htrain.transform.split import split_by_node


def compile_net(
    captured: Captured,
    cluster: Cluster,
    options: Options,
    *,
    name: str,
    tagger: Tagger = by_rules,
    solver: Solver = "greedy",
    time_limit_seconds: float = 60.0,
    table_splits: Mapping[str, int] = NO_SPLITS,
    fc_splits: Mapping[str, Split] = NO_FC_SPLITS,
    rates: Rates = NO_RATES,
) -> Plan:
    """Compile a captured model for `cluster`.

    `tagger` gives every unit a first device and `solver` says how that is improved (see `place_units`); `table_splits` cuts the
    named tables into that many row shards. Caches ask for rows at `rates`, where these are known.
    Raises ModelError for what has no gradient or would never train, PlacementError for what does not fit, PlanError if the result
    does not hold together (a `tagger` that breaks a rule).
    """
    if not any(parameter.trained for parameter in captured.net.parameters.values()):
        raise ModelError(
            "this model would never train: no gradient reaches any of its weights and tables (requires_grad, torch.no_grad(), detach())"
        )
    asked = options
    cluster, options = compatible(cluster, choose_fc_dtypes(captured.net, cluster, options))
    net, units, fixed, shards = lowered(captured, cluster, options, table_splits=table_splits, fc_splits=fc_splits)
    workload = pinned(workload_of(net, units, fixed, cluster, options), cluster)
    allowed = allowed_encodings(net, options)

    def place(seen: Workload) -> tuple[list[Decision], Search, Ints]:
        decisions, search = place_units(net, seen, tagger, solver, time_limit_seconds=time_limit_seconds)
        return decisions, search, places_of(decisions, seen)

    forms = encodable(net, workload, allowed, cluster, options)
    decisions, search, chosen = place_encoded(place, workload, forms, always=options.compression.compress == "always")
    tagged = apply_tags(net, units, {d.module: d.device for d in decisions}, fixed)
    holds = _holds(tagged, cluster, options)
    encodings = {name: allowed[name] for name, is_chosen in zip(workload.values, chosen, strict=True) if is_chosen}
    cache = cache_of(cluster, options)
    heads = _heads(captured, cache, options)
    train = compress_values(_with_taken(tagged, heads), encodings, options)
    strategies = (*strategies_of(cluster, options), cache)
    for strategy in strategies:
        train = strategy.encoded(train)
    train = as_trained(fuse_placed(train, options))
    nets, centers = _nets(train, heads or _evaluation(captured, train, cache, options), strategies, cluster, options)
    require_own_rates(train, rates)
    demands = demands_of(nets, cluster, options, rates)
    eps = float(floor(1 / seconds_of(demands, cluster, options, options.dense_sync.round_steps)))
    loads = device_loads(nets, holds, demands, cluster, options, eps=eps)
    said = (*_logit_notes(captured.net, options.loss), *_dtype_notes(asked, options, cluster))
    decided = _notes(fc_splits, encodings, train, strategies)
    plan = Plan(
        model=name, digest=digest_of(nets), cluster=cluster, options=_anywhere(options), inputs=_inputs(net), tables=shards, centers=centers,
        decisions=tuple(decisions), search=search, predicted_eps=eps, loads=loads, nets=nets, values=captured.values, notes=(*captured.notes, *said, *decided),
        ops=sources_of(op.type for net in nets.values() for op in net.ops), strategies=sources_of(kinds_of(options)), rates=rates,
    )  # fmt: skip
    return check_plan(plan)


def _anywhere(options: Options) -> Options:
    """The same for whoever reads the plan in another folder than this one."""
    return replace(options, sparse_sync=options.sparse_sync.found_from_anywhere())


def _inputs(net: Net) -> dict[str, str]:
    """The dtypes and shapes of a net's inputs, by name."""
    return {name: str(net.blobs[name]).partition(": ")[2] for name in net.inputs}


def _with_taken(net: Net, heads: Net | None) -> Net:
    """The net with what heads are made of among its outputs, so that no pass takes it away."""
    taken = [name for name in heads.inputs if name not in net.inputs] if heads else []
    return replace(net, outputs=(*net.outputs, *taken))


def _heads(captured: Captured, cache: HoldsRows[Section], options: Options) -> Net | None:
    """The net of heads, where the model has some and evaluation no net of its own."""
    heads = None if captured.evaluation else net_of_heads(captured, options)
    return cache.evaluated(heads, forward_net(captured, options)) if heads else None


def _evaluation(captured: Captured, train: Net, cache: HoldsRows[Section], options: Options) -> Net | None:
    """The net of evaluation, where the model does something else there, of what the train net has of its tables and weights."""
    net = evaluation_net(captured, options)
    if net is None:
        return None
    net = cache.evaluated(net, forward_net(captured, options))
    return of_trained(fuse_forward(net, options), train)


def _nets(
    train: Net, evaluated: Net | None, strategies: Sequence[Strategy[Section]], cluster: Cluster, options: Options
) -> tuple[dict[str, Net], dict[str, str]]:  # fmt: skip
    """The nets of a plan by name, one beside the train net that is `evaluated`, if any; and the hosts of centres by weight."""
    parts = split_by_node(train, [d for d in cluster.devices if role_of(d) != DENSE_PS])
    beside = parts.pop(WORKERS, None)
    nets = {"train": train, **{net_name(device): part for device, part in parts.items()}}
    nets.update({str(NetName.step(d).init): init_net(d, part, options.seed) for d, part in parts.items()})
    nets.update({WORKERS: beside} if beside else {})
    nets.update({evaluated.name: evaluated} if evaluated else {})
    centers: dict[str, str] = {}
    for strategy in strategies:
        nets.update(strategy.nets(parts))
        centers.update(strategy.centers(parts))
    return nets, centers


def _holds(tagged: Net, cluster: Cluster, options: Options) -> dict[str, MemoryUse]:
    """What each device holds. Raises PlacementError where that is more than its memory."""
    sized = expected(tagged, expected_blobs(tagged, cluster, options.batch_size))
    holds = memory_of_train(sized, {i: op.node_name for i, op in enumerate(tagged.ops)}, cluster, options)
    for device, use in holds.items():
        if use.total > cluster.memory_of(device):
            raise PlacementError(too_large_text(device, use, cluster.memory_of(device)))
    return holds


def _logit_notes(net: Net, loss: str) -> Iterator[str]:
    sigmoid = final_sigmoid(net, loss)
    if sigmoid:
        yield f"the model ends in a {sigmoid.label}, which the bce loss has: what comes before it is trained as the logit (--loss bce_probability keeps it)"


def _dtype_notes(asked: Options, options: Options, cluster: Cluster) -> Iterator[str]:
    if (
        asked.numerics.fc_dtype == "auto"
        and asked.numerics.fc_gradient_dtype != "bfloat16"
        and options.numerics.fc_dtype == "bfloat16"
    ):
        passes = "both passes" if options.numerics.fc_gradient_dtype == "bfloat16" else "the forward pass"
        gain = cluster.core_bf16_flops / cluster.core_flops
        yield f"FCs compute {passes} in bfloat16: cores multiply it at {gain:.1f} x the rate of float32 (--fc-dtype float32 has them stay so)"


def _notes(
    fc_splits: Mapping[str, Split],
    encodings: Mapping[str, Encoding],
    train: Net,
    strategies: Sequence[Strategy[Section]],
) -> Iterator[str]:
    """What was decided about FCs and values, in words."""
    yield from (f"FC '{module}' is cut, {split} parts" for module, split in fc_splits.items())
    for strategy in strategies:
        yield from strategy.notes(train)
    encoded = {op.inputs[0] for op in train.ops if op.module == COMPRESS} & encodings.keys()
    if encoded:
        counts = Counter(encodings[name] for name in encoded)
        kinds = ", ".join(f"{count} as {encoding}" for encoding, count in sorted(counts.items()))
        yield f"{len(encoded)} values between trainers and group PSs travel encoded: {kinds}"
