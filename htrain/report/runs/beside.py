"""A run and its plan side by side, in figures and words."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import to_builtins

from htrain.executor.record.validations import VALIDATIONS, news_of, to_dict
from htrain.plan.plan import Plan
from htrain.report.runs.causes import Evidence, gaps, verdict
from htrain.report.runs.comparison import Comparison, compare
from htrain.report.runs.folder import Run

_MOST_VALIDATIONS = 8


@dataclass(frozen=True)
class Beside:
    """A run beside its plan: `comparison` is None where it measured nothing, then there is no `verdict` and no `gaps` by device."""

    run: Run
    comparison: Comparison | None
    verdict: tuple[str, ...]
    gaps: Mapping[str, tuple[str, ...]]

    @property
    def validations(self) -> tuple[str, ...]:
        """What its last ones found, a sentence each, and where the best checkpoint is."""
        return tuple(_validations(self.run))

    def document(self) -> dict[str, Any]:
        """The same as JSON has it."""
        found = self.comparison
        return {
            "folder": str(self.run.folder),
            "state": self.run.state,
            "notes": list(self.run.notes),
            "waited": self.run.waited,
            "hit_rate": self.run.hit_rate,
            "validations": [to_dict(each) for each in self.run.validations],
            "kept": self.run.kept,
            "verdict": list(self.verdict),
            "comparison": to_builtins(found) if found else None,
            "rows": to_builtins(self.run.measured.rows) if self.run.measured else (),
            "gaps": {name: list(sentences) for name, sentences in self.gaps.items()},
        }


def beside(plan: Plan, run: Run) -> Beside:
    """A run beside the plan that it was of. Requires: `run` is of `plan`."""
    if run.measured is None:
        return Beside(run, None, (), {})
    found = compare(plan, run.measured)
    known = Evidence(
        run.waited,
        run.stalled,
        hit_rate=run.hit_rate,
        predicted_hit_rate=plan.cluster.cache_hit_percent / 100 if plan.options.cache.kind != "none" else None,
        is_one_process=run.is_one_process,
        has_rounds=plan.options.dense_sync.has_rounds(plan.cluster),
    )
    return Beside(
        run, found, tuple(verdict(found, known)), {d.name: tuple(gaps(d, found, known)) for d in found.devices}
    )


def _validations(run: Run) -> Iterator[str]:
    if len(run.validations) > _MOST_VALIDATIONS:
        yield f"{len(run.validations) - _MOST_VALIDATIONS:,} earlier validations: {run.folder / VALIDATIONS}"
    yield from (news_of(each) for each in run.validations[-_MOST_VALIDATIONS:])
    if run.kept:
        yield f"the best checkpoint is kept: {run.folder / 'checkpoints' / run.kept}"
