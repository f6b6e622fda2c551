"""How far a command over data is: on a terminal a bar, elsewhere lines."""

import sys
from importlib import import_module
from typing import Any

from htrain.cli.flags import tell
from htrain.printable import outlasting_its_reader


class Progress:
    """A bar while the data is read, on a terminal; a line for each step elsewhere. Nothing before there is something to tell."""

    def __init__(self) -> None:
        rich = import_module("rich.progress")
        self._is_drawn = sys.stderr.isatty()
        columns = (
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.TextColumn("{task.completed:,.0f} examples"),
        )
        console = outlasting_its_reader(import_module("rich.console").Console(stderr=True))
        self._bar = rich.Progress(*columns, console=console, transient=True, disable=not self._is_drawn)
        self._task = self._bar.add_task("reading", total=None)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *raised: Any) -> None:
        self._bar.stop()

    def examples(self, number: int, total: int) -> None:
        """So many have been read, of so many."""
        self._bar.start()
        self._bar.update(self._task, completed=number, total=total or None)

    def step(self, what: str) -> None:
        """What comes next."""
        if self._is_drawn:
            self._bar.start()
            self._bar.update(self._task, description=what, total=None)
        else:
            tell(what)
