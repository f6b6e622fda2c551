"""The notebook's cells run, in order, and print what stands under them as far as that does not depend on the machine."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "docs" / "how-to" / "from-a-dataframe.ipynb"


def test_a_data_frame_becomes_a_served_model_by_the_cells_of_the_notebook() -> None:
    words = [sys.executable, str(ROOT / "tools" / "notebook.py"), str(BOOK), "--check"]
    run = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    cells = [cell for cell in json.loads(BOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    written = ["".join(line for output in cell["outputs"] for line in output["text"]) for cell in cells]
    assert run.stdout.startswith("".join(written[:2])), "data is drawn from a seed"
    (auc,) = re.findall(r"^the best: AUC ([\d.]+)", run.stdout, re.MULTILINE)
    (kept,) = re.findall(r"^the best: AUC ([\d.]+)", "".join(written), re.MULTILINE)
    assert abs(float(auc) - float(kept)) < 0.02
    scores = re.findall(r"^\d .* (0\.\d+)$", run.stdout, re.MULTILINE)
    assert len(scores) == 5
