"""Run the cells of a notebook in order, and keep what they print in it.

    python tools/notebook.py docs/how-to/from-a-dataframe.ipynb            # in a folder that is removed afterwards
    python tools/notebook.py docs/how-to/from-a-dataframe.ipynb --check    # write nothing

Ends with the status 1 where a cell raises. Cells that begin with % or ! are not for this.
"""

import argparse
import io
import json
import os
import sys
import tempfile
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--check", action="store_true", help="run the cells, and write nothing")
    asked = parser.parse_args()
    path = asked.notebook.resolve()
    book = json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        run(book)
    if not asked.check:
        path.write_text(json.dumps(book, indent=1) + "\n")


def run(book: dict[str, Any]) -> None:
    """Each code cell gets its output. Exits where one raises."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cell for cell in book["cells"] if cell["cell_type"] == "code"):
        said = io.StringIO()
        code = "".join(cell["source"])
        try:
            with redirect_stdout(said):
                exec(compile(code, f"cell {number + 1}", "exec"), names)
        except Exception:
            print(said.getvalue(), f"cell {number + 1}:\n{code}\n", traceback.format_exc(), sep="\n", file=sys.stderr)
            sys.exit(1)
        text = said.getvalue()
        print(text, end="")
        cell["execution_count"] = number + 1
        cell["outputs"] = (
            [{"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}] if text else []
        )


if __name__ == "__main__":
    main()
