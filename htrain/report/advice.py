"""Advice as text: hit rates by capacity, policy and window beside Belady's bound; what staleness costs; tables; and
what is recommended."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from htrain.advising.advice import LINKS, Advice, Candidate, Setting
from htrain.sizes import traffic_text

_MOST_TABLES = 32


def advice_text(advice: Advice) -> str:
    """Several lines."""
    parts = [
        _basis(advice),
        *_by_capacity(advice),
        "",
        *_by_staleness(advice),
        "",
        *_by_table(advice),
        "",
        recommended_text(advice),
    ]
    return "\n".join(parts)


def recommended_text(advice: Advice) -> str:
    """What is recommended, in a line."""
    chosen = advice.recommended
    setting, link = chosen.setting, LINKS[0]
    said = f"capacity {setting.capacity}, {setting.policy}, window {setting.window}, staleness {setting.staleness}: "
    return (
        f"{f'recommended, at the knee: {said}' if advice.saves else f'recommended: no cache, for none that was tried saves bytes. The best of them, {said}'}"
        f"{chosen.share.hit_rate:.1%} of rows in the cache, {traffic_text(chosen.traffic.bytes_per_example)} of rows an example "
        f"({traffic_text(advice.uncached.bytes_per_example)} without), links of {link} Gbit/s allow {chosen.traffic.eps[0]:,.0f} EPS "
        f"({advice.uncached.eps[0]:,.0f} without)"
    )


def sample_text(advice: Advice) -> str:
    """How much was looked at."""
    basis = advice.basis
    sample = "all rows" if basis.rate == 1 else f"a sample of one in {1 / basis.rate:,.0f} rows"
    return f"{basis.accesses:,} distinct rows of batches, {sample}; the last {basis.counted:,} of {basis.batches:,} batches count"


def _basis(advice: Advice) -> str:
    basis = advice.basis
    trainers = "1 trainer" if basis.trainers == 1 else f"{basis.trainers:,} trainers"
    return f"{basis.data}, {basis.model}: {trainers}, batches of {basis.batch_size:,}; {sample_text(advice)}\n"


def _by_capacity(advice: Advice) -> Iterator[str]:
    staleness = advice.recommended.setting.staleness
    of_bound = [each for each in advice.candidates if each.setting.staleness == staleness]
    ways = list(dict.fromkeys((each.setting.policy, each.setting.window) for each in of_bound))
    policies = [policy if policy != ways[place - 1][0] or not place else "" for place, (policy, _) in enumerate(ways)]
    yield (
        f"{'hit rate':<12}"
        + "".join(f"{policy:>11}" for policy in policies)
        + f"{'Belady':>11}{'bytes':>11}{'best':>22}"
    )
    yield f"{'  window':<12}" + "".join(f"{window:>11}" for _, window in ways)
    for capacity in dict.fromkeys(each.setting.capacity for each in of_bound):
        row = [each for each in of_bound if each.setting.capacity == capacity]
        best = min(row, key=lambda each: each.traffic.bytes_per_example)
        cells = "".join(f"{each.share.hit_rate:>11.1%}" for each in row)
        way = f"{best.setting.policy} window {best.setting.window}"
        yield f"{capacity:<12}{cells}{advice.best[capacity]:>11.1%}{traffic_text(best.traffic.bytes_per_example):>11}{way:>22}"
    yield f"{'no cache':<12}{'':>{11 * len(ways) + 11}}{traffic_text(advice.uncached.bytes_per_example):>11}"


def _by_staleness(advice: Advice) -> Iterator[str]:
    setting = advice.recommended.setting
    heads = "".join(f"{f'EPS, {link} Gbit/s':>18}" for link in LINKS)
    yield f"{'staleness':<12}{'hit rate':>11}{'invalid':>11}{'bytes':>11}{heads}"
    for bound in dict.fromkeys(each.setting.staleness for each in advice.candidates):
        each = advice.at(Setting(setting.capacity, setting.policy, setting.window, bound))
        eps = "".join(f"{value:>18,.0f}" for value in each.traffic.eps)
        yield f"{bound:<12}{each.share.hit_rate:>11.1%}{each.share.invalid:>11.1%}{traffic_text(each.traffic.bytes_per_example):>11}{eps}"


def _by_table(advice: Advice) -> Iterator[str]:
    wide = max(len("table"), *(len(table.name) for table in advice.tables[:_MOST_TABLES]))
    yield f"{'table':<{wide}}{'rows':>15}{'used':>15}{'of a batch':>12}{'hit rate':>10}{'invalid':>10}"
    for table, share in list(zip(advice.tables, advice.recommended.tables, strict=True))[:_MOST_TABLES]:
        yield (
            f"{table.name:<{wide}}{table.rows:>15,}{table.used:>15,.0f}{table.asked:>12,.1f}{share.hit_rate:>10.1%}{share.invalid:>10.1%}"
        )
    if len(advice.tables) > _MOST_TABLES:
        yield f"and {len(advice.tables) - _MOST_TABLES} more: --json has all"


def advice_document(advice: Advice) -> dict[str, Any]:
    """The figures as JSON has them."""
    shares = zip(advice.tables, advice.recommended.tables, strict=True)
    return {
        "basis": asdict(advice.basis),
        "links_gbit": list(LINKS),
        "recommended": _line(advice.recommended),
        "uncached": asdict(advice.uncached),
        "best": dict(advice.best),
        "candidates": [_line(each) for each in advice.candidates],
        "tables": [{**asdict(table), **asdict(share)} for table, share in shares],
        "curves": [asdict(curve) for curve in advice.curves],
    }


def _line(each: Candidate) -> dict[str, Any]:
    return {**asdict(each.setting), **asdict(each.share), **asdict(each.traffic)}
