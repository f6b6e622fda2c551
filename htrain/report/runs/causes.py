"""Why a run was not as its plan predicted, in sentences, as far as its figures tell; where they do not, that is said.

What can be told: what was full is what limited the run, and trainers that waited did so for others. A share of a resource is what an example
asks of it times the EPS: where the one is as predicted, the other is the cause. Rows of a table travel once for each distinct id, and not
at all where a cache has them. What a run does not measure: latency, Python's lock, who else used the host, which ops took the time.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from htrain.net.names import role_of
from htrain.report.runs.comparison import Comparison, DeviceComparison, Pair
from htrain.sizes import memory_text, traffic_text

_ALIKE = 0.1  # so much more or less is as predicted
_FULL = 0.9  # a resource as busy as this limits the run
_MOST_FULL = 3  # that are named
_WAITED = 0.1  # trainers that wait for less are not held up
_LEAST_SHARE = 0.02  # of a resource that is worth a sentence
_LEAST_SHARE_BY_EPS = 0.1  # where an example asks what was predicted
_SHORT_SECONDS = 10.0  # a shorter steady part tells little


@dataclass(frozen=True)
class Evidence:
    """What else is known, of the plan and of the run's steady part.

    `waited` is the share of it for which trainers, in the mean, waited for others, and `stalled` for rows to be brought in ahead; `hit_rate`
    the share of rows that were found in caches, `predicted_hit_rate` what the plan counts with, None without a cache; nan is not known.
    `has_rounds`: groups exchange weights with centres in the background. `is_one_process`: roles are threads, with one lock among them.
    """

    waited: float
    stalled: float
    hit_rate: float
    predicted_hit_rate: float | None
    has_rounds: bool
    is_one_process: bool


@dataclass(frozen=True)
class Busy:
    """A resource of a device, or of the host, and its share in use."""

    what: str
    share: Pair
    device: DeviceComparison | None


def verdict(found: Comparison, known: Evidence) -> list[str]:
    """The run as a whole: how its EPS compare, what was full, and for how long trainers waited."""
    return list(_verdict(found, known))


def _verdict(found: Comparison, known: Evidence) -> Iterator[str]:
    how = _times(found.eps) + (f", within {_ALIKE:.0%}" if _is_alike(found.eps) else "")
    yield (
        f"{found.eps.measured:,.0f} EPS measured, {found.eps.predicted:,.0f} predicted ({how}), "
        f"over {found.seconds:.1f} s and {found.examples:,} examples in which all roles trained."
    )
    if found.seconds < _SHORT_SECONDS:
        yield "Over so short a time, figures are rough."
    full = sorted((b for b in busy(found) if b.share.measured >= _FULL), key=lambda b: -b.share.measured)
    if known.waited >= _WAITED or (known.waited >= 0 and not _is_alike(found.eps)):
        yield f"Trainers waited {known.waited:.0%} of the time for others{_stall(known)}."
    if full:
        yield from (_full(each) for each in full[:_MOST_FULL])
        if len(full) > _MOST_FULL:
            yield f"And {len(full) - _MOST_FULL} more were {_FULL:.0%} used or more."
    else:
        yield _nothing_full(found, known)


def _stall(known: Evidence) -> str:
    return f", {known.stalled:.0%} for rows that a cache was to bring in ahead" if known.stalled >= _LEAST_SHARE else ""


def busy(found: Comparison) -> list[Busy]:
    """Everything whose use a run measures."""
    parts = [
        Busy(f"the {what} of {device.name}", share, device)
        for device in found.devices
        for what, share in (("CPU", device.cpu), ("link", device.network))
    ]
    if found.shared:
        parts.append(Busy(f"the {found.num_shared} cores that all roles share", found.shared, None))
    return parts


def _full(busy: Busy) -> str:
    verb = "were" if busy.device is None else "was"
    text = f"What limited it: {busy.what} {verb} {busy.share.measured:.0%} used, predicted {busy.share.predicted:.0%}"
    device = busy.device
    if device is None:
        return f"{text}."
    asked = device.moved if busy.share is device.network else device.cpu_seconds
    unit = "bytes" if busy.share is device.network else "CPU time"
    if _is_alike(asked):
        return f"{text}; an example took the {unit} predicted."
    return f"{text}; an example took {asked.ratio:.2f}x the {unit} predicted." if asked.predicted else f"{text}."


def _nothing_full(found: Comparison, known: Evidence) -> str:
    parts = busy(found)
    fullest = max(parts, key=lambda b: b.share.measured) if parts else None
    was = f" (the fullest was {fullest.what}, {_used(fullest.share)})" if fullest else ""
    collectives = ", nor what collectives send" if any(device.has_unmeasured for device in found.devices) else ""
    return (
        f"No CPU and no link was full{was}, so what limited it cannot be told: "
        f"a run does not measure latency, nor who else used the host{collectives}{_lock(found, known)}."
    )


def _lock(found: Comparison, known: Evidence) -> str:
    """What can be said of Python's lock: it was not the limit where all threads that share one kept fewer than one core
    busy.
    """
    if known.is_one_process:
        cores = sum(device.cpu_seconds.measured for device in found.devices) * found.eps.measured
        full = ["the process of all roles"] if cores >= _FULL else []
    else:
        full = [d.name for d in found.devices if d.lock.measured >= _FULL and d.lock.predicted >= _LEAST_SHARE]
    return (
        f", nor Python's lock, which may have been full in {', '.join(full)}"
        if full
        else "; Python's lock was full in no role"
    )


def gaps(device: DeviceComparison, found: Comparison, known: Evidence) -> list[str]:
    """What of a device was not as predicted, each with its cause."""
    return list(_gaps(device, found, known))


def _gaps(device: DeviceComparison, found: Comparison, known: Evidence) -> Iterator[str]:
    if _counts(device.cpu) and not _is_alike(device.cpu_seconds):
        yield _cpu(device)
    elif _counts(device.cpu, _LEAST_SHARE_BY_EPS) and not _is_alike(device.cpu):
        yield f"CPU {_used(device.cpu)}: by EPS alone, {device.eps.ratio:.2f}x; an example took the CPU time predicted."
    if _counts(device.network) and not _is_alike(device.moved):
        yield from _traffic(device, found, known)
    elif _counts(device.network, _LEAST_SHARE_BY_EPS) and not _is_alike(device.network):
        yield f"network {_used(device.network)}: by EPS alone, {device.eps.ratio:.2f}x; an example took the bytes predicted."
    if device.memory_bytes.ratio > 1 + _ALIKE:
        seen, most = (memory_text(b) for b in (device.memory_bytes.measured, device.memory_bytes.predicted))
        yield f"memory {seen}, predicted at most {most}: a run measures the process as a whole, so what takes it cannot be told."


def _cpu(device: DeviceComparison) -> str:
    seconds = device.cpu_seconds
    text = (
        f"CPU {seconds.measured * 1e6:.1f} µs an example, predicted {seconds.predicted * 1e6:.1f} ({_times(seconds)})"
    )
    moved = device.moved
    if (
        moved.predicted
        and not device.has_unmeasured
        and not _is_alike(moved)
        and (moved.ratio > 1) == (seconds.ratio > 1)
    ):
        return f"{text}: it moved {moved.ratio:.2f}x the bytes, and messages are {device.message_share:.0%} of what was predicted."
    by = (
        f"whether its ops or its messages ({device.message_share:.0%} of what was predicted) do it, a run does not measure"
        if device.message_share >= _LEAST_SHARE
        else "by its ops, for it has next to no messages"
    )
    return f"{text}: {by}; htrain calibrate corrects the rates."


def _traffic(device: DeviceComparison, found: Comparison, known: Evidence) -> Iterator[str]:
    """Roles at the other end of a device's edges that sent or got more or less than predicted, in sentences."""
    ends: dict[str, Pair] = {}
    for edge in found.edges:
        if device.name in (edge.source, edge.target):
            other = role_of(edge.target if edge.source == device.name else edge.source)
            so_far = ends.get(other, Pair(0.0, 0.0))
            ends[other] = Pair(so_far.predicted + edge.predicted_bytes, so_far.measured + edge.measured_bytes)
    most = max(device.moved.predicted, device.moved.measured)
    for other, moved in ends.items():
        if not _is_alike(moved) and abs(moved.measured - moved.predicted) >= _LEAST_SHARE * most:
            yield (
                f"network, with {other}: {traffic_text(moved.measured)} an example, predicted {traffic_text(moved.predicted)} "
                f"({_times(moved)}): {_traffic_cause({role_of(device.name), other}, moved, known)}."
            )


def _traffic_cause(roles: set[str], moved: Pair, known: Evidence) -> str:
    more = moved.ratio > 1
    if roles == {"trainer", "sparse_ps"}:
        return _rows_cause(known, "more" if more else "fewer")
    if "dense_ps" in roles and known.has_rounds:
        return f"the background sync alone goes this way, and sent {'more' if more else 'less'} for each example"
    return "the cause cannot be told"


def _rows_cause(known: Evidence, more: str) -> str:
    if known.predicted_hit_rate is None:
        return f"batches had {more} distinct ids than the plan counts with (distinct_percent, which htrain calibrate corrects)"
    if math.isnan(known.hit_rate):
        return "the cause cannot be told: how many rows its caches had, the run does not say"
    return f"caches had {known.hit_rate:.0%} of the rows that steps asked for, the plan counts with {known.predicted_hit_rate:.0%}"


def _counts(share: Pair, least: float = _LEAST_SHARE) -> bool:
    return max(share.predicted, share.measured) >= least


def _is_alike(pair: Pair) -> bool:
    return abs(pair.ratio - 1) <= _ALIKE


def _used(share: Pair) -> str:
    return f"{share.measured:.0%} used, predicted {share.predicted:.0%}"


def _times(pair: Pair) -> str:
    return f"{pair.ratio:.2f}x" if pair.predicted else "none was predicted"
