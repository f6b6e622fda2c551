"""What a run leaves to read: metrics.jsonl and TensorBoard files in its folder."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from htrain.data.evaluation import normalized_entropy
from htrain.executor.totals import RunTotals

_CHARTED = ("eps", "loss", "ne", "window_loss", "window_ne", "max_staleness", "mean_staleness")
_COUNTS = ("examples", "log_loss", "positives", "cpu_seconds", "bytes_sent", "seconds_waited")


class RunLog:
    """Appends to `folder`/metrics.jsonl, one JSON object per report, and to `folder`/tensorboard."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "metrics.jsonl").open("a")
        self._charts = SummaryWriter(str(folder / "tensorboard"), write_to_disk=True)
        self._last: dict[str, tuple[float, Mapping[str, Any]]] = {}

    def write(self, totals: RunTotals, reports: Mapping[str, Mapping[str, Any]]) -> None:
        """Log the run's totals, and each role's own report."""
        now = time.time()
        values = totals.to_dict()
        self._line({"time": now, "role": "run", **values})
        for role, report in reports.items():
            rates = self._rates(role, report, totals.seconds)
            self._line({"time": now, "role": role, **report, **rates})
            for name, value in rates.items():
                self._charts.add_scalar(f"{role.replace(':', '_')}/{name}", value, totals.examples, walltime=now)
        self._file.flush()
        for name in _CHARTED:
            value = values[name]
            if value is not None:
                self._charts.add_scalar(f"run/{name}", value, totals.examples, walltime=now)
        for name, rate in (("hit_rate", totals.caches.hit_rate), ("invalid_rate", totals.caches.invalid_rate)):
            if math.isfinite(rate):
                self._charts.add_scalar(f"cache/{name}", rate, totals.examples, walltime=now)
        for kind, share in totals.cpu_share.items():
            self._charts.add_scalar(f"cpu_share/{kind}", share, totals.examples, walltime=now)

    def _rates(self, role: str, report: Mapping[str, Any], seconds: float) -> dict[str, float]:
        """What a role did since its last report, by what it reports: only finite values."""
        began, before = self._last.get(role, (seconds, report))
        self._last[role] = (seconds, report)
        since = {k: float(report[k]) - float(before[k]) for k in _COUNTS if k in report}
        rates = {"memory_mib": float(report.get("memory_bytes", 0)) / 2**20}
        staleness = report.get("staleness") or {}
        if staleness:
            rates["max_staleness"] = float(max(map(int, staleness)))
        if seconds > began:
            rates["cpu_share"] = since.get("cpu_seconds", 0.0) / (seconds - began)
            rates["sent_mb_per_second"] = since.get("bytes_sent", 0.0) / (seconds - began) / 1e6
            if "seconds_waited" in since:
                rates["wait_share"] = since["seconds_waited"] / (seconds - began)
            if "examples" in since:
                rates["eps"] = since["examples"] / (seconds - began)
        if since.get("examples"):
            rates["window_loss"] = since["log_loss"] / since["examples"]
            rates["window_ne"] = normalized_entropy(since["log_loss"], since["positives"], since["examples"])
        return {name: value for name, value in rates.items() if math.isfinite(value)}

    def _line(self, record: Mapping[str, Any]) -> None:
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        self._file.write(json.dumps(finite) + "\n")

    def close(self) -> None:
        self._file.close()
        self._charts.close()
