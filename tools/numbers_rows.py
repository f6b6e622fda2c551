"""Rows for docs/numbers.md, of what benchmarks have kept with `--history FILE`.

python tools/numbers_rows.py history.jsonl                       # all figures, the newest line last
python tools/numbers_rows.py history.jsonl --only "over eager"   # those of a name
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HEAD = "| benchmark | figure | median (range) | processor | commit | date |\n|---|---|---|---|---|---|"


def rows(line: Mapping[str, Any], only: str = "") -> Iterator[str]:
    """A row for each figure of a line that tools/bench/history.py wrote; `only` leaves out those of other names."""
    benchmark = f"`python tools/bench/{line['benchmark']}.py`{_asked(line['arguments'])}"
    where = f"{line['machine']['cpu']} | {line['commit']} | {line['time'][:10]}"
    for name, text in _figures(line["figures"]):
        if only in ("", name):
            yield f"| {benchmark} | {name} | {text} | {where} |"


def _figures(found: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Each figure with its name; those of a side of a benchmark begin with the side's."""
    for name, figure in found.items():
        if not isinstance(figure, Mapping):
            yield before + name, _number(figure)
        elif "median" in figure:
            yield before + name, _shown(figure)
        else:
            yield from _figures(figure, f"{before}{name}, ")


def _asked(arguments: Mapping[str, Any]) -> str:
    """The arguments that were given or have a value by themselves, but for the file of the history."""
    said = [f"{name} {value}" for name, value in arguments.items() if name != "history" and value not in (None, False)]
    return f", {', '.join(said)}" if said else ""


def _shown(figure: Mapping[str, Any]) -> str:
    """A median, with its range where it is one of several runs."""
    if "min" not in figure:
        return _number(figure["median"])
    least, most = _number(figure["min"]), _number(figure["max"])
    return f"{_number(figure['median'])} ({least} to {most}, n={figure['n']})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("history", type=Path)
    parser.add_argument("--only", default="", help="the name of a figure")
    asked = parser.parse_args()
    print(HEAD)
    for text in asked.history.read_text().splitlines():
        for row in rows(json.loads(text), asked.only):
            print(row)


if __name__ == "__main__":
    main()
