"""What is told of servers of workers from outside, from their reports: who has come and gone, and now and then how much they do."""

from collections.abc import Iterator, Mapping
from typing import Any

from htrain.sizes import traffic_text

_LINE_SECONDS = 10.0


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
