"""What a run leaves to read: metrics.jsonl and TensorBoard files in its folder."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.summary import scalar

from htrain.data.evaluation import normalized_entropy
from htrain.executor.record.run_folder import cannot_be_written
from htrain.executor.record.sent import SENT_TO, sent_in
from htrain.executor.record.totals import RunTotals
from htrain.executor.record.validations import Validation

_CHARTED = ("eps", "loss", "ne", "window_loss", "window_ne", "max_staleness", "mean_staleness")
_VALIDATED = ("log_loss", "ne", "auc", "calibration", "gauc", "ndcg", "recall", "mrr")
_COUNTS = ("examples", "log_loss", "positives", "cpu_seconds", "bytes_sent", "seconds_waited")
_ROLE_LINES_PER_SECOND = 40.0  # of all roles together: a thousand that each had two would fill 21 GB an hour
_MANY_ROLES = 250  # beyond which there are the fewer: each line is as long as there are peers
_POINTS = 2000  # of a chart, while it grows to twice its length: lines come the more seldom, the longer a run lasts, or weeks would fill the disk
_SELDOM_SECONDS = 30.0  # but as often as that
_FLUSH_SECONDS = 10.0  # between two flushes of the charts, each of which waits for the disk


_Report = tuple[RunTotals, Mapping[str, Mapping[str, Any]]]


class RunLog:
    """Appends to `folder`/metrics.jsonl, one JSON object per report, and to `folder`/tensorboard. Where roles are many, each has a line the more
    seldom; so have all, the longer a run lasts: two a second at first, one every 30 s after 17 hours.

    Training does not depend on it: what the disk refuses is told, once until it takes something again, and left out.
    Raises CheckpointError or UsageError where neither can be begun (`cannot_be_written`).
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self._path = folder / "metrics.jsonl"
        self._tell = tell
        self._is_refused = False
        self._flushed = time.monotonic()
        self._last: dict[str, tuple[float, Mapping[str, Any]]] = {}
        self._due = self._roles_due = 0.0  # seconds of the run at which it, and its roles, have their next lines
        self._told = -1.0  # of the last line of the run
        self._unwritten: _Report | None = None  # the last report, where it, or its roles, had no line
        try:
            self._file = self._path.open("ab", buffering=0)
            (folder / "tensorboard").mkdir(exist_ok=True)
            self._charts = EventsWriter(str(folder / "tensorboard" / "events"))
        except OSError as error:
            raise cannot_be_written(Path(error.filename or folder), error) from error

    def write(self, totals: RunTotals, reports: Mapping[str, Mapping[str, Any]]) -> None:
        """Log the run's totals, and each role's own report, where that is due."""
        self._unwritten = totals, reports
        if totals.seconds >= self._due:
            self._log(totals, reports, of_roles=totals.seconds >= self._roles_due)

    def _log(self, totals: RunTotals, reports: Mapping[str, Mapping[str, Any]], *, of_roles: bool) -> None:
        seldom = min(totals.seconds / _POINTS, _SELDOM_SECONDS)
        self._due = totals.seconds + seldom
        if of_roles:
            self._unwritten = None
            rarer = max(1.0, len(reports) / _MANY_ROLES)
            self._roles_due = totals.seconds + max(seldom, rarer * len(reports) / _ROLE_LINES_PER_SECOND)
        now = time.time()
        rates = self._rates_of(totals, reports) if of_roles else {}
        of_run = [{"time": now, "role": "run", **totals.to_dict()}] if totals.seconds != self._told else []
        self._told = totals.seconds
        records = [*of_run, *_records(now, reports, rates)]
        with self._telling():
            self._append("".join(map(_line, records)).encode())
            self._chart(dict(_points(totals, rates)), totals.examples, now)

    def _rates_of(self, totals: RunTotals, reports: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
        return {role: self._rates(role, report, totals.seconds) for role, report in reports.items()}

    def chart(self, validation: Validation) -> None:
        """What was found on the validation data, over the examples that had been trained, beside the run's own figures; `validations.jsonl` has it as JSON."""
        values = {name: float(getattr(validation, name)) for name in _VALIDATED}
        points = {f"validation/{name}": value for name, value in values.items() if math.isfinite(value)}
        with self._telling():
            self._chart(points, validation.examples, time.time())

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """What the disk refuses within is told once."""
        try:
            yield
            self._is_refused = False
        except OSError as error:
            if not self._is_refused:
                self._tell(
                    f"{self._path.parent}: metrics cannot be written ({error.strerror}); training goes on without"
                )
            self._is_refused = True

    def _append(self, data: bytes) -> None:
        """All of it or nothing: half a line would spoil the next."""
        begin = os.fstat(self._file.fileno()).st_size
        try:
            written = self._file.write(data)
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError:
            with suppress(OSError):
                self._file.truncate(begin)
            raise

    def _chart(self, points: Mapping[str, float], examples: int, now: float) -> None:
        """TensorBoard's own writer has a thread and a queue: a disk that refuses would end the one and fill the other."""
        for name, value in points.items():
            self._charts.write_event(Event(wall_time=now, step=examples, summary=scalar(name, value)))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._flushed = time.monotonic()
            self._charts.flush()

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

    def close(self) -> None:
        """Close both files, with the last report of every role; charts that the disk refuses are dropped. A second call changes nothing."""
        if self._file.closed:
            return
        if self._unwritten:
            self._log(*self._unwritten, of_roles=True)
        self._file.close()
        with suppress(OSError):
            self._charts.close()


def _records(
    now: float, reports: Mapping[str, Mapping[str, Any]], rates: Mapping[str, Mapping[str, float]]
) -> list[dict[str, Any]]:
    """The lines of those roles that have rates."""
    return [{"time": now, "role": role, **_readable(reports[role]), **found} for role, found in rates.items()]


def _readable(report: Mapping[str, Any]) -> dict[str, Any]:
    return {**report, SENT_TO: sent_in(report)} if SENT_TO in report else dict(report)


def _points(totals: RunTotals, rates: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, float]]:
    """The charts, and where they go on."""
    for role, found in rates.items():
        yield from ((f"{role.replace(':', '_')}/{name}", value) for name, value in found.items())
    values = totals.to_dict()
    yield from ((f"run/{name}", values[name]) for name in _CHARTED if values[name] is not None)
    hits = (("hit_rate", totals.caches.hit_rate), ("invalid_rate", totals.caches.invalid_rate))
    yield from ((f"cache/{name}", rate) for name, rate in hits if math.isfinite(rate))
    yield from ((f"cpu_share/{kind}", share) for kind, share in totals.cpu_share.items())


def _line(record: Mapping[str, Any]) -> str:
    """A line of JSON, which knows no nan."""
    return (
        json.dumps({k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}) + "\n"
    )
