"""A run over time as arrays, for a plot or a DataFrame of one's own."""

from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from htrain.report.runs.metrics import Point, read_history

Curve = NDArray[np.float64]


@dataclass(frozen=True, eq=False)  # arrays have no equality that is true or false
class Curves:
    """A run at N moments, float64[N] each: behind how many `seconds` and `examples` of all its parts; then EPS, loss, NE, cache hits and staleness of dense
    weights over the seconds before, nan where there is none, and `sync_rounds` so far."""

    seconds: Curve
    examples: Curve
    eps: Curve
    loss: Curve
    ne: Curve
    hit_rate: Curve
    mean_staleness: Curve
    max_staleness: Curve
    sync_rounds: Curve


def curves(run_folder: str | Path) -> Curves:
    """How a run went over time, by its folder, while it trains or later; of a long run every second, fourth, ... moment, at most 2,048.

    All are empty of a run that has reported nothing yet. Raises CheckpointError for a metrics.jsonl that cannot be read.

        import htrain

        seen = htrain.curves("runs/a")
        for examples, loss, eps in zip(seen.examples, seen.loss, seen.eps):
            print(f"{examples:.0f} examples: loss {loss:.3f}, {eps:.0f} a second")
    """
    history = read_history(Path(run_folder), ())
    points = history.points if history else ()
    table = np.array([astuple(point) for point in points], np.float64).reshape(-1, len(fields(Point)))
    columns = {field.name: table[:, place] for place, field in enumerate(fields(Point))}
    return Curves(**{field.name: columns[field.name] for field in fields(Curves)})
