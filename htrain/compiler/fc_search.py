"""Which FCs to split, and how far: those that do not fit, and those whose parts let group PSs share what holds a group up (HT 4.1).

A split is tried on the whole net and scored by the placement that the greedy search then finds: first by how far it is beyond memory, then by its
speed. The best of a few is kept, as long as a split pays: each part starts ops and sends messages of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from htrain.compiler.lowering import NO_FC_SPLITS, forward_net, lowered
from htrain.frontend.captured import Captured
from htrain.net.net import Net
from htrain.net.placement import Split, SplitKind
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
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
    """A net with some splits: the bytes beyond the memory of its devices, seconds per example of a group, and what the units on its bottleneck weigh
    there, by module: memory where it does not fit, CPU where it does."""

    splits: Mapping[str, Split]
    excess_bytes: float
    seconds: float
    heavy: Mapping[str, float]

    @property
    def score(self) -> tuple[float, float]:
        return self.excess_bytes, self.seconds

    def pays_after(self, before: "_Trial") -> bool:
        """Whether this is better than `before` by enough to be worth its splits."""
        if before.excess_bytes:
            return self.excess_bytes < before.excess_bytes
        return not self.excess_bytes and self.seconds * _LEAST_GAIN <= before.seconds


def choose_splits(
    captured: Captured, cluster: Cluster, options: Options, *, table_splits: Mapping[str, int]
) -> dict[str, Split]:
    """The splits with which the net fits, and that make a group fastest, as far as they were tried. FCs that the cluster file pins stay whole.

    Roles that share the cores of a host, and a lone group PS, gain no speed by splits: there they are for what does not fit alone.
    """
    if not cluster.group_ps:
        return {}
    for_speed = cluster.group_ps > 1 and not cluster.shared_cores
    options = choose_fc_dtypes(captured.net, cluster, options)
    net = forward_net(captured, options)
    bound = [pattern for pattern, _ in cluster.pin] + [pattern for patterns in cluster.together for pattern in patterns]
    layers = {m: layer for m, layer in layers_of(net).items() if not any(fnmatchcase(m, pattern) for pattern in bound)}
    if not for_speed and _fits_whole(captured, cluster, options, table_splits):
        return {}
    best = _try(captured, cluster, options, table_splits, NO_FC_SPLITS)
    trials = min(_MOST_TRIALS, _OPS_TO_TRY // max(1, len(net.ops) * 4))
    while trials > 0 and (for_speed or best.excess_bytes):
        found = []
        for splits in _next(best, layers, cluster.group_ps):
            trials -= 1
            found.append(_try(captured, cluster, options, table_splits, splits))
            if trials <= 0:
                break
        ahead = min(found, key=lambda trial: trial.score, default=best)
        if not ahead.pays_after(best):
            break
        best = ahead
    return dict(best.splits)


def _next(best: _Trial, layers: Mapping[str, Layer], num_group_ps: int) -> Iterator[dict[str, Split]]:
    """One more FC of the bottleneck split, or one that is split in more parts."""
    most = max(2, num_group_ps)
    taken = {layers[m].following for m, s in best.splits.items() if s.kind == "co-partition"}
    weight: dict[str, float] = {}
    for module, cpu in best.heavy.items():
        whole = module if module in layers else module.rpartition("/")[0]
        if whole in layers and whole not in taken:
            weight[whole] = max(cpu, weight.get(whole, 0.0))
    for module in sorted(weight, key=lambda m: (-weight[m], m))[:_WIDEST]:
        layer, now = layers[module], best.splits.get(module)
        counts = sorted({2, most} if now is None else {min(2 * now.parts, most)})
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


def _fits_whole(captured: Captured, cluster: Cluster, options: Options, table_splits: Mapping[str, int]) -> bool:
    """Whether the net fits where the rules put it."""
    _, workload, start = _problem(captured, cluster, options, table_splits, NO_FC_SPLITS)
    return workload.fits(start)


def _problem(
    captured: Captured, cluster: Cluster, options: Options, table_splits: Mapping[str, int], splits: Mapping[str, Split]
) -> tuple[Net, Workload, Ints]:
    """The net with its FCs split, what is to be placed, and where the rules put it."""
    net, units, fixed, _ = lowered(captured, cluster, options, table_splits=table_splits, fc_splits=splits)
    workload = pinned(workload_of(net, units, fixed, cluster, options), cluster)
    return net, workload, places_of(decided(by_rules, net, workload), workload)


def _try(
    captured: Captured,
    cluster: Cluster,
    options: Options,
    table_splits: Mapping[str, int],
    splits: Mapping[str, Split],
) -> _Trial:
    net, workload, start = _problem(captured, cluster, options, table_splits, splits)
    forms = encodable(net, workload, allowed_encodings(net, options), cluster, options)
    seen = [workload, encoded(workload, forms, forms.possible)] if forms.possible.any() else [workload]
    found = [(w, refine(w, start, budget=_BUDGET)) for w in seen]
    trials = [
        _Trial(splits, _excess(w, refined.places), refined.seconds, _heavy(w, refined.places)) for w, refined in found
    ]
    return min(trials, key=lambda trial: trial.score)


def _excess(workload: Workload, places: Ints) -> float:
    """The bytes that do not fit, of all devices that units can be on."""
    beyond = workload.loads(places)[:, MEMORY] - workload.capacity[:, MEMORY]
    return float(np.maximum(beyond[: workload.num_places], 0.0).sum())


def _heavy(workload: Workload, places: Ints) -> dict[str, float]:
    """The CPU of each module on the busiest device; its memory on the fullest, where that is too full."""
    used = workload.utilization(places)[: workload.num_places]
    fullest = int(used[:, MEMORY].argmax())
    if used[fullest, MEMORY] > 1:
        return {
            unit.modules[0]: float(workload.unit_memory[u, fullest])
            for u, unit in enumerate(workload.units)
            if places[u] == fullest
        }
    busiest = int(np.unravel_index(int(used[:, :MEMORY].argmax()), used[:, :MEMORY].shape)[0])
    return {
        unit.modules[0]: float(workload.unit_cpu[u]) for u, unit in enumerate(workload.units) if places[u] == busiest
    }
