"""A run beside its plan as text: what `htrain show --run` prints."""

from collections.abc import Iterator

from htrain.report.runs.beside import Beside
from htrain.report.runs.comparison import Comparison, DeviceComparison, Pair
from htrain.sizes import memory_text

_WIDTHS = {"EPS": 18, "CPU us/ex": 16, "CPU": 17, "net": 16, "lock": 14, "memory": 24}


def run_text(beside: Beside) -> str:
    """What has become of a run, how it compares with its plan, a table of devices, and what of each was not as predicted."""
    return "\n".join(_lines(beside)) + "\n"


def _lines(beside: Beside) -> Iterator[str]:
    yield f"{beside.run.folder} {beside.run.state}"
    yield from beside.run.notes
    yield from beside.validations
    yield from beside.verdict
    if beside.comparison:
        yield ""
        yield from _table(beside.comparison)
    if any(beside.gaps.values()):
        yield ""
    for name, sentences in beside.gaps.items():
        yield from (f"{name}: {sentence}" for sentence in sentences)


def _table(found: Comparison) -> Iterator[str]:
    """Each figure as predicted, and as measured."""
    yield f"{'predicted | measured':<22}" + "".join(f"{head:>{width}}" for head, width in _WIDTHS.items())
    for device in found.devices:
        name = device.name + (f" x {device.count}" if device.count > 1 else "")
        yield f"{name:<22}" + "".join(
            f"{cell:>{width}}" for cell, width in zip(_cells(device), _WIDTHS.values(), strict=True)
        )
    if found.shared:
        yield f"{f'{found.num_shared} cores shared by all':<56}{_share(found.shared):>17}"


def _cells(device: DeviceComparison) -> Iterator[str]:
    yield f"{device.eps.predicted:,.0f} | {device.eps.measured:,.0f}"
    yield f"{device.cpu_seconds.predicted * 1e6:,.1f} | {device.cpu_seconds.measured * 1e6:,.1f}"
    yield _share(device.cpu)
    yield _share(device.network)
    yield f"{device.lock.predicted:.0%} | <= {device.lock.measured:.0%}"
    yield f"{memory_text(device.memory_bytes.predicted)} | {memory_text(device.memory_bytes.measured)}"


def _share(pair: Pair) -> str:
    return f"{pair.predicted:.1%} | {pair.measured:.1%}"
