"""The settings to try, checked before data is read."""

from dataclasses import replace
from typing import Any

from htrain.advising.advice import Grid
from htrain.errors import UsageError
from htrain.spec.cache import capacity_rows
from htrain.spec.options import Options
from htrain.spec.policies import POLICIES

_MOST_WINDOW = 1_000_000
_MOST_STALENESS = 999_999_999
_CHOSEN = ("capacity", "policy", "window")  # of a cache's section, by the grid


def require_grid(options: Options, grid: Grid) -> tuple[Options, Grid]:
    """The options with a cache of the smallest size, and the grid with their staleness in it, sizes in rising order.

    Raises UsageError for a grid without settings or with impossible ones, and for options whose cache is not of the
    kind that is chosen, or says itself what is to be chosen.
    """
    cache: Any = options.cache
    if not cache.hits_as_given:
        raise UsageError(
            f"{cache.words} cannot be advised on: its hits are not its capacity's; leave --cache {cache.kind} out"
        )
    usual = type(cache)()
    for name in _CHOSEN:
        if getattr(cache, name) != getattr(usual, name):
            raise UsageError(
                f"--cache-{name} {getattr(cache, name)} has no effect: that is what advise chooses, among its --{_NAMES[name]}"
            )
    if owned := [f"{table}={capacity}" for table, capacity in cache.tables if capacity != "none"]:
        raise UsageError(
            f"--cache-table {owned[0]} has no effect: advise chooses capacities; TABLE=none leaves a table out"
        )
    for name in ("capacities", "policies", "windows", "staleness"):
        if not getattr(grid, name):
            raise UsageError(f"advise: {name}: is empty, want at least one to try")
    _require_values(grid)
    bounds = tuple(dict.fromkeys((*grid.staleness, cache.staleness)))
    ordered = replace(
        grid, capacities=tuple(sorted(dict.fromkeys(grid.capacities), key=_size)), staleness=tuple(sorted(bounds, key=_bound))
    )  # fmt: skip
    return replace(options, cache=replace(cache, capacity=ordered.capacities[0])), ordered


_NAMES = {"capacity": "capacities", "policy": "policies", "window": "windows"}


def _require_values(grid: Grid) -> None:
    for capacity in grid.capacities:
        capacity_rows(capacity, 1, where="advise: capacities")
    for policy in grid.policies:
        if POLICIES.get(policy, "") is not None:
            built_in = ", ".join(name for name, score in POLICIES.items() if score is None)
            raise UsageError(f"advise: policies: '{policy}' is not one of those that can be played: {built_in}")
    for window in grid.windows:
        if not 1 <= window <= _MOST_WINDOW:
            raise UsageError(f"advise: windows: {window} is not a number of batches from 1 to {_MOST_WINDOW:,}")
    for bound in grid.staleness:
        if bound != "unbounded" and not 0 <= bound <= _MOST_STALENESS:
            raise UsageError(f"advise: staleness: {bound} is neither a number from 0 on nor unbounded")


def _size(capacity: str) -> tuple[bool, float]:
    """Shares before numbers of rows."""
    return not capacity.endswith("%"), float(capacity.removesuffix("%"))


def _bound(staleness: int | str) -> float:
    return float("inf") if staleness == "unbounded" else float(staleness)
