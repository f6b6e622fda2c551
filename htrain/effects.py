"""What a user says must have an effect: an option that belongs to a strategy, a cache or a device that is not there is an error that says so.

A value that nobody gave is no statement. On the command line and in a cluster file it is known what was given; of `Options` and `Cluster`
in Python, every field that differs from its default was.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches

from htrain.cluster import Cluster
from htrain.errors import ModelError, UsageError
from htrain.net import Net
from htrain.options import Options, flag_of

Why = Callable[[Options, Cluster], str]  # why an option has no effect, or nothing


def given_options(options: Options) -> set[str]:
    """The fields that differ from their defaults."""
    return {f.name for f in fields(Options) if getattr(options, f.name) != f.default}


def given_counts(cluster: Cluster) -> set[str]:
    """The devices of which there are others than by default."""
    return {name for name in _COUNTS if getattr(cluster, name) != getattr(Cluster(), name)}


def require_effect(options: Options, cluster: Cluster, given: Collection[str], *, searched: bool = False) -> None:
    """Raises UsageError for the first field of `given` that changes nothing; `searched` where the number of groups is still to be found."""
    for name in (f.name for f in fields(Options)):
        if name in given and (why := _why_idle(name, options, cluster, searched)):
            raise UsageError(f"{flag_of(name)} {_text(getattr(options, name))} has no effect: {why}")


def require_counts(options: Options, cluster: Cluster, given: Collection[str]) -> None:
    """Raises UsageError for the first field of a cluster, of `given`, that stands for devices which these options leave without work."""
    for name, why in _idle_devices(options):
        if name in given and getattr(cluster, name):
            raise UsageError(f"--{name.replace('_', '-')} {getattr(cluster, name)} (or {name} in the cluster file) has no effect: {why}")


def require_hosts(options: Options, cluster: Cluster, given: Collection[str]) -> None:
    """Raises UsageError for the first flag, of `given`, about a kind of device of which this cluster has none."""
    idle = {name for name, _ in _idle_devices(options)}
    for name in given:
        role = name.rpartition("_")[0]
        if role in _COUNTS and (not getattr(cluster, role) or role in idle):
            raise UsageError(f"--{name.replace('_', '-')} has no effect: the cluster has no {role.replace('_ps', ' PS')}")
    if "cache_hit_percent" in given and options.cache != "het":
        raise UsageError("--cache-hit-percent has no effect: it says what a het cache holds, and there is none (--cache het)")
    if "dense_ps" in given and cluster.dense_ps and cluster.groups == 1:
        raise UsageError(f"--dense-ps {cluster.dense_ps} has no effect: one group has nothing to synchronise with (--groups 2 or more)")


def require_tables(net: Net, options: Options, cluster: Cluster, splits: Mapping[str, int]) -> None:
    """Raises UsageError for options about tables or dense weights of a captured model that has none, and for splits of no table of its;
    ModelError for a parameter without a number in it."""
    for parameter in net.parameters.values():
        if 0 in parameter.shape:
            kind = "table" if parameter.kind == "table" else "weight"
            raise ModelError(f"{kind} '{parameter.name}' has the shape {list(parameter.shape)}: there is nothing in it to train")
    tables = {name: p for name, p in net.parameters.items() if p.kind == "table"}
    given = given_options(options)
    for kind, names in (("embedding table", () if tables else _OF_TABLES), ("dense weight", () if len(tables) < len(net.parameters) else _OF_WEIGHTS)):
        for name in names:
            if name in given:
                raise UsageError(f"{flag_of(name)} {_text(getattr(options, name))} has no effect: the model has no {kind}")
    for table, count in splits.items():
        if table not in tables:
            close = get_close_matches(table, tables, 3) or list(tables)[:10]
            raise UsageError(f"--split-table {table}={count}: the model has no table '{table}'; there are {', '.join(close) or 'none'}")
        if not cluster.sparse_ps or options.sparse_sync == "allgather":
            raise UsageError(f"--split-table {table}={count} has no effect: without sparse PSs, tables are whole on every trainer")
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= tables[table].shape[0]:
            raise UsageError(f"--split-table {table}={count}: it has {tables[table].shape[0]:,} rows, so that 1 to as many shards can be")


def _idle_devices(options: Options) -> Iterator[tuple[str, str]]:
    if options.dense_sync != "easgd":
        yield "dense_ps", f"dense sync {options.dense_sync} has no dense PS; it serves --dense-sync easgd"
    if options.sparse_sync == "allgather":
        yield "sparse_ps", "sparse sync allgather has all tables on every trainer; a sparse PS serves --sparse-sync ps"


_COUNTS = ("groups", "trainers", "group_ps", "sparse_ps", "dense_ps")


def _why_idle(name: str, options: Options, cluster: Cluster, searched: bool) -> str:
    why = _RULES[name](options, cluster) if name in _RULES else ""
    return "" if why == _ALONE and searched else why


_OF_TABLES = (
    "sparse_optimizer", "sparse_lr", "row_dtype", "row_gradient_dtype", "table_store",
    *(f.name for f in fields(Options) if f.name.startswith("cache")),
)  # fmt: skip
_OF_WEIGHTS = ("dense_optimizer", "dense_lr", "fc_dtype", "fc_gradient_dtype")
_ALONE = "one group has nothing to synchronise with: it wants --groups 2 or more"


def _synchronised(o: Options, c: Cluster) -> str:
    if o.dense_sync != "easgd":
        return f"it belongs to --dense-sync easgd, and dense sync is {o.dense_sync}"
    return _ALONE if c.groups == 1 else ""


def _adam(o: Options, c: Cluster) -> str:
    return "" if o.dense_optimizer == "adam" else f"it belongs to --dense-optimizer adam, and that is {o.dense_optimizer}"


def _adagrad(o: Options, c: Cluster) -> str:
    used = o.dense_optimizer == "adagrad" or "adagrad" in o.sparse_optimizer
    return "" if used else f"it belongs to adagrad, and the optimizers are {o.dense_optimizer} and {o.sparse_optimizer}"


def _buckets(o: Options, c: Cluster) -> str:
    return "" if o.dense_sync == "allreduce" else f"it belongs to --dense-sync allreduce, and dense sync is {o.dense_sync}"


def _replicas(o: Options, c: Cluster) -> str:
    if o.net_replicas == 1 or not (o.lockstep or o.cache != "none"):
        return ""
    return f"a trainer {'behind a cache' if o.cache != 'none' else 'in lockstep with others'} has one net replica"


def _prefetch(o: Options, c: Cluster) -> str:
    if not o.prefetch:
        return ""
    if o.cache == "lookahead":
        return "a look-ahead cache brings the rows of later batches itself"
    return "a cache without staleness asks for nothing ahead" if o.cache == "het" and o.cache_staleness == 0 else ""


def _between(o: Options, c: Cluster) -> str:
    return "" if c.group_ps else "nothing travels between trainers and group PSs: group_ps is 0"


def _compress(o: Options, c: Cluster) -> str:
    asked = o.activation_dtype != "float32" or o.gradient_dtype != "float32" or o.gradient_top_k
    return _between(o, c) if asked else "no value may be shorter: it wants --activation-dtype, --gradient-dtype or --gradient-top-k"


def _gradients(o: Options, c: Cluster) -> str:
    return "--gradient-top-k says how gradients travel" if o.gradient_top_k else _between(o, c)


def _feedback(o: Options, c: Cluster) -> str:
    return _between(o, c) if o.gradient_top_k else "it belongs to --gradient-top-k, which is 0: nothing of a gradient is left out"


def _rows(o: Options, c: Cluster) -> str:
    if o.sparse_sync == "allgather" or not c.sparse_ps:
        return "no rows travel to or from a sparse PS: there is none"
    whole = o.cache != "none" and not any(capacity == "none" for _, capacity in o.cache_tables)
    return f"all tables are behind the {o.cache} cache, whose rows travel as they are" if whole else ""


def _of_cache(*kinds: str) -> Why:
    wanted = " or ".join(f"--cache {kind}" for kind in kinds)
    return lambda o, c: "" if o.cache in kinds else f"it belongs to {wanted}, and the cache is {o.cache}"


def _averaged(o: Options, c: Cluster) -> str:
    if o.cache != "lookahead":
        return _of_cache("lookahead")(o, c)
    return "" if c.groups * c.trainers > 1 else "there is one trainer, whose cache has no replica to average with"


_RULES: Mapping[str, Why] = {
    "sync_alpha": _synchronised, "sync_period": _synchronised, "adam_eps": _adam, "beta1": _adam, "beta2": _adam, "eps": _adagrad,
    "bucket_bytes": _buckets, "net_replicas": _replicas, "prefetch": _prefetch, "compress": _compress, "activation_dtype": _between,
    "gradient_dtype": _gradients, "gradient_top_k": _between, "error_feedback": _feedback, "row_dtype": _rows, "row_gradient_dtype": _rows,
    "cache_capacity": _of_cache("het"), "cache_staleness": _of_cache("het"), "cache_policy": _of_cache("het"),
    "cache_tables": _of_cache("het", "lookahead"), "cache_window": _of_cache("het", "lookahead"), "cache_sets": _of_cache("lookahead"),
    "cache_ways": _of_cache("lookahead"), "cache_patch": _of_cache("lookahead"), "cache_average": _averaged,
    "cache_device": _of_cache("lookahead"),
}  # fmt: skip


def _text(value: object) -> str:
    return " ".join("=".join(pair) for pair in value) if isinstance(value, tuple) else str(value)
