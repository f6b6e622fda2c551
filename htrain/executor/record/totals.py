"""What a run has done so far: the sum over its roles' reports."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from htrain.data.evaluation import normalized_entropy
from htrain.executor.record.cache_totals import CacheTotals, sum_caches
from htrain.net.names import IN_GROUP, role_of

Reports = Mapping[str, Mapping[str, Any]]
EXAMPLE = "malformed_example"  # in a trainer's report: where its first malformed row stands, and what is wrong with it


@dataclass(frozen=True)
class RunTotals:
    """Lifetime figures of a run, and windowed ones over the time since an earlier report.

    `loss` and `ne` are lifetime means; `eps`, `window_loss` and `window_ne` are windowed. `staleness` counts, for each value, the dense updates
    that had it. `cpu_share` is CPU seconds per wall second, `memory_bytes` and `bytes_sent` are sums; all three by kind of role. A `malformed` row counts as
    often as it was read; `malformed_example` says where one stands.
    """

    seconds: float
    examples: int
    steps: int
    eps: float
    loss: float
    ne: float
    window_loss: float
    window_ne: float
    staleness: dict[int, int]
    sync_rounds: int
    malformed: int
    bytes_sent: dict[str, int]
    cpu_share: dict[str, float]
    memory_bytes: dict[str, int]
    caches: CacheTotals = CacheTotals()  # noqa: RUF009  frozen
    malformed_example: str = ""

    @property
    def max_staleness(self) -> int:
        """The largest staleness of a dense update so far (HT 2.3); 0 before the first update."""
        return max(self.staleness, default=0)

    @property
    def mean_staleness(self) -> float:
        """The mean staleness of dense updates so far; 0 before the first."""
        count = sum(self.staleness.values())
        return sum(value * n for value, n in self.staleness.items()) / count if count else 0.0

    def to_dict(self) -> dict[str, Any]:
        """For JSON: what is not finite becomes None."""
        values = {
            **asdict(self),
            "caches": self.caches.to_dict(),
            "max_staleness": self.max_staleness,
            "mean_staleness": self.mean_staleness,
        }
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def summarise(now: Reports, before: Reports, *, seconds: float, window_seconds: float) -> RunTotals:
    """The totals of the reports `now`; windows reach back to the reports `before`, `window_seconds` ago."""
    examples, positives, log_loss = (_sum(now, k) for k in ("examples", "positives", "log_loss"))
    since = [_sum(now, k) - _sum(before, k) for k in ("examples", "positives", "log_loss")]
    staleness: dict[int, int] = {}
    for role, report in now.items():
        if role_of(role) in IN_GROUP:
            for value, count in report.get("staleness", {}).items():
                staleness[int(value)] = staleness.get(int(value), 0) + count
    of_kind, of_kind_before = _by_kind(now), _by_kind(before)
    kinds = sorted(of_kind)
    per_second = 1 / window_seconds if window_seconds > 0 else 0.0
    cpu = {
        k: (_sum(of_kind[k], "cpu_seconds") - _sum(of_kind_before.get(k, {}), "cpu_seconds")) * per_second
        for k in kinds
    }
    return RunTotals(
        seconds=seconds,
        examples=int(examples),
        steps=int(_sum(now, "steps")),
        eps=since[0] * per_second,
        loss=log_loss / examples if examples else math.nan,
        ne=normalized_entropy(log_loss, positives, examples),
        window_loss=since[2] / since[0] if since[0] > 0 else math.nan,
        window_ne=normalized_entropy(since[2], since[1], since[0]) if since[0] > 0 else math.nan,
        staleness=staleness,
        sync_rounds=int(_sum(now, "sync_rounds")),
        malformed=int(_sum(now, "malformed")),
        bytes_sent={k: int(_sum(of_kind[k], "bytes_sent")) for k in kinds},
        cpu_share=cpu,
        memory_bytes={k: int(_sum(of_kind[k], "memory_bytes")) for k in kinds},
        caches=sum_caches(now.values()),
        malformed_example=next((str(report[EXAMPLE]) for report in now.values() if report.get(EXAMPLE)), ""),
    )


def _sum(reports: Reports, key: str) -> float:
    return sum(float(report.get(key, 0)) for report in reports.values())


def _by_kind(reports: Reports) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Those of each kind of role."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for role, report in reports.items():
        found.setdefault(role_of(role), {})[role] = report
    return found
