"""The part of a run in a lab that is measured: links are free until caches are warm, and limited from then on.

What was trained and what each link has carried are noted together, whenever the run says how far it is: roles report twice a second.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netlab import Lab, Traffic, since

SETTLING_SECONDS = 3.0  # after links were limited: what their buckets held, and reports of before, are over
_LAST_SHARE = 0.97  # of the examples: at a run's end some workers are done and others are not


@dataclass(frozen=True)
class Moment:
    """How far a run was: seconds since it began, examples trained, what each host's links have carried, and what roles have reported."""

    seconds: float
    examples: int
    links: Mapping[str, Traffic]
    reports: Mapping[str, Mapping[str, Any]]

    def total(self, what: str) -> float:
        """Of a figure that roles count up, the sum over those that do."""
        return float(sum(report.get(what, 0) for report in self.reports.values()))


@dataclass
class Window:
    """Called again and again while a run goes: limits the lab's links once `warm_examples` are trained, and keeps moments: `free` before, `limited` after."""

    lab: Lab
    metrics: Path
    warm_examples: int
    all_examples: int
    device: str = "eth0"
    free: list[Moment] = field(default_factory=list)
    limited: list[Moment] = field(default_factory=list)
    _read: int = 0
    _reports: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _limited_at: float = 0.0

    def __call__(self) -> None:
        for record in self._news():
            self._reports[record["role"]] = record
            if record["role"] != "run" or not 0 < record["examples"] <= self.all_examples * _LAST_SHARE:
                continue
            kept = self.limited if self._limited_at else self.free
            if not self._limited_at or record["seconds"] > self._limited_at + SETTLING_SECONDS:
                traffic = self.lab.traffic(self.device)
                kept.append(Moment(record["seconds"], record["examples"], traffic, dict(self._reports)))
            if not self._limited_at and record["examples"] >= self.warm_examples:
                self.lab.limit()
                self._limited_at = record["seconds"]

    def _news(self) -> list[dict[str, Any]]:
        """Lines that have been written since the last look."""
        if not self.metrics.exists():
            return []
        with self.metrics.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        self._read += len(whole) + (len(whole) > 0)
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def free_seconds(self) -> float:
        """For each example, with links that carry what they can: of the second half of the time before they were limited."""
        return _seconds(self.free[len(self.free) // 2], self.free[-1])

    @property
    def seconds(self) -> float:
        """For each example, with links as they are limited."""
        return _seconds(self.limited[0], self.limited[-1])

    def grown(self, what: str) -> float:
        """A figure that roles count up, for each example."""
        first, last = self.limited[0], self.limited[-1]
        return (last.total(what) - first.total(what)) / (last.examples - first.examples)

    def carried(self, host: str) -> Traffic:
        """By a host's link, in all of the window."""
        return since(self.limited[0].links[host], self.limited[-1].links[host])

    @property
    def examples(self) -> int:
        return self.limited[-1].examples - self.limited[0].examples


def _seconds(first: Moment, last: Moment) -> float:
    return (last.seconds - first.seconds) / max(last.examples - first.examples, 1)
