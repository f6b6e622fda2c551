"""What a simulation found, and how it is told."""

from collections.abc import Mapping
from dataclasses import dataclass

_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class DeviceUse:
    """One device, the mean of its roles: the share of its cores, of its links each way and
    of Python's lock that is busy, seconds that work waited for a
    core (mean, and 95 of 100), and the share of cores over time in equal windows."""

    device: str
    cpu: float
    received: float
    sent: float
    lock: float
    mean_wait_seconds: float
    late_wait_seconds: float
    cpu_over_time: tuple[float, ...]


@dataclass(frozen=True)
class WindowUse:
    """Windows of `batches` batches, the last ones: the shares of time in which training waited for one, put one into the caches, and in which the next
    one's rows were found and read beside it."""

    batches: int
    stalled: float
    placing: float
    prefetching: float


@dataclass(frozen=True)
class Simulated:
    """EPS of the whole run over `seconds` of simulated time and `steps` steps; `staleness` counts dense updates by it (HT 2.3); `windows`
    are those that trainers read ahead, if they do."""

    eps: float
    seconds: float
    steps: int
    devices: tuple[DeviceUse, ...]
    staleness: Mapping[int, int]
    windows: WindowUse | None = None

    @property
    def bottleneck(self) -> tuple[str, str, float]:
        """The device and dimension that is busiest, and its share."""
        shares = [
            (share, use.device, what)
            for use in self.devices
            for what, share in (
                ("CPU", use.cpu),
                ("network in", use.received),
                ("network out", use.sent),
                ("Python's lock", use.lock),
            )
        ]
        share, device, what = max(shares, default=(0.0, "", ""))
        return device, what, share

    @property
    def max_staleness(self) -> int:
        """The largest staleness of a dense update (HT 2.3); 0 where there was none."""
        return max(self.staleness, default=0)

    @property
    def mean_staleness(self) -> float:
        """The mean staleness of dense updates; 0 where there was none."""
        count = sum(self.staleness.values())
        return sum(value * n for value, n in self.staleness.items()) / count if count else 0.0


def simulated_text(found: Simulated) -> str:
    """EPS, the busiest device, a line per device with its CPU over time, and the staleness of updates."""
    device, what, share = found.bottleneck
    lines = [
        f"simulated {found.eps:,.0f} EPS over {found.seconds:.2f} s; busiest: {what} of {device}, {share:.0%}",
        f"{'device':<13}{'CPU':>6}{'in':>6}{'out':>6}{'lock':>6}{'wait':>10}{'95 %':>10}  CPU over time",
    ]
    for use in found.devices:
        lines.append(
            f"{use.device:<13}{use.cpu:>6.0%}{use.received:>6.0%}{use.sent:>6.0%}{use.lock:>6.0%}{use.mean_wait_seconds * 1e3:>7.2f} ms"
            f"{use.late_wait_seconds * 1e3:>7.2f} ms  {_bars(use.cpu_over_time)}"
        )
    if found.staleness:
        lines.append(f"dense staleness: mean {found.mean_staleness:.1f}, at most {found.max_staleness}")
    if found.windows:
        w = found.windows
        lines.append(
            f"windows of {w.batches} batches: training waits for {w.stalled:.1%} of the time, and puts them into the caches for {w.placing:.1%}; the next one "
            f"is found and read for {w.prefetching:.1%}"
        )
    return "\n".join(lines)


def _bars(shares: tuple[float, ...]) -> str:
    return "".join(_BARS[min(len(_BARS) - 1, round(share * (len(_BARS) - 1)))] for share in shares)
