"""Rates corrected by a run: what its roles' CPU seconds say of the cost model's (`htrain calibrate --from`).

For each device i, with c_i and m_i the CPU seconds that the model gives an example's ops and messages, and y_i the measured ones,

    minimise over a, b   sum_i ((a c_i + b m_i) / y_i - 1)^2        with 1/20 <= a, b <= 20

Ops then take a times, messages b times as long. Behind caches the plan only guesses how much is asked of sparse PSs: these do not count, and how many
of a batch's ids are distinct stays as it was; a partition tells both. A HET step has its messages, however many rows they carry; a window of a look-ahead
cache that brings nothing has none, so that there messages are taken to be as many as the bytes that travelled say. Where messages have much the same share
in all devices, what they take cannot be told from what ops take, and a = b.
"""

from dataclasses import dataclass, replace

import numpy as np

from htrain.errors import CheckpointError
from htrain.executor.record.measured import Measured
from htrain.net.names import SPARSE_PS, role_of
from htrain.spec.cluster import Cluster
from htrain.spec.row_holder import RowHolder

MOST = 20.0
_LEAST_DIFFERENCE = 0.1  # between the shares that messages have in the CPU seconds of devices
_RATES = ("core_flops", "core_bf16_flops", "core_int8_flops", "core_batched_flops", "core_bandwidth", "core_gather_bandwidth",
          "core_scatter_bandwidth", "core_quantize_bandwidth")  # fmt: skip


@dataclass(frozen=True)
class Correction:
    """How many times longer ops and messages take than the cluster's rates say; how many of a batch's ids are distinct; the mean relative
    error of CPU seconds before and after."""

    ops: float
    messages: float
    distinct_percent: int
    error_before: float
    error_after: float


def correct(cluster: Cluster, measured: Measured, holder: RowHolder) -> tuple[Cluster, Correction]:
    """The cluster with rates that meet the CPU seconds of a run, where `holder` stands between trainers and tables.

    Raises CheckpointError when the run was too short to say anything.
    """
    guesses = holder.holds_rows and not holder.by_partition
    looks_ahead = guesses and not holder.hits_as_given
    rows = [
        (
            d.predicted_cpu_seconds - d.predicted_message_seconds,
            d.predicted_message_seconds * (_travelled(measured, d.name) if looks_ahead else 1.0),
            d.cpu_seconds,
        )
        for d in measured.devices
        if d.cpu_seconds > 0 and d.predicted_cpu_seconds > 0 and not (guesses and role_of(d.name) == SPARSE_PS)
    ]
    if not rows or measured.examples == 0:
        raise CheckpointError("the run was too short to measure: train for some seconds")
    work, messages, seen = np.array(rows).T
    ops, factor = _fit(work, messages, seen)
    before = float(np.abs((work + messages) / seen - 1).mean())
    after = float(np.abs((ops * work + factor * messages) / seen - 1).mean())
    changes = {name: max(1, round(getattr(cluster, name) / ops)) for name in _RATES}
    changes |= {
        "op_nanoseconds": max(1, round(cluster.op_nanoseconds * ops)),
        "core_key_nanoseconds": max(1, round(cluster.core_key_nanoseconds * ops)),
        "message_nanoseconds": max(1, round(cluster.message_nanoseconds * factor)),
        "message_tensor_nanoseconds": max(1, round(cluster.message_tensor_nanoseconds * factor)),
        "message_bandwidth": max(1, round(cluster.message_bandwidth / factor)),
    }
    changes["distinct_percent"] = cluster.distinct_percent if holder.holds_rows else _distinct(cluster, measured)
    return replace(cluster, **changes), Correction(ops, factor, changes["distinct_percent"], before, after)


def _travelled(measured: Measured, device: str) -> float:
    """The bytes that a device sent and received, as a share of those that were predicted."""
    mine = [e for e in measured.edges if device in (e.source, e.target)]
    predicted = sum(e.predicted_bytes for e in mine)
    return sum(e.measured_bytes for e in mine) / predicted if predicted else 1.0


def _distinct(cluster: Cluster, measured: Measured) -> int:
    """What comes from and goes to sparse PSs are distinct ids, and rows and gradients of them."""
    rows = [e for e in measured.edges if SPARSE_PS in (role_of(e.source), role_of(e.target))]
    predicted, seen = sum(e.predicted_bytes for e in rows), sum(e.measured_bytes for e in rows)
    return min(100, max(1, round(cluster.distinct_percent * seen / predicted))) if predicted else 100


def _fit(ops: np.ndarray, messages: np.ndarray, seen: np.ndarray) -> tuple[float, float]:
    """a and b by least squares; where one leaves its bounds it stays there, and the other is fitted alone. Of no messages, b is 1."""
    terms = np.stack([ops / seen, messages / seen], 1)
    if not messages.any():
        return _alone(terms[:, 0], np.zeros(len(seen))), 1.0
    shares = messages / (ops + messages)
    if shares.max() - shares.min() >= _LEAST_DIFFERENCE:
        a, b = np.linalg.lstsq(terms, np.ones(len(seen)), rcond=None)[0]
        if 1 / MOST <= a <= MOST and 1 / MOST <= b <= MOST:
            return float(a), float(b)
        candidates = [(bounded, _alone(terms[:, 1], terms[:, 0] * bounded)) for bounded in (1 / MOST, MOST)]
        candidates += [(_alone(terms[:, 0], terms[:, 1] * bounded), bounded) for bounded in (1 / MOST, MOST)]
        return min(candidates, key=lambda pair: float(np.square(terms @ np.array(pair) - 1).sum()))
    both = _alone(terms.sum(1), np.zeros(len(seen)))
    return both, both


def _alone(term: np.ndarray, given: np.ndarray) -> float:
    scale = float(np.square(term).sum())
    return float(np.clip(float((term * (1 - given)).sum()) / scale if scale else 1.0, 1 / MOST, MOST))


def factors_text(correction: Correction) -> str:
    """What was found, in a sentence."""
    return (
        f"ops take {correction.ops:.2f} times, messages {correction.messages:.2f} times as long as the cluster file said; "
        f"{correction.distinct_percent}% of a batch's ids are distinct; "
        f"CPU seconds of its devices were {correction.error_before:.0%} off in the mean, now {correction.error_after:.0%}"
    )
