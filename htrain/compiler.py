"""The pipeline: a captured model in, a plan out. `compile_net` is the list of its steps (DESIGN 1)."""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import floor

from htrain.costs.memory import memory_of_train, too_large_text
from htrain.costs.predict import demands_of, device_loads, seconds_of
from htrain.errors import ModelError, PlacementError
from htrain.expected import expected, expected_blobs
from htrain.frontend.captured import Captured
from htrain.loads import MemoryUse
from htrain.lowering import NO_FC_SPLITS, NO_SPLITS, lowered
from htrain.net import COMPRESS, Net
from htrain.ops.collective import ALL_REDUCE
from htrain.ops.het import UNBOUNDED
from htrain.ops.user_ops import sources_of
from htrain.placement import Decision, Encoding, Search, Split
from htrain.plan import Plan, digest_of, net_name
from htrain.plan_check import check_plan
from htrain.spec.cache import HetCache
from htrain.spec.cluster import Cluster
from htrain.spec.compatibility import compatible
from htrain.spec.dense_sync import Easgd
from htrain.spec.options import Options
from htrain.sync.easgd import alpha_of
from htrain.tagging.constraints import pinned
from htrain.tagging.encodings import allowed_encodings, encodable, place_encoded
from htrain.tagging.place import Solver, Tagger, by_rules, place_units, places_of
from htrain.tagging.rules import apply_tags
from htrain.tagging.workload import Ints, Workload, workload_of
from htrain.transform.compress import compress_rows, compress_values
from htrain.transform.flush_net import flush_net
from htrain.transform.fuse import fuse_placed
from htrain.transform.fuse_served import fuse_served
from htrain.transform.init_nets import init_net
from htrain.transform.loss import final_sigmoid
from htrain.transform.low_precision import choose_fc_dtypes
from htrain.transform.split import TRAINER, split_by_node
from htrain.transform.sync_nets import assign_centers, center_net, sync_net


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
) -> Plan:
    """Compile a captured model for `cluster`.

    `tagger` gives every unit a first device and `solver` says how that is improved (see `place_units`); `table_splits` cuts the
    named tables into that many row shards.
    Raises ModelError for what has no gradient or would never train, PlacementError for what does not fit, PlanError if the result
    does not hold together (a `tagger` that breaks a rule).
    """
    if not any(parameter.trained for parameter in captured.net.parameters.values()):
        raise ModelError("this model would never train: no gradient reaches any of its weights and tables (requires_grad, torch.no_grad(), detach())")
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
    train = compress_rows(compress_values(tagged, encodings, options), options)
    train = fuse_served(fuse_placed(train, options), options)

    parts = split_by_node(train, [d for d in cluster.devices if not d.startswith("dense_ps")])
    beside = parts.pop(ALL_REDUCE, None)
    nets = {"train": train, **{net_name(device): part for device, part in parts.items()}}
    nets.update({f"init_{net_name(device)}": init_net(device, part, options.seed) for device, part in parts.items()})
    nets.update({ALL_REDUCE: beside} if beside else {})
    nets.update({"flush_trainer": flush_net(parts[TRAINER])} if isinstance(options.cache, HetCache) else {})
    centers, synced = _sync_nets(parts, cluster, options)
    nets.update(synced)
    demands = demands_of(nets, cluster, options)
    eps = float(floor(1 / seconds_of(demands, cluster, options, options.dense_sync.round_steps)))
    loads = device_loads(nets, holds, demands, cluster, options, eps=eps)
    inputs = {n: str(net.blobs[n]).partition(": ")[2] for n in net.inputs}
    notes = (*captured.notes, *_logit_notes(captured.net, options.loss), *_dtype_notes(asked, options, cluster), *_notes(fc_splits, encodings, train))
    plan = Plan(
        model=name, digest=digest_of(nets), cluster=cluster, options=options, inputs=inputs, tables=shards, centers=centers, decisions=tuple(decisions),
        search=search, predicted_eps=eps, loads=loads, nets=nets, values=captured.values, notes=notes, ops=sources_of(op.type for op in train.ops),
    )  # fmt: skip
    return check_plan(plan)


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
        yield f"the model ends in a {sigmoid.label}, which the bce loss has already: what comes before it is trained as the logit (--loss mse keeps it)"


def _dtype_notes(asked: Options, options: Options, cluster: Cluster) -> Iterator[str]:
    if asked.numerics.fc_dtype == "auto" and asked.numerics.fc_gradient_dtype != "bfloat16" and options.numerics.fc_dtype == "bfloat16":
        passes = "both passes" if options.numerics.fc_gradient_dtype == "bfloat16" else "the forward pass"
        gain = cluster.core_bf16_flops / cluster.core_flops
        yield f"FCs compute {passes} in bfloat16: cores multiply it at {gain:.1f} x the rate of float32 (--fc-dtype float32 has them stay so)"


def _notes(fc_splits: Mapping[str, Split], encodings: Mapping[str, Encoding], train: Net) -> Iterator[str]:
    """What was decided about FCs and values, in words."""
    yield from (f"FC '{module}' is cut, {split} parts" for module, split in fc_splits.items())
    for ask in (op for op in train.ops if op.type == "HetAsk"):
        bounds, tables = ask.attrs["bounds"], len(ask.inputs) - 1
        assert isinstance(bounds, tuple)
        bound = f"s = {ask.attrs['staleness']}" if ask.attrs["staleness"] != UNBOUNDED else "no bound on staleness"
        yield (
            f"{ask.inputs[0]} holds {ask.attrs['capacity']:,} of {bounds[-1]:,} rows of {tables} tables on each trainer "
            f"({ask.attrs['policy']}, {bound})"
        )
    yield from _lookahead_notes(train)
    encoded = {op.inputs[0] for op in train.ops if op.module == COMPRESS} & encodings.keys()
    if encoded:
        counts = Counter(encodings[name] for name in encoded)
        kinds = ", ".join(f"{count} as {encoding}" for encoding, count in sorted(counts.items()))
        yield f"{len(encoded)} values between trainers and group PSs travel encoded: {kinds}"


def _lookahead_notes(train: Net) -> Iterator[str]:
    caches = [op.attrs for op in train.ops if op.type == "LookaheadSlots"]
    whole = sum(attrs["sets"] == attrs["num_rows"] for attrs in caches)
    forms = Counter(f"{attrs['sets']:,} sets of {attrs['ways']}" for attrs in caches if attrs["sets"] != attrs["num_rows"])
    kinds = [f"{count} in {form}" for form, count in forms.items()] + ([f"{whole} whole"] if whole else [])
    if caches:
        yield f"the trainer caches rows of {len(caches)} tables, up to {caches[0]['window']} batches ahead: {', '.join(kinds)}"


def _sync_nets(parts: Mapping[str, Net], cluster: Cluster, options: Options) -> tuple[dict[str, str], dict[str, Net]]:
    """The centre of each weight, and the sync, centre and centre-init nets; nothing when there is one group only."""
    if cluster.groups == 1 or not isinstance(options.dense_sync, Easgd):
        return {}, {}
    alpha = alpha_of(options.dense_sync, cluster.groups)
    holders = {
        d: part for d, part in parts.items() if any(p.kind == "weight" and p.trained for p in part.parameters.values())
    }
    centers = assign_centers(holders, cluster.dense_ps)
    nets: dict[str, Net] = {}
    for holder, part in holders.items():
        nets[f"sync_{net_name(holder)}"] = sync_net(holder, part, centers)
        for dense_ps in sorted({centers[name] for name in part.parameters if name in centers}):
            center = center_net(dense_ps, holder, part, centers, alpha)
            nets[center.name] = center
            nets["init_" + center.name] = init_net(dense_ps, center, options.seed)
    return centers, nets
