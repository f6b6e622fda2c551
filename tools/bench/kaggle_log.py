"""A log in the Kaggle set's shape: 13 counts, 26 tables of that set's sizes, at most `cap` rows each, packed: reading it costs next to nothing."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from htrain.data import Malformed
from htrain.data.formats.synthetic import NUM_DENSE, Synthetic, block
from htrain.data.pack import pack

ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip


def write_log(folder: Path, examples: int, cap: int = 100_000) -> str:
    """Write the log and return where it is, as `--data` wants it. Ids are the planted model's, modulo a table's rows."""
    rows = [min(size, cap) for size in ROWS]
    dense, sparse = [f"I{k}" for k in range(NUM_DENSE)], [f"C{k}" for k in range(len(rows))]
    options = Synthetic(rows=examples, table_rows=cap)
    parts = [block(options, number)[0].fixed for number in range(options.num_blocks)]
    counts, ids, label = (np.concatenate([part[name] for part in parts]) for name in ("counts", "sparse", "label"))
    columns = {"label": label, **dict(zip(dense, counts.T.astype(np.float32), strict=True))}
    columns |= {name: column % size for name, column, size in zip(sparse, ids.T, rows, strict=True)}
    pq.write_table(pa.table(columns), folder / "log.parquet")
    inputs = {
        "dense": {"kind": "dense", "columns": dense, "transform": "log1p"},
        "sparse": {"kind": "ids", "columns": sparse, "rows": rows},
    }
    (folder / "schema.yaml").write_text(yaml.safe_dump({"label": "label", "inputs": inputs}))
    pack(
        f"parquet:{folder / 'log.parquet'}?schema={folder / 'schema.yaml'}",
        folder / "log.packed",
        malformed=Malformed(),
    )
    return f"packed:{folder / 'log.packed'}"
