"""A small libFM file for Wide & Deep: ids of four fields in one table, a few of them often."""

from pathlib import Path

import numpy as np

ROWS, FIELDS, BATCH = 120, 4, 16
MODEL = str(Path(__file__).parents[2] / "models" / "wide_deep.py")


def write_libfm(folder: Path, examples: int = 640) -> str:
    """The URI of a file with so many examples."""
    random = np.random.default_rng(0)
    weights = 1 / np.arange(1, ROWS // FIELDS + 1)
    each = random.choice(ROWS // FIELDS, (examples, FIELDS), p=weights / weights.sum())
    ids = each + np.arange(FIELDS) * (ROWS // FIELDS)
    labels = random.integers(0, 2, examples) * 2 - 1
    lines = [f"{label} " + " ".join(f"{i}:1" for i in of) for label, of in zip(labels, ids.tolist(), strict=True)]
    path = folder / "small.libfm"
    path.write_text("\n".join(lines) + "\n")
    return f"libfm:{path}?rows={ROWS}"
