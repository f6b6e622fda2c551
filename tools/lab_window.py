"""The part of a run in a lab that is measured: links are free until caches are warm, and limited from then on.

What was trained and what each link has carried are noted together, whenever the run says how far it is: roles report twice a second.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netlab import Lab, Traffic, since

SETTLING_SECONDS = 6.0  # after links were limited: what was on its way, and what TCP took the links for, is over
DEVICES = ("eth0", "eth1")


class EnoughError(Exception):
    """The run has been measured, and need not go on."""


@dataclass(frozen=True)
class Moment:
    """How far a run was: seconds since it began, examples trained, what each host's links have carried by device, and what roles have reported."""

    seconds: float
    examples: int
    links: Mapping[str, Mapping[str, Traffic]]
    reports: Mapping[str, Mapping[str, Any]]

    def total(self, what: str) -> float:
        """Of a figure that roles count up, the sum over those that do."""
        return float(sum(report.get(what, 0) for report in self.reports.values()))


@dataclass
class Window:
    """Called again and again while a run goes: limits the lab's links once `warm_examples` are trained, keeps moments, `free` before and `limited` after, and
    raises EnoughError when these are `most_seconds` long, and `least_examples`."""

    lab: Lab
    metrics: Path
    warm_examples: int
    most_seconds: float
    least_examples: int
    free: list[Moment] = field(default_factory=list)
    limited: list[Moment] = field(default_factory=list)
    _read: int = 0
    _reports: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _limited_at: float = 0.0

    def __call__(self) -> None:
        for record in self._news():
            self._reports[record["role"]] = record
            if record["role"] == "run" and record["examples"]:
                self._look(record["seconds"], record["examples"])

    def _look(self, seconds: float, examples: int) -> None:
        kept = self.limited if self._limited_at else self.free
        if not self._limited_at or seconds > self._limited_at + SETTLING_SECONDS:
            links = {device: self.lab.traffic(device) for device in DEVICES}
            kept.append(Moment(seconds, examples, links, dict(self._reports)))
        if self.limited and self.seconds_passed > self.most_seconds and self.examples >= self.least_examples:
            raise EnoughError
        if not self._limited_at and examples >= self.warm_examples:
            self.lab.limit()
            self._limited_at = seconds

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
        first, last = self.free[len(self.free) // 2], self.free[-1]
        return (last.seconds - first.seconds) / max(last.examples - first.examples, 1)

    @property
    def seconds_passed(self) -> float:
        return self.limited[-1].seconds - self.limited[0].seconds

    @property
    def examples(self) -> int:
        return self.limited[-1].examples - self.limited[0].examples

    def grown(self, what: str) -> float:
        """A figure that roles count up."""
        return self.limited[-1].total(what) - self.limited[0].total(what)

    def carried(self, host: str, device: str = "eth0") -> Traffic:
        """By a host's link."""
        return since(self.limited[0].links[device][host], self.limited[-1].links[device][host])
