"""A run's figures, from the reports of its roles: its totals so far, and its steady part. It has no clock: whoever asks says what time it is."""

from collections import Counter
from typing import Any

from htrain.executor.record.measured import Measured, measure
from htrain.executor.record.sent import SENT_TO, packed, sent_in
from htrain.executor.record.totals import EXAMPLE, RunTotals, summarise
from htrain.net.names import TRAINER, role_of
from htrain.plan.plan import Plan

_WINDOW_SECONDS = 5.0
_COUNTED, _STALENESS = ("cpu_seconds", "bytes_sent", "seconds_waited", "malformed", "sync_rounds"), "staleness"
SHORTEST_STEADY_SECONDS = 2.5  # roles report twice a second, each at its own time: over less, what one has sent does not go with what others have trained


class Figures:
    """The latest report of every role, and those of before that figures are reckoned from.

    Requires: each trainer has reported before `begin`, and `begin` is called before totals are asked for.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._trainers = [role for role in plan.cluster.roles if role_of(role) == TRAINER]
        self._reports: dict[str, dict[str, Any]] = {}
        self._before: dict[str, dict[str, Any]] = {}  # of processes that are gone
        self._examples = dict.fromkeys(self._trainers, 0)
        self.examples = (
            0  # that all trainers have trained, as far as they have told, since the run began, resumed or not
        )
        self._examples_before = 0
        self._began = 0.0
        self._first: dict[str, dict[str, Any]] = {}
        self._steady: list[tuple[float, dict[str, dict[str, Any]]]] = []
        self._windows: list[tuple[float, dict[str, dict[str, Any]]]] = []

    @property
    def reports(self) -> dict[str, dict[str, Any]]:
        """What each role has reported last."""
        return dict(self._reports)

    def report(self, role: str, metrics: dict[str, Any]) -> None:
        """A role says what it has measured since it started."""
        if role in self._before:
            metrics = _added(self._before[role], metrics)
        self._reports[role] = metrics
        if role in self._examples:
            trained = int(metrics.get("examples", 0))
            self.examples += trained - self._examples[role]
            self._examples[role] = trained

    def begin(self, now: float) -> None:
        """Training begins."""
        self._began = now
        self._first = self.reports
        self._examples_before = self.examples
        self._windows = [(now, self._first)]

    def begins_again(self, role: str) -> None:
        """The process of a role is followed by another, which counts some of what it does anew: that is added to what the one before has told."""
        before = self._reports.get(role, {})
        self._before[role] = {key: before[key] for key in (*_COUNTED, _STALENESS, SENT_TO, EXAMPLE) if key in before}

    @property
    def trained(self) -> int:
        """What they have trained since `begin`, as far as they have told."""
        return self.examples - self._examples_before

    @property
    def is_warm(self) -> bool:
        """Whether every trainer has done its first step of this run."""
        return all(self._reports[trainer]["steps"] > self._first[trainer]["steps"] for trainer in self._trainers)

    def last_step(self, role: str) -> str:
        """The last step that a role has told of, for an error."""
        report = self._reports.get(role, {})
        return str(report.get("steps", report.get("passes", "not known")))

    def repeated(self, role: str) -> int:
        """The batches that a trainer which was begun again trains again, as it has told."""
        return int(self._reports.get(role, {}).get("repeated", 0))

    def totals(self, now: float, *, ends: bool) -> RunTotals:
        """The totals now; windows are of the last seconds. `ends` says that a trainer has come to the end: what is reported from then on is not steady."""
        reports = self.reports
        self._windows.append((now, reports))
        while len(self._windows) > 2 and now - self._windows[1][0] > _WINDOW_SECONDS:
            self._windows.pop(0)
        if self.is_warm and not ends:
            self._steady = [*self._steady[:1], (now, reports)]
        then, before = self._windows[0]
        return summarise(reports, before, seconds=now - self._began, window_seconds=now - then)

    def measured(self, now: float) -> Measured:
        """Predicted against measured, over the steady part; over all of a run that is too short to have one."""
        if len(self._steady) > 1 and self._steady[1][0] - self._steady[0][0] >= SHORTEST_STEADY_SECONDS:
            (then, before), (now, after) = self._steady
        else:
            then, before, after = self._began, self._first, self._reports
        return measure(self._plan, before, after, now - then)


def _added(before: dict[str, Any], metrics: dict[str, Any]) -> dict[str, Any]:
    """What a role has measured, and the processes before it."""
    if not metrics:
        return metrics
    counted = {key: before.get(key, 0) + metrics[key] for key in _COUNTED if key in metrics}
    staleness = Counter(before.get(_STALENESS, {}))
    staleness.update(metrics.get(_STALENESS, {}))
    sent = Counter(sent_in(before))
    sent.update(sent_in(metrics))
    example = {EXAMPLE: before[EXAMPLE]} if EXAMPLE in before else {}
    return {**metrics, **counted, **example, _STALENESS: dict(staleness), SENT_TO: packed(sent)}
