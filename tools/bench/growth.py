"""Whether roles grow while they train: resident memory of each role after 2,000 steps and after 10,000 more.

    python tools/bench/growth.py [--steps 12000] [--history FILE]

A small DLRM (26 tables of 1,000 rows x 16), batch 32, once on a trainer alone and once with a group PS and a sparse PS, as processes.
"""

import argparse
import json
import tempfile
from pathlib import Path

from history import append
from rich.console import Console

import htrain
from htrain.data import Malformed
from htrain.data.pack import pack
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options

MODEL = str(Path(__file__).parents[2] / "models" / "dlrm.py")
BATCH = 32
SETTLED = 2_000  # steps
PLACES = {"alone": {"group_ps": 0, "sparse_ps": 0}, "with PSs": {"group_ps": 1, "sparse_ps": 1}}


def grown(data: str, counts: dict[str, int], folder: Path) -> dict[str, tuple[float, float]]:
    """MiB of each role once it has settled, and at the end."""
    plan = htrain.compile(MODEL, data=data, cluster=this_machine(**counts), options=Options(batch_size=BATCH))
    plan.save(folder / "plan")
    htrain.run(folder / "plan", data=data, out=folder / "run", console=Console(quiet=True))
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    settled = next(r["time"] for r in records if r["role"] == "run" and r["examples"] >= SETTLED * BATCH)
    found: dict[str, tuple[float, float]] = {}
    for record in records:
        if record["role"] != "run" and record["time"] >= settled:
            now = record["memory_bytes"] / 2**20
            found[record["role"]] = found.get(record["role"], (now, now))[0], now
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=SETTLED + 10_000)
    parser.add_argument("--history", type=Path, help="a file to which the figures are added as a line of JSON")
    asked = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as made:
        packed = Path(made) / "log.packed"
        pack(f"synthetic:?rows={asked.steps * BATCH}&table_rows=1000", packed, malformed=Malformed())
        for name, counts in PLACES.items():
            for role, (settled, end) in grown(f"packed:{packed}", counts, Path(made) / name).items():
                figures[f"{name}, {role}"] = {"settled MiB": settled, "end MiB": end}
                print(
                    f"{name:<10}{role:<16}{settled:8.1f} MiB after {SETTLED:,} steps, {end:8.1f} MiB at the end",
                    flush=True,
                )
    if asked.history:
        append(asked.history, "growth", {"steps": asked.steps}, figures)


if __name__ == "__main__":
    main()
