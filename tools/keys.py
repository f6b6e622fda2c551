"""What the keys of a run cost between hosts: the same plan with and without encryption, by turns (docs/how-to/run.md).

    python tools/keys.py
    python tools/keys.py --rate 10gbit --batch 2048

DLRM on a trainer, a group PS and a sparse PS, each in a namespace of this machine, as the launcher is. Prints examples a second of each run, and CPU seconds
of the roles for a million examples; then the medians, and what keys cost. All hosts share this machine's cores, so that what encryption takes is missing
elsewhere: hosts with cores of their own pay less. Needs root, and mpiexec.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
from netlab import Lab, unwind_when_ended

import htrain
from htrain.errors import Error
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

_MODEL = Path(__file__).parents[1] / "models" / "dlrm.py"


def cpu_seconds(run: Path) -> float:
    """Of all roles, for a million examples, by their last reports."""
    last: dict[str, dict[str, float]] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        last[record["role"]] = record
    used = sum(record["cpu_seconds"] for role, record in last.items() if role != "run")
    return used / last["run"]["examples"] * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--runs", type=int, default=3, help="of each")
    asked = parser.parse_args()
    unwind_when_ended()
    data = f"synthetic:?rows={asked.rows}&table_rows=100000"
    eps: dict[bool, list[float]] = {True: [], False: []}
    cpu: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as scratch:
        plan = htrain.compile(
            _MODEL, data=data, cluster=this_machine(sparse_ps=1), options=with_flags(batch_size=asked.batch)
        )
        plan.save(Path(scratch) / "plan")
        with Lab(1 + len(plan.processes), rate=asked.rate) as lab:
            for number in range(2 * asked.runs):
                has_keys = number % 2 == 0
                out = Path(scratch) / f"run{number}"
                more = [] if has_keys else ["--no-encrypt"]
                try:
                    found = lab.run_plan(Path(scratch) / "plan", data, out, more=more)
                except Error as error:
                    sys.exit(f"keys: {error}")
                eps[has_keys].append(found.measured.eps)
                cpu[has_keys].append(cpu_seconds(out))
                print(
                    f"{'with' if has_keys else 'without':<8} keys: {eps[has_keys][-1]:>9,.0f} examples/s, {cpu[has_keys][-1]:6.1f} CPU s a million",
                    flush=True,
                )
    with_keys, without = statistics.median(eps[True]), statistics.median(eps[False])
    used, before = statistics.median(cpu[True]), statistics.median(cpu[False])
    print(
        f"medians: {with_keys:,.0f} and {without:,.0f} examples/s: keys cost {1 - with_keys / without:.1%}; {used:.1f} and {before:.1f} CPU s a million"
    )


if __name__ == "__main__":
    main()
