"""A run's live display, on standard error: a table on a terminal, a plain line now and then elsewhere."""

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from htrain.executor.totals import RunTotals

_PLAIN_SECONDS = 5.0


class Progress:
    """Shows totals as they come; `total_examples` is 0 when not known. Use as a context manager: the terminal stays clean."""

    def __init__(self, console: Console, total_examples: int) -> None:
        self._console = console
        self._total = total_examples
        self._note = ""
        self._printed = 0.0
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def update(self, totals: RunTotals) -> None:
        """Show these totals."""
        if self._live:
            self._live.update(self._picture(totals))
        elif time.monotonic() - self._printed > _PLAIN_SECONDS:
            self._printed = time.monotonic()
            self._console.print(line(totals), highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Remember a piece of news, such as the last checkpoint."""
        self._note = text
        if not self._live:
            self._console.print(text, highlight=False, soft_wrap=True)

    def _picture(self, totals: RunTotals) -> Group:
        table = Table(box=None, pad_edge=False)
        for heading in ("role", "CPU", "memory", "sent"):
            table.add_column(heading, justify="left" if heading == "role" else "right")
        for kind in totals.cpu_share:
            table.add_row(
                kind, f"{totals.cpu_share[kind]:.0%}", size(totals.memory_bytes[kind]), size(totals.bytes_sent[kind])
            )
        bar = ProgressBar(total=self._total or None, completed=totals.examples, width=60)
        return Group(Text(line(totals)), bar, table, Text(self._note))


def line(totals: RunTotals) -> str:
    """The totals on one line."""
    parts = [
        f"{totals.seconds:6.1f} s",
        f"{totals.examples:,} examples",
        f"{count(totals.eps)} EPS",
        f"loss {totals.window_loss:.4f}",
        f"NE {totals.window_ne:.4f} (lifetime {totals.ne:.4f})",
        f"staleness <= {totals.max_staleness}",
    ]
    return "  ".join(parts + ([f"{totals.malformed} malformed rows"] if totals.malformed else []))


def count(value: float) -> str:
    """12,345 as 12.3k."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f}{unit}"
    return f"{value:.0f}"


def size(num_bytes: float) -> str:
    """Bytes, in decimal units."""
    return count(num_bytes) + "B"
