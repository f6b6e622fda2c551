"""Rates corrected by a run: what its roles' CPU seconds say of the cost model's (`htrain calibrate --from`).

For each device i, with c_i and m_i the CPU seconds that the model gives an example's ops and messages, and y_i the measured ones,

    minimise over a, b   sum_i ((a c_i + b m_i) / y_i - 1)^2        with 1/20 <= a, b <= 20

Ops then take a times, messages b times as long.
"""

from dataclasses import dataclass, replace

import numpy as np

from htrain.cluster import Cluster
from htrain.errors import CheckpointError
from htrain.executor.measured import Measured

MOST = 20.0
_RATES = ("core_flops", "core_bf16_flops", "core_int8_flops", "core_batched_flops", "core_bandwidth", "core_gather_bandwidth",
          "core_scatter_bandwidth", "core_quantize_bandwidth")  # fmt: skip


@dataclass(frozen=True)
class Correction:
    """How many times longer ops and messages take than the cluster's rates say; the mean relative error before and after."""

    ops: float
    messages: float
    error_before: float
    error_after: float


def correct(cluster: Cluster, measured: Measured) -> tuple[Cluster, Correction]:
    """The cluster with rates that meet a run's CPU seconds. Raises CheckpointError when the run was too short to say anything."""
    rows = [
        (
            d.predicted_cpu_seconds,
            d.messages * cluster.message_nanoseconds * 1e-9 + d.message_bytes / cluster.message_bandwidth,
            d.cpu_seconds,
        )
        for d in measured.devices
        if d.cpu_seconds > 0 and d.predicted_cpu_seconds > 0
    ]
    if not rows or measured.examples == 0:
        raise CheckpointError("the run was too short to measure: train for some seconds")
    predicted, messages, seen = np.array(rows).T
    messages = np.minimum(messages, predicted)
    ops, factor = _fit(predicted - messages, messages, seen)
    before = float(np.abs(predicted / seen - 1).mean())
    after = float(np.abs((ops * (predicted - messages) + factor * messages) / seen - 1).mean())
    changes = {name: max(1, round(getattr(cluster, name) / ops)) for name in _RATES}
    changes |= {
        "op_nanoseconds": max(1, round(cluster.op_nanoseconds * ops)),
        "message_nanoseconds": max(1, round(cluster.message_nanoseconds * factor)),
        "message_bandwidth": max(1, round(cluster.message_bandwidth / factor)),
    }
    return replace(cluster, **changes), Correction(ops, factor, before, after)


def _fit(ops: np.ndarray, messages: np.ndarray, seen: np.ndarray) -> tuple[float, float]:
    """a and b by least squares; where one leaves its bounds it stays there, and the other is fitted alone."""
    terms = np.stack([ops / seen, messages / seen], 1)
    if len(seen) > 1 and np.linalg.matrix_rank(terms) > 1:
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
        f"CPU seconds of its devices were {correction.error_before:.0%} off in the mean, now {correction.error_after:.0%}"
    )
