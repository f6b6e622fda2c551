"""What caches have done: the sum over the trainers' caches, and over the clocks of the sparse PSs (HET 5.1, 5.2)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_COUNTS = ("hits", "misses", "run_out", "stale", "loaded", "evicted")
_HELD = (
    "own",
    "intra_checks",
    "intra_syncs",
    "inter_checks",
    "inter_syncs",
    "useless",
)  # of workers that hold each other's tables alone


@dataclass(frozen=True)
class CacheTotals:
    """Distinct rows that steps asked for: `hits` were in the cache, of these `run_out` had been written more than s times since they were
    fetched and `stale` were found too old by their server; `evicted` made room. `bytes` travelled, by kind: rows, gradients, clocks, keys.

    Of look-ahead caches, `misses` are conflict victims, `loaded` rows were brought in ahead, `stale` ones had changed since they were read, and
    trainers waited `stall_seconds` for a window (cDLRM 4); `bytes` are keys, rows and averages among several trainers.

    Of workers that hold each other's tables, `hits` are rows of their `own` and replicas. Of `intra_checks` of a replica's clock, `intra_syncs` brought it
    anew; `inter_checks` are pairs of a sample's rows, for which `inter_syncs` replicas came, of which `useless` ones were as before (HET-GMP 5.3).

    Histograms by powers of two, entry 0 for none, entry a for 2^(a-1) to 2^a - 1: `ages` of rows read by their own updates that had not been
    pushed, `lags` of rows checked by how far their clock was behind the global one.
    """

    hits: int = 0
    misses: int = 0
    run_out: int = 0
    stale: int = 0
    loaded: int = 0
    evicted: int = 0
    bytes: Mapping[str, int] = field(default_factory=dict)
    ages: tuple[int, ...] = ()
    lags: tuple[int, ...] = ()
    stall_seconds: float = 0.0
    own: int = 0
    intra_checks: int = 0
    intra_syncs: int = 0
    inter_checks: int = 0
    inter_syncs: int = 0
    useless: int = 0

    @property
    def hit_rate(self) -> float:
        """Rows that were in the cache, of all that were asked for; nan before the first."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else float("nan")

    @property
    def invalid_rate(self) -> float:
        """Rows that were in the cache but had to be fetched again, of all that were asked for."""
        asked = self.hits + self.misses
        return (self.run_out + self.stale) / asked if asked else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the fields, and both rates as soon as there are any."""
        rates = {"hit_rate": self.hit_rate, "invalid_rate": self.invalid_rate} if self.hits + self.misses else {}
        held = {name: getattr(self, name) for name in _HELD}
        counts = {name: getattr(self, name) for name in _COUNTS} | (held if any(held.values()) else {})
        histograms = {"ages": list(self.ages), "lags": list(self.lags)}
        return {**counts, **rates, "bytes": dict(self.bytes), **histograms, "stall_seconds": self.stall_seconds}


def add_counts(report: dict[str, Any], counts: Any) -> None:
    """Add what one cache has counted to a role's report."""
    for name in _COUNTS:
        report[name] = report.get(name, 0) + getattr(counts, name, 0)


def sum_caches(reports: Iterable[Mapping[str, Any]]) -> CacheTotals:
    """The totals of the `caches` entries of roles' reports."""
    counts = dict.fromkeys((*_COUNTS, *_HELD), 0)
    num_bytes: dict[str, int] = {}
    ages: Sequence[int] = ()
    lags: Sequence[int] = ()
    stalled = 0.0
    for report in reports:
        said = report.get("caches", {})
        for name in counts:
            counts[name] += said.get(name, 0)
        for kind, count in said.get("bytes", {}).items():
            num_bytes[kind] = num_bytes.get(kind, 0) + count
        stalled += said.get("stall_seconds", 0.0)
        ages, lags = added(ages, said.get("ages", ())), added(lags, said.get("lags", ()))
    return CacheTotals(**counts, bytes=num_bytes, ages=tuple(ages), lags=tuple(lags), stall_seconds=stalled)


def added(left: Sequence[int], right: Sequence[int]) -> Sequence[int]:
    """The sum of two histograms, of which one may not be there."""
    return [a + b for a, b in zip(left, right, strict=True)] if left and right else list(left or right)
