"""What a row costs one of several trainers that share Parquet or .gz files, shared out by chunks, as an older htrain did, and by pieces (htrain.data.owners).

    python tools/bench/reader_shards.py [--files 16] [--rows 100000] [--trainers 1,4,16,64] [--history FILE]

Files in Criteo's shape (13 numbers, 26 texts), two row groups a Parquet file. A line gives the CPU microseconds of a row, of the reader of the middle shard
alone, from files in the page cache to batches of 512.
"""

import argparse
import gzip
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from history import append

from htrain.data import START, Malformed, open_data
from htrain.data.growth import Extent, FileSize

NUMBERS, TEXTS = [f"I{n}" for n in range(13)], [f"C{n}" for n in range(26)]
SCHEMA = (
    f"label: label\ninputs:\n  dense: {{kind: dense, columns: [{', '.join(NUMBERS)}]}}\n"
    f"  sparse: {{kind: ids, columns: [{', '.join(TEXTS)}], rows: 100000}}\n"
)


def write(folder: Path, files: int, rows: int) -> None:
    """The files, in both formats, and a schema of them."""
    draw = np.random.default_rng(0)
    (folder / "s.yaml").write_text(SCHEMA)
    for file in range(files):
        columns = {name: draw.integers(0, 1000, rows).astype(np.float32) for name in NUMBERS}
        texts = {name: [f"{id:08x}" for id in draw.zipf(1.3, rows) % 2**31] for name in TEXTS}
        table = pa.table({"label": (draw.random(rows) < 0.3).astype(np.int8), **columns, **texts})
        pq.write_table(table, folder / f"{file:04}.parquet", row_group_size=-(-rows // 2))
        with gzip.open(folder / f"{file:04}.csv.gz", "wb", compresslevel=4) as out:
            pacsv.write_csv(table, out, pacsv.WriteOptions(quoting_style="none"))


def microseconds(uri: str, extent: Extent, trainers: int) -> float:
    """CPU time of a row of the middle one of so many readers."""
    dataset, rows, began = open_data(uri, extent), 0, time.process_time()
    for batch in dataset.batches(
        batch_size=512, shard=trainers // 2, num_shards=trainers, epochs=1, start=START, malformed=Malformed()
    ):
        rows += batch.num_examples
    return (time.process_time() - began) / rows * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--rows", type=int, default=100_000, help="of a file")
    parser.add_argument("--trainers", default="1,4,16,64")
    parser.add_argument("--history", type=Path)
    said = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, said.files, said.rows)
        for format in ("parquet", "csv.gz"):
            paths = sorted(folder.glob(f"*.{format}"))
            sizes = tuple(FileSize(path.name, path.stat().st_size) for path in paths)
            uri = f"{format.removesuffix('.gz')}:{folder}/*.{format}?schema={folder}/s.yaml"
            microseconds(uri, Extent(sizes), 1)  # loops are compiled
            for trainers in map(int, said.trainers.split(",")):
                each = [microseconds(uri, Extent(sizes, by_parts=by_parts), trainers) for by_parts in (False, True)]
                print(
                    f"{format}, {trainers} trainers: {each[0]:.2f} us a row by chunks, {each[1]:.2f} by pieces",
                    flush=True,
                )
                figures[f"{format} {trainers}"] = {"chunks": each[0], "pieces": each[1]}
    if said.history:
        append(said.history, "reader_shards", {"files": said.files, "rows": said.rows}, figures)


if __name__ == "__main__":
    main()
