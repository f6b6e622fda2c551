"""A run over time as small charts: what the templates draw, in pixels of a chart."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from htrain.report.runs.metrics import History, Point

WIDTH, HEIGHT = 360, 120
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 8, 20  # around the lines: figures at the left and below
FRAME = {"WIDTH": WIDTH, "HEIGHT": HEIGHT, "LEFT": LEFT, "RIGHT": RIGHT, "TOP": TOP, "BOTTOM": BOTTOM}
_MOST_POINTS = 180
_STALENESS: dict[str, Callable[[Point], float]] = {
    "mean": lambda p: p.mean_staleness,
    "most": lambda p: p.max_staleness,
}

Series = Sequence[tuple[float, float]]  # seconds and figure


@dataclass(frozen=True)
class Curve:
    """A line of a chart, as SVG says it; `kind` is its class, and `name` what it is where a chart has several."""

    name: str
    kind: str
    path: str


@dataclass(frozen=True)
class Chart:
    """`note` is the newest figure, or the highest; `ticks` are figures with their y, `marks` the x where the run was resumed, `ends` the
    seconds at both ends."""

    title: str
    note: str
    curves: tuple[Curve, ...]
    ticks: tuple[tuple[str, float], ...]
    marks: tuple[float, ...]
    ends: tuple[float, float]


@dataclass(frozen=True)
class _Frame:
    """What seconds and figures a chart shows."""

    begin: float
    end: float
    low: float
    high: float

    def x(self, seconds: float) -> float:
        span = (seconds - self.begin) / (self.end - self.begin)
        return round(LEFT + min(1.0, max(0.0, span)) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        span = self.high / 2 - self.low / 2  # halves: between the largest numbers there are more than one can say
        share = min(1.0, max(0.0, (value / 2 - self.low / 2) / span)) if span else 0.5
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def charts(history: History, predicted_eps: float) -> tuple[Chart, ...]:
    """EPS, loss, NE, staleness, cache hits and sync rounds, as far as the run has them; none of a run with less than two reports."""
    found = (
        _chart(history, "EPS", {"": lambda p: p.eps}, "{:,.0f}".format, floor=0.0, level=predicted_eps),
        _chart(history, "loss", {"": lambda p: p.loss}, "{:.4f}".format),
        _chart(history, "NE", {"": lambda p: p.ne}, "{:.4f}".format),
        _chart(history, "staleness", _STALENESS, "{:.1f}".format, floor=0.0),
        _chart(history, "cache hits", {"": lambda p: p.hit_rate}, "{:.1%}".format),
        _chart(history, "sync rounds", {"": _rounds}, "{:,.0f}".format, floor=0.0),
    )
    return tuple(chart for chart in found if chart)


def _rounds(point: Point) -> float:
    return point.sync_rounds or math.nan


def _chart(
    history: History,
    title: str,
    series: dict[str, Callable[[Point], float]],
    text: Callable[[float], str],
    *,
    floor: float = math.inf,
    level: float = math.nan,
) -> Chart | None:
    """Each series by its name, and a level to compare with; figures from `floor`, or from the least, on. None where there is nothing to see."""
    points = history.points
    lines = {name: _thinned([(p.seconds, figure(p)) for p in points]) for name, figure in series.items()}
    values = [value for line in lines.values() for _, value in line if math.isfinite(value)]
    if len(values) < 2 * len(lines) or points[-1].seconds <= points[0].seconds:
        return None
    low, high = min(*values, floor), max([*values, level] if math.isfinite(level) else values)
    high = high if high > low else min(low + (abs(low) or 1.0), sys.float_info.max)
    frame = _Frame(points[0].seconds, points[-1].seconds, low, high)
    curves = [Curve(name, f"line-{k}", _path(line, frame)) for k, (name, line) in enumerate(lines.items())]
    if math.isfinite(level):
        curves.append(Curve("predicted", "level", _path([(frame.begin, level), (frame.end, level)], frame)))
    last = next(value for _, value in reversed(lines[next(iter(lines))]) if math.isfinite(value))
    note = f"at most {text(max(values))}" if math.isfinite(level) else f"{text(last)} at the end"
    return Chart(
        title,
        note,
        tuple(curves),
        ticks=tuple((text(value), frame.y(value)) for value in (frame.low, frame.high)),
        marks=tuple(frame.x(seconds) for seconds in history.resumed_at),
        ends=(frame.begin, frame.end),
    )


def _thinned(values: Series) -> list[tuple[float, float]]:
    """The means of as many neighbours as leave _MOST_POINTS at most; what is not finite counts for nothing."""
    size = -(-len(values) // _MOST_POINTS) or 1
    return [_mean(values[at : at + size]) for at in range(0, len(values), size)]


def _mean(values: Series) -> tuple[float, float]:
    figures = [figure for _, figure in values if math.isfinite(figure)]
    return values[-1][0], sum(figures) / len(figures) if figures else math.nan


def _path(line: Series, frame: _Frame) -> str:
    """A polyline, broken where there is no figure."""
    return " ".join(_steps(line, frame))


def _steps(line: Series, frame: _Frame) -> Iterator[str]:
    is_down = False
    for seconds, value in line:
        if not math.isfinite(value):
            is_down = False
            continue
        yield f"{'L' if is_down else 'M'}{frame.x(seconds)} {frame.y(value)}"
        is_down = True
