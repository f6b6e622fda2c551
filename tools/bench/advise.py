"""Seconds that `htrain advise` takes for data of many accesses, on one core.

    python tools/bench/advise.py [--accesses 1e8] [--table-rows 1000000] [--batch 2048] [--data packed:FILE]

DLRM on a Criteo-like log, 26 tables by Zipf's law, packed first (which is not counted). An access is a distinct row of a
batch. The grid is the command's own, 63 caches under 4 bounds of staleness; one thread, whose CPU seconds are beside the
seconds on the clock.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import torch

import htrain

MODELS = Path(__file__).parents[2] / "models"
ROWS_OF_EXAMPLE = 19.0  # distinct ones, at the usual batch and tables, about


def packed(folder: Path, accesses: float, table_rows: int) -> str:
    examples = round(accesses / ROWS_OF_EXAMPLE)
    htrain.pack(f"synthetic:?rows={examples}&table_rows={table_rows}", out=folder / "log.packed")
    return f"packed:{folder / 'log.packed'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accesses", type=float, default=1e8)
    parser.add_argument("--table-rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--data", default="")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        data = asked.data or packed(Path(folder), asked.accesses, asked.table_rows)
        print(f"packed in {time.perf_counter() - began:.0f} s", flush=True)
        steps = []
        began, cpu = time.perf_counter(), time.process_time()
        advice = htrain.advise(
            data,
            model=MODELS / "dlrm.py",
            options=htrain.Options(batch_size=asked.batch),
            on_step=lambda what: steps.append((time.perf_counter(), what)),
        )
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    basis, read = advice.basis, steps[0][0] - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"advise {basis.accesses:,} accesses  {seconds:.1f} s ({cpu:.1f} of CPU), of these {read:.1f} to compile and read; "
        f"a sample of one in {1 / basis.rate:,.0f} rows; {memory:,.0f} MiB"
    )


if __name__ == "__main__":
    main()
