"""A deterministic run that is killed and resumed again and again, held bit for bit against one that nobody has disturbed.

    python tools/cycles.py --cycles 1000        # about an hour
    python tools/cycles.py --cycles 20

A wide and deep model on a trainer, a group PS and a sparse PS, as processes, a checkpoint about every 0.1 s. In each cycle the launcher or a role is killed
with signal 9 at a random time: while the run comes up, while it trains, or while it writes. Prints a line a cycle, and the tensors that differ in the end.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from tests.support.cycles import ROWS, cycles_plan, differing, killed_and_resumed
from tests.support.whole_runs import libfm, start, start_anew


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--anew",
        action="store_true",
        help="start each command as a shell does, in place of a fork from a process that has imported all",
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data = libfm(folder / "train.libfm", ROWS)
        plan = cycles_plan(folder / "plan", data)
        begin = partial(start_anew if asked.anew else start, plan, data, "--deterministic")
        often = partial(begin, "--checkpoint-seconds", "0.1")
        further, epochs = killed_and_resumed(
            often, folder / "run", asked.cycles, random.Random(asked.seed), partial(print, flush=True)
        )
        end = ("--epochs", str(epochs), "--checkpoint-seconds", "end")
        process = begin("--out", str(folder / "undisturbed"), *end)
        try:
            process.communicate(timeout=7200)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        differ = differing(folder / "run", folder / "undisturbed")
    print(
        f"{asked.cycles} kills, {further} of them behind another checkpoint; {epochs * ROWS:,} examples; tensors that differ: {len(differ)} {differ[:5]}"
    )
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
