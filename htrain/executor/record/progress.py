"""A run's live display, on standard error: a table on a terminal, a plain line now and then elsewhere."""

import math
from contextlib import suppress
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from htrain.data.malformed import left_out
from htrain.executor.record.totals import RunTotals
from htrain.printable import one_line, outlasting_its_reader
from htrain.sizes import memory_text, traffic_text

_PLAIN_SECONDS = 5.0
_UNITS = ("", "k", "M", "G", "T", "P")


class Progress:
    """Shows totals as they come; `total_examples` is 0 when not known. Use as a context manager: the terminal stays clean.

    Training does not depend on it: what a terminal or a reader that is gone, or a disk that is full, does not take is left out.
    """

    def __init__(self, console: Console, total_examples: int) -> None:
        self._console = outlasting_its_reader(console)
        self._total = total_examples
        self._note = ""
        self._printed = -math.inf
        self._shown: RunTotals | None = None
        self._has_left_out = False  # and told where
        # No thread of its own, and standard output, which may be a document, is not diverted.
        self._live = (
            Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> "Progress":
        if self._live:
            with suppress(OSError):
                self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            with suppress(OSError):
                self._live.stop()

    def begin_again(self) -> None:
        """The run is begun again: its seconds count from 0."""
        self._printed = -math.inf

    def update(self, totals: RunTotals) -> None:
        """Show these totals; as plain lines, only those that come 5 s of the run or more after the last shown."""
        self._shown = totals
        if totals.malformed_example and not self._has_left_out:
            self._has_left_out = True
            self.note(left_out(totals.malformed, totals.malformed_example))
        if self._live:
            self._draw(self._live, totals)
        elif totals.seconds - self._printed >= _PLAIN_SECONDS:
            self._printed = totals.seconds
            self._print(line(totals, self._total))

    def note(self, text: str) -> None:
        """Show a piece of news, such as the last checkpoint, until the next."""
        self._note = text = one_line(text)
        if not self._live:
            self._print(text)
        elif self._shown:
            self._draw(self._live, self._shown)

    def _draw(self, live: Live, totals: RunTotals) -> None:
        with suppress(OSError):
            live.update(self._picture(totals), refresh=True)

    def _print(self, text: str) -> None:
        with suppress(OSError):
            self._console.print(Text(text), soft_wrap=True)

    def _picture(self, totals: RunTotals) -> Group:
        table = Table(box=None, pad_edge=False)
        for heading in ("role", "CPU", "memory", "sent", "sent/s"):
            table.add_column(heading, justify="left" if heading == "role" else "right")
        for kind, share in totals.cpu_share.items():
            sent = totals.bytes_sent[kind]
            rate = sent / totals.seconds if totals.seconds > 0 else 0.0
            table.add_row(
                kind, f"{share:.0%}", memory_text(totals.memory_bytes[kind]), traffic_text(sent), traffic_text(rate)
            )
        kinds = ", ".join(f"{kind} {traffic_text(number)}" for kind, number in totals.caches.bytes.items() if number)
        news = [Text(f"caches: {kinds}, {count(totals.caches.evicted)} rows evicted")] if kinds else []
        bar = Padding(ProgressBar(total=self._total, completed=totals.examples, width=60))  # a bar alone ends no line
        bars = [bar] if self._total else []
        return Group(Text(line(totals, self._total)), *bars, table, *news, Text(self._note))


def _has_no_ne(totals: RunTotals) -> bool:
    """Whether the loss is none of clicks, as far as one can see: before the first example one cannot."""
    return bool(totals.examples) and math.isnan(totals.ne)


def line(totals: RunTotals, total_examples: int) -> str:
    """The totals on one line. There may be more examples than there are to be: of a run that goes on with fewer epochs than it has had."""
    goal = f" of {total_examples:,}" if total_examples >= max(totals.examples, 1) else ""
    parts = [
        duration(totals.seconds),
        f"{totals.examples:,}{goal} examples",
        f"{count(totals.eps)} EPS",
        f"loss {decimal(totals.window_loss)}",
        *([] if _has_no_ne(totals) else [f"NE {decimal(totals.window_ne)} (lifetime {decimal(totals.ne)})"]),
        f"staleness <= {totals.max_staleness}",
    ]
    if totals.caches.hits + totals.caches.misses:
        parts.append(f"cache hits {_share(totals.caches.hit_rate)}, invalid {totals.caches.invalid_rate:.1%}")
    if totals.caches.stall_seconds >= 0.05:
        parts.append(f"stalled {duration(totals.caches.stall_seconds)}")
    return "  ".join(parts + ([f"{totals.malformed:,} malformed rows"] if totals.malformed else []))


def _share(rate: float) -> str:
    """99.95 % is not 100.0 %: there the difference is what counts."""
    return f"{rate:.2%}" if rate > 0.99 else f"{rate:.1%}"


def decimal(value: float) -> str:
    """Four decimals; a dash for what is not known yet, or not defined."""
    return f"{value:.4f}" if math.isfinite(value) else "-"


def duration(seconds: float) -> str:
    """3,725 s as 1:02:05; below a minute 12.3 s."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def count(value: float) -> str:
    """12,345 as 12.3k."""
    if value < 999.5:
        return f"{value:.0f}"
    power = 1
    while (
        value / 1000**power >= 999.95 and power < len(_UNITS) - 1
    ):  # the unit that holds after rounding: 999,960 is 1.0M, not 1000.0k
        power += 1
    return f"{value / 1000**power:.1f}{_UNITS[power]}"
