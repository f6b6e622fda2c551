"""What is told, and kept, of servers of workers from outside, from their reports: who has come and gone, and now and then how much they do."""

from collections.abc import Iterator, Mapping
from typing import Any

from htrain.executor.record.run_log import RunLog
from htrain.executor.record.totals import Reports, RunTotals
from htrain.sizes import traffic_text

_LINE_SECONDS = 10.0
_LOG_SECONDS = 10.0  # between two lines of the metrics: servers run for as long as there are workers


class ServingNews:
    """Told once each; the first server speaks for all of who comes and goes, since workers are members of every server."""

    def __init__(self) -> None:
        self._told = 0
        self._line = ""
        self._due = 0.0

    def of(self, seconds: float, reports: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
        """What is new, `seconds` after the servers have begun."""
        members = [report["members"] for _, report in sorted(reports.items()) if "members" in report]
        if not members:
            return
        first = members[0]
        fresh = min(first["num_news"] - self._told, len(first["news"]))
        yield from first["news"][len(first["news"]) - fresh :]
        self._told = first["num_news"]
        line = _line(members)
        if seconds >= self._due and line != self._line:
            self._line, self._due = line, seconds + _LINE_SECONDS
            yield line


class ServingLog:
    """A run's log, which is written every ten seconds and at the end. News is left out: it would be kept again and again."""

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._due = 0.0
        self._last: tuple[RunTotals, Reports] | None = None

    def write(self, totals: RunTotals, reports: Reports) -> None:
        """What servers have reported by now."""
        self._last = totals, {role: _without_news(report) for role, report in reports.items()}
        if totals.seconds >= self._due:
            self._due = totals.seconds + _LOG_SECONDS
            self._log.write(*self._last)

    def close(self) -> None:
        """Write what was reported last."""
        if self._last:
            self._log.write(*self._last)
        self._log.close()


def _without_news(report: Mapping[str, Any]) -> Mapping[str, Any]:
    if "members" not in report:
        return report
    members = {name: value for name, value in report["members"].items() if name not in ("news", "num_news")}
    return {**report, "members": members}


def _line(members: list[Mapping[str, Any]]) -> str:
    total = {
        name: sum(each[name] for each in members)
        for name in members[0]
        if name.startswith(("rows", "bytes", "requests", "strangers"))
    }
    names = members[0]["workers"]
    known = f" ({', '.join(names[:8])})" if names else ""
    who = f"{len(names)} worker{'s' * (len(names) != 1)}{known}"
    strangers = f", {total['strangers']:,} strangers turned away" if total["strangers"] else ""
    return (
        f"{who}: {total['requests']:,} requests, {total['rows_fetched'] + total['rows_stale']:,} rows fetched, {total['rows_pushed']:,} pushed, "
        f"{traffic_text(total['bytes_received'])} received, {traffic_text(total['bytes_sent'])} sent{strangers}"
    )
