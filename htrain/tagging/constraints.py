"""The user's constraints on a placement: pins and modules that stay together, from the cluster file. One that cannot hold is an error."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

import numpy as np

from htrain.errors import PlacementError
from htrain.net.names import SPARSE_PS, role_of
from htrain.net.net import Net
from htrain.spec.cluster import Cluster
from htrain.tagging.units import Unit
from htrain.tagging.workload import Workload


def matching(pattern: str, names: Iterable[str], *, what: str) -> list[str]:
    """The names that a pattern such as `top.*` matches. Raises PlacementError when there is none."""
    known = list(names)
    found = [name for name in known if fnmatchcase(name, pattern)]
    if not found:
        close = get_close_matches(pattern, known, 3) or known[:3]
        raise PlacementError(f"{what} '{pattern}': no module or table has that name; there are {', '.join(close)}, ...")
    return found


def kept_together(net: Net, fixed: Mapping[int, str], cluster: Cluster) -> list[list[str]]:
    """The modules of each list in the cluster's `together`. Raises PlacementError for a pattern that names no module."""
    modules = dict.fromkeys(op.module for i, op in enumerate(net.ops) if i not in fixed)
    return [
        [m for pattern in patterns for m in matching(pattern, modules, what="together")]
        for patterns in cluster.together
    ]


def pinned_tables(tables: Iterable[str], net: Net, cluster: Cluster) -> dict[str, str]:
    """The device of each table that a pin names. A pin to a sparse PS is about tables, any other about modules.

    Raises PlacementError for a pin that names nothing, or nothing that could be there.
    """
    tables = list(tables)
    names = [*tables, *dict.fromkeys(op.module for op in net.ops)]
    found: dict[str, str] = {}
    for pattern, device in cluster.pin:
        matched = matching(pattern, names, what="pin")
        for_tables = role_of(device) == SPARSE_PS
        fitting = [name for name in matched if (name in tables) == for_tables]
        if not fitting:
            may = "the trainer or a group PS" if for_tables else "a sparse PS"
            kind = "module" if for_tables else "table"
            raise PlacementError(f"pin '{pattern}: {device}': {kind} '{matched[0]}' can be on {may} only")
        for table in fitting if for_tables else ():
            if found.setdefault(table, device) != device:
                raise PlacementError(
                    f"table '{table}' is pinned to {found[table]} and to {device}: drop one of the pins"
                )
    return found


def pinned(workload: Workload, cluster: Cluster) -> Workload:
    """The workload with `allowed` as the pins say. Raises PlacementError naming the pin that cannot hold."""
    allowed = workload.allowed.copy()
    reasons: dict[str, str] = {}
    for pattern, device in cluster.pin:
        for u in _units(pattern, workload.units) if role_of(device) != SPARSE_PS else ():
            unit = workload.units[u]
            if unit.name in reasons and not allowed[u, workload.devices.index(device)]:
                raise PlacementError(
                    f"pin '{pattern}: {device}': module '{unit.name}' is {reasons[unit.name]}: drop one of the pins"
                )
            if not workload.allowed[u, workload.devices.index(device)]:
                raise PlacementError(
                    f"pin '{pattern}: {device}': module '{unit.name}' holds weights, of which the {cluster.trainers} trainers of a group "
                    "share one copy: pin it to a group PS"
                )
            allowed[u] = np.arange(workload.num_places) == workload.devices.index(device)
            reasons[unit.name] = f"pinned by '{pattern}: {device}' of the cluster file"
    return replace(workload, allowed=allowed, pinned=reasons)


def _units(pattern: str, units: Sequence[Unit]) -> list[int]:
    return [u for u, unit in enumerate(units) if any(fnmatchcase(module, pattern) for module in unit.modules)]
