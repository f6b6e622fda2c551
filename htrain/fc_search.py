"""Which FCs to split, and how far: those whose parts let group PSs share what holds a group up (HT 4.1).

A split is tried on the whole net and scored by the placement that the greedy search then finds. The best of a few is kept, as long as a
split pays: each part starts ops and sends messages of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from htrain.cluster import Cluster
from htrain.frontend.captured import Captured
from htrain.lowering import NO_FC_SPLITS, forward_net, lowered
from htrain.options import Options
from htrain.placement import Split, SplitKind
from htrain.tagging.constraints import pinned
from htrain.tagging.encodings import allowed_encodings, encodable, encoded
from htrain.tagging.greedy import refine
from htrain.tagging.place import by_rules, decided, places_of
from htrain.tagging.workload import MEMORY, Ints, Workload, workload_of
from htrain.transform.fc_split import Layer, layers_of
from htrain.transform.low_precision import choose_fc_dtypes

_LEAST_GAIN = 1.01
_WIDEST = 3  # FCs that are tried at a time: the heaviest on the bottleneck
_OPS_TO_TRY = 20_000  # ops of all nets that are tried: what keeps the search within seconds
_MOST_TRIALS = 60
_BUDGET = 60_000  # placements scored in a trial


@dataclass(frozen=True)
class _Trial:
    """A net with some splits: seconds per example of a group, and the CPU of the units on its bottleneck, by module."""

    splits: Mapping[str, Split]
    seconds: float
    heavy: Mapping[str, float]


def choose_splits(
    captured: Captured, cluster: Cluster, options: Options, *, table_splits: Mapping[str, int]
) -> dict[str, Split]:
    """The splits that make a group fastest, as far as they were tried. FCs that the cluster file pins stay whole."""
    if cluster.group_ps < 2 or cluster.host_cores:
        return {}
    options = choose_fc_dtypes(captured.net, cluster, options)
    net = forward_net(captured, options)
    bound = [pattern for pattern, _ in cluster.pin] + [pattern for patterns in cluster.together for pattern in patterns]
    layers = {m: layer for m, layer in layers_of(net).items() if not any(fnmatchcase(m, pattern) for pattern in bound)}
    best = _try(captured, cluster, options, table_splits, NO_FC_SPLITS)
    trials = min(_MOST_TRIALS, _OPS_TO_TRY // max(1, len(net.ops) * 4))
    while trials > 0:
        found = []
        for splits in _next(best, layers, cluster.group_ps):
            trials -= 1
            found.append(_try(captured, cluster, options, table_splits, splits))
            if trials <= 0:
                break
        fastest = min(found, key=lambda trial: trial.seconds, default=best)
        if fastest.seconds * _LEAST_GAIN > best.seconds:
            break
        best = fastest
    return dict(best.splits)


def _next(best: _Trial, layers: Mapping[str, Layer], num_group_ps: int) -> Iterator[dict[str, Split]]:
    """One more FC of the bottleneck split, or one that is split in more parts."""
    taken = {layers[m].following for m, s in best.splits.items() if s.kind == "co-partition"}
    weight: dict[str, float] = {}
    for module, cpu in best.heavy.items():
        whole = module if module in layers else module.rpartition("/")[0]
        if whole in layers and whole not in taken:
            weight[whole] = max(cpu, weight.get(whole, 0.0))
    for module in sorted(weight, key=lambda m: (-weight[m], m))[:_WIDEST]:
        layer, now = layers[module], best.splits.get(module)
        counts = sorted({2, num_group_ps} if now is None else {min(2 * now.parts, num_group_ps)})
        for kind in _kinds(layer, layers, best.splits) if now is None else (now.kind,):
            size = layer.inputs if kind == "horizontal" else layer.outputs
            for count in counts:
                if count <= size and (now is None or count > now.parts):
                    yield {**best.splits, module: Split(kind, count)}


def _kinds(layer: Layer, layers: Mapping[str, Layer], splits: Mapping[str, Split]) -> Iterator[SplitKind]:
    """What HT 4.1 says an FC is fit for: co-partition where the intermediate is wider than what goes in and what comes out."""
    second = layers.get(layer.following)
    if second and layer.following not in splits and layer.outputs > layer.inputs and second.inputs > second.outputs:
        yield "co-partition"
    yield "vertical"
    yield "horizontal"


def _try(
    captured: Captured,
    cluster: Cluster,
    options: Options,
    table_splits: Mapping[str, int],
    splits: Mapping[str, Split],
) -> _Trial:
    net, units, fixed, _ = lowered(captured, cluster, options, table_splits=table_splits, fc_splits=splits)
    workload = pinned(workload_of(net, units, fixed, cluster, options), cluster)
    start = places_of(decided(by_rules, net, workload), workload)
    forms = encodable(net, workload, allowed_encodings(net, options), cluster, options)
    seen = [workload, encoded(workload, forms, forms.possible)] if forms.possible.any() else [workload]
    found = min((refine(w, start, budget=_BUDGET) for w in seen), key=lambda refined: refined.seconds)
    return _Trial(splits, found.seconds, _heavy(workload, found.places))


def _heavy(workload: Workload, places: Ints) -> dict[str, float]:
    """The CPU of each module on the busiest device."""
    used = workload.loads(places)[: workload.num_places, :MEMORY] / workload.capacity[: workload.num_places, :MEMORY]
    busiest = int(np.unravel_index(int(used.argmax()), used.shape)[0])
    return {
        unit.modules[0]: float(workload.unit_cpu[u]) for u, unit in enumerate(workload.units) if places[u] == busiest
    }
