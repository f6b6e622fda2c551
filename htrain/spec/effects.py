"""What a user says must have an effect: an option that belongs to a strategy, a cache or a device that is not there is an error that says so.

What belongs to another strategy than the chosen one cannot be said at all (`htrain.spec.tree`). A value that nobody gave is no statement: on the
command line it is known what was given; of `Options` and `Cluster`, every field that differs from its default was.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

from htrain.errors import UsageError
from htrain.spec.cache import CACHES
from htrain.spec.cluster import Cluster
from htrain.spec.dense_sync import ALONE, DENSE_SYNCS
from htrain.spec.options import Options
from htrain.spec.sparse_sync import SPARSE_SYNCS
from htrain.spec.tree import dashed, flag_text, flags, flat

Why = Callable[[Options, Cluster], str]  # why an option has no effect, or nothing
OF_TABLES = (  # flags that say nothing of a model without tables
    "sparse_optimizer", "sparse_lr", "sparse_schedule", "cache",
    *(name for name, flag in flags().items() if flag.section in ("cache", "sparse_sync") and not flag.chooses_kind),
)  # fmt: skip
OF_WEIGHTS = ("dense_optimizer", "dense_lr", "dense_schedule", "dense_clip", "fc_dtype", "fc_gradient_dtype")


def given_counts(cluster: Cluster) -> set[str]:
    """The kinds of devices of which a cluster has another number than the default."""
    return {name for name in _COUNTS if getattr(cluster, name) != getattr(Cluster(), name)}


def require_effect(options: Options, cluster: Cluster, said: Collection[str], *, searched: bool = False) -> None:
    """Raises UsageError for the first flag of `said` that changes nothing; `searched` where the number of groups is still to be found."""
    for name, value in flat(options).items():
        if name in said and (why := _why_idle(name, options, cluster, searched)):
            raise UsageError(f"{dashed(name)} {flag_text(value)} has no effect: {why}")


def require_counts(options: Options, cluster: Cluster, given: Collection[str]) -> None:
    """Raises UsageError for the first field of a cluster, of `given`, that stands for devices which these options leave without work."""
    for name, why in (*_idle_devices(options), *_placed_devices(options)):
        if name in given and getattr(cluster, name):
            raise UsageError(
                f"--{name.replace('_', '-')} {getattr(cluster, name)} (or {name} in the cluster file) has no effect: {why}"
            )


def require_hosts(options: Options, cluster: Cluster, given: Collection[str]) -> None:
    """Raises UsageError for the first flag, of `given`, about a kind of device of which this cluster has none."""
    idle = {name for name, _ in _idle_devices(options)}
    for name in given:
        role = name.rpartition("_")[0]
        if role in _COUNTS and (not getattr(cluster, role) or role in idle):
            raise UsageError(
                f"--{name.replace('_', '-')} has no effect: the cluster has no {role.replace('_ps', ' PS')}"
            )
    if "cache_hit_percent" in given and not options.cache.hits_as_given:
        kinds = " or ".join(kind for kind, cache in CACHES.items() if cache.hits_as_given)
        raise UsageError(
            f"--cache-hit-percent has no effect: it says what a {kinds} cache holds, and there is none (--cache {kinds})"
        )
    if "dense_ps" in given and cluster.dense_ps and cluster.groups == 1:
        raise UsageError(
            f"--dense-ps {cluster.dense_ps} has no effect: one group has nothing to synchronise with (--groups 2 or more)"
        )


def _idle_devices(options: Options) -> Iterator[tuple[str, str]]:
    dense, sparse = options.dense_sync, options.sparse_sync
    if not dense.centred:
        centred = " or ".join(f"--dense-sync {kind}" for kind, section in DENSE_SYNCS.items() if section.centred)
        yield "dense_ps", f"dense sync {dense.kind} has no dense PS; it serves {centred}"
    elif not dense.uses_dense_ps:
        yield "dense_ps", "centres are with the groups (--sync-through groups)"
    if not sparse.served:
        served = " or ".join(f"--sparse-sync {kind}" for kind, section in SPARSE_SYNCS.items() if section.served)
        yield "sparse_ps", f"sparse sync {sparse.kind} has all tables on every trainer; a sparse PS serves {served}"


def _placed_devices(options: Options) -> Iterator[tuple[str, str]]:
    """Devices whose number is not the user's to say."""
    if options.sparse_sync.beside:
        yield "sparse_ps", f"sparse sync {options.sparse_sync.kind} puts a sparse PS beside each trainer"


_COUNTS = ("groups", "trainers", "group_ps", "sparse_ps", "dense_ps")


def _why_idle(name: str, options: Options, cluster: Cluster, searched: bool) -> str:
    flag = flags()[name]
    field = flag.field_of(options) if flag.section else None
    own = getattr(options, flag.section).idle(field.name, cluster) if field else ""
    why = own or (_RULES[name](options, cluster) if name in _RULES else "")
    return "" if why == ALONE and searched else why


def _replicas(o: Options, c: Cluster) -> str:
    if o.net_replicas == 1 or not (o.lockstep or o.holder.holds_rows):
        return ""
    return f"a trainer {'behind a cache' if o.holder.holds_rows else 'in lockstep with others'} has one net replica"


def _prefetch(o: Options, c: Cluster) -> str:
    return o.holder.no_prefetch if o.prefetch else ""


def _between(o: Options, c: Cluster) -> str:
    return "" if c.group_ps else "nothing travels between trainers and group PSs: group_ps is 0"


def _compress(o: Options, c: Cluster) -> str:
    short = o.compression
    asked = short.activation_dtype != "float32" or short.gradient_dtype != "float32"
    return _between(o, c) if asked else "no value may be shorter: it wants --activation-dtype or --gradient-dtype"


def _rows(o: Options, c: Cluster) -> str:
    if not c.sparse_ps:
        return "no rows travel to or from a sparse PS: there is none"
    return f"all tables are behind {o.holder.words}, whose rows travel as they are" if o.holder.whole else ""


_RULES: Mapping[str, Why] = {
    "net_replicas": _replicas, "prefetch": _prefetch, "compress": _compress, "activation_dtype": _between, "gradient_dtype": _between,
    "row_dtype": _rows, "row_gradient_dtype": _rows,
}  # fmt: skip
