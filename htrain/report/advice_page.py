"""The page of advice: curves of hit rates and bytes over capacities, and every figure behind them. One file, like
that of a plan."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from htrain.advising.advice import LINKS, Advice, Candidate, Curve
from htrain.errors import DataError
from htrain.report.advice import recommended_text, sample_text
from htrain.report.rendering import rendered, require_page, write_page
from htrain.sizes import traffic_text

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 10, 34
FRAME = {"WIDTH": WIDTH, "HEIGHT": HEIGHT, "LEFT": LEFT, "RIGHT": RIGHT, "TOP": TOP, "BOTTOM": BOTTOM}
_TICKS = 5

Points = Sequence[tuple[float, float]]  # rows of the caches, and a figure


@dataclass(frozen=True)
class Line:
    """A line of a chart: its name, its class, its path, and the points that are marked."""

    name: str
    kind: str
    path: str
    marks: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True)
class Chart:
    """Lines over capacities, in pixels; `ticks` are figures with their y, `sizes` capacities with their x, and `knee`
    is the x of what is recommended."""

    title: str
    lines: tuple[Line, ...]
    ticks: tuple[tuple[str, float], ...]
    sizes: tuple[tuple[str, float], ...]
    knee: float


def advice_html(advice: Advice) -> str:
    """The page. The same advice gives the same text."""
    return rendered(
        "advice.html",
        advice=advice,
        recommended=recommended_text(advice),
        sample=sample_text(advice),
        charts=tuple(_charts(advice)),
        frame=FRAME,
        links=LINKS,
        tables=tuple(zip(advice.tables, advice.recommended.tables, strict=True)),
    )


def write_advice_page(advice: Advice, path: Path) -> None:
    """Write the page to `path`: whole, or not at all; an older page there is replaced, and nothing else. Raises
    DataError."""
    write_page(path, partial(advice_html, advice), DataError)


def require_writable(path: Path) -> None:
    """Raises DataError where `write_advice_page` would."""
    require_page(path, DataError)


def _charts(advice: Advice) -> Iterator[Chart]:
    chosen = advice.recommended.setting
    of_bound = [each for each in advice.candidates if each.setting.staleness == chosen.staleness]
    by_policy = {
        policy: _best(advice, [each for each in of_bound if each.setting.policy == policy], _hits)
        for policy in dict.fromkeys(each.setting.policy for each in of_bound)
    }
    belady = [(_rows(advice, capacity), value) for capacity, value in advice.best.items()]
    yield _chart(advice, "hit rate", {**by_policy, "Belady": belady}, "{:.0%}".format, top=1.0)
    by_window = {
        f"{chosen.policy}, window {window}": _points(
            advice, [e for e in of_bound if (e.setting.policy, e.setting.window) == (chosen.policy, window)], _hits
        )
        for window in dict.fromkeys(each.setting.window for each in of_bound)
    }
    yield _chart(advice, "hit rate by window", by_window, "{:.0%}".format, top=1.0)
    by_staleness = {
        f"s = {bound}": _best(
            advice, [e for e in advice.candidates if e.setting.staleness == bound], _bytes, least=True
        )
        for bound in dict.fromkeys(each.setting.staleness for each in advice.candidates)
    }
    yield _chart(advice, "bytes of an example", by_staleness, traffic_text, top=advice.uncached.bytes_per_example)
    for curve in advice.curves[:4]:
        name = f"LRU's stack distances, {curve.cache}"
        yield _chart(advice, name, {"hit rate": _thinned(curve)}, "{:.0%}".format, top=1.0, rows=curve.rows)


def _hits(each: Candidate) -> float:
    return each.share.hit_rate


def _bytes(each: Candidate) -> float:
    return each.traffic.bytes_per_example


def _rows(advice: Advice, capacity: str) -> float:
    """The rows of all caches at a capacity, as a share where they say one."""
    total = sum(curve.rows for curve in advice.curves)
    caches = len(advice.curves)
    return float(capacity.removesuffix("%")) / 100 * total if capacity.endswith("%") else float(capacity) * caches


def _points(advice: Advice, candidates: Sequence[Candidate], figure: Callable[[Candidate], float]) -> Points:
    return [(_rows(advice, each.setting.capacity), figure(each)) for each in candidates]


def _best(
    advice: Advice, candidates: Sequence[Candidate], figure: Callable[[Candidate], float], *, least: bool = False
) -> Points:
    """The best at each capacity."""
    found: dict[float, float] = {}
    for rows, value in _points(advice, candidates, figure):
        found[rows] = min(found.get(rows, math.inf), value) if least else max(found.get(rows, -math.inf), value)
    return list(found.items())


def _thinned(curve: Curve) -> Points:
    return [(float(size), hits) for size, hits in zip(curve.sizes, curve.hits, strict=True) if size <= curve.rows]


def _chart(
    advice: Advice,
    title: str,
    series: dict[str, Points],
    text: Callable[[float], str],
    *,
    top: float,
    rows: int = 0,
) -> Chart:
    """Lines by name from 0 to `top`, over rows on a logarithmic scale; of one cache with `rows`, or of all."""
    sizes = [size for line in series.values() for size, _ in line] or [1.0]
    low, high = math.log(max(1.0, min(sizes))), math.log(max(2.0, *sizes))
    span = max(high - low, 1e-9)

    def x(size: float) -> float:
        return round(LEFT + (math.log(max(1.0, size)) - low) / span * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - min(1.0, value / (top or 1.0)) * (HEIGHT - TOP - BOTTOM), 1)

    lines = []
    for number, (name, points) in enumerate(series.items()):
        path = " ".join(f"{'L' if k else 'M'}{x(size)} {y(value)}" for k, (size, value) in enumerate(points))
        marks = tuple((x(size), y(value), text(value)) for size, value in points) if len(points) <= 12 else ()
        lines.append(Line(name, "level" if name == "Belady" else f"line-{number}", path, marks))
    total = rows or sum(curve.rows for curve in advice.curves)
    knee = _rows(advice, advice.recommended.setting.capacity) * total / sum(curve.rows for curve in advice.curves)
    ends = [math.exp(low + span * step / (_TICKS - 1)) for step in range(_TICKS)]
    return Chart(
        title,
        tuple(lines),
        ticks=tuple((text(top * step / (_TICKS - 1)), y(top * step / (_TICKS - 1))) for step in range(_TICKS)),
        sizes=tuple((f"{100 * size / total:.2g}%", x(size)) for size in ends),
        knee=x(knee),
    )
