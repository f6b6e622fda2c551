"""What a run leaves to read: metrics.jsonl and TensorBoard files in its folder."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from htrain.executor.totals import RunTotals

_CHARTED = ("eps", "loss", "ne", "window_loss", "window_ne", "max_staleness", "mean_staleness")


class RunLog:
    """Appends to `folder`/metrics.jsonl, one JSON object per report, and to `folder`/tensorboard."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "metrics.jsonl").open("a")
        self._charts = SummaryWriter(str(folder / "tensorboard"), write_to_disk=True)

    def write(self, totals: RunTotals, reports: Mapping[str, Mapping[str, Any]]) -> None:
        """Log the run's totals, and each role's own report."""
        now = time.time()
        values = totals.to_dict()
        self._line({"time": now, "role": "run", **values})
        for role, report in reports.items():
            self._line({"time": now, "role": role, **report})
        self._file.flush()
        for name in _CHARTED:
            value = values[name]
            if value is not None:
                self._charts.add_scalar(f"run/{name}", value, totals.examples, walltime=now)
        for kind, share in totals.cpu_share.items():
            self._charts.add_scalar(f"cpu_share/{kind}", share, totals.examples, walltime=now)

    def _line(self, record: Mapping[str, Any]) -> None:
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        self._file.write(json.dumps(finite) + "\n")

    def close(self) -> None:
        self._file.close()
        self._charts.close()
