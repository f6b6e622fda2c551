"""Simulated histories of whole runs with faults: what must hold is checked in each, and a seed plays it again (docs/decisions/recovery.md).

    python tools/histories.py --histories 100000            # from seed 0 on, on all cores; the rules that are broken, with their seeds
    python tools/histories.py --seed 4711 --replay          # one history, event by event
    python tools/histories.py --planted                     # the first seed that finds each bug which is planted, of 10,000, and how many of 1,000 do

Launcher, trainers, parameter servers, checkpoints and tries are the product's own machines; links, disks, clocks and processes are simulated: messages and
connections are lost, come late or again, processes stop or are killed, also in the middle of a write, hosts go off, disks are full, files are damaged, users
ask runs to stop; trainers that are killed are begun again while others go on, sparse PSs with the rows of a checkpoint, or all together. Then all is calm, and
the run has to end with all trained. The last line counts what happened. It ends with status 1 where a rule is broken.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from fault_histories.history import Told, play
from fault_histories.planted import BUGS

_AT_ONCE = 50  # histories, between two words of a process
_MOST_SHOWN = 10
_TOLD = 5000  # histories, between two lines of how far it is
_PLANTED, _MOST_PLANTED = 1000, 10_000


def _play_some(first_and_count: tuple[int, int]) -> tuple[int, list[Told], Counter[str]]:
    first, count = first_and_count
    seen: Counter[str] = Counter()
    broken = []
    for seed in range(first, first + count):
        told = play(seed)
        seen.update(told.seen)
        if told.broken:
            broken.append(told)
    return count, broken, seen


def _pieces(seed: int, histories: int) -> Iterator[tuple[int, int]]:
    for first in range(seed, seed + histories, _AT_ONCE):
        yield first, min(_AT_ONCE, seed + histories - first)


def play_many(seed: int, histories: int, processes: int) -> int:
    """Play so many histories from a seed on, and print what came of them; how many break a rule."""
    began, played, seen = time.monotonic(), 0, Counter[str]()
    broken: list[Told] = []
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for count, some, what in pool.imap_unordered(_play_some, _pieces(seed, histories)):
            played, seen = played + count, seen + what
            for told in some[: max(0, _MOST_SHOWN - len(broken))]:
                print(f"seed {told.seed}, {told.case}: {told.broken}", flush=True)
            broken += some
            if played % _TOLD < count:
                print(f"{played:,} of {histories:,}, {len(broken):,} break a rule", file=sys.stderr, flush=True)
    for told in sorted(broken, key=lambda told: told.seed)[:1]:
        print("\n".join(play(told.seed, keep_lines=True).lines))
    seconds = time.monotonic() - began
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(seen.items(), key=lambda item: -item[1]))
    print(
        f"{played:,} histories from seed {seed}, {len(broken):,} break a rule ({seconds:,.0f} s, {processes} processes): {kinds}"
    )
    return len(broken)


def find_planted(seed: int, histories: int) -> int:
    """Search for each planted bug from a seed on, and print where it is found first, and how often; how many ten thousand histories miss."""
    missed = 0
    for name, bug in BUGS.items():
        found = [told for told in (play(each, bug) for each in range(seed, seed + histories)) if told.broken]
        later = (play(each, bug) for each in range(seed + histories, seed + _MOST_PLANTED))
        first = found[0] if found else next((told for told in later if told.broken), None)
        missed += first is None
        by = f"first by seed {first.seed}: {first.broken}" if first else "not found"
        print(f"{name}: {len(found):,} of {histories:,} histories find it, {by}", flush=True)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, help="how many (1,000)", default=_PLANTED)
    parser.add_argument("--seed", type=int, default=0, help="of the first history")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--replay", action="store_true", help="print the history of the seed")
    parser.add_argument("--planted", action="store_true", help="look for bugs that are planted")
    said = parser.parse_args()
    if said.replay:
        told = play(said.seed, keep_lines=True)
        print("\n".join(told.lines))
        print(
            f"seed {told.seed}, {told.case}: {told.broken or 'all rules hold'} ({told.num_events:,} events, {told.seconds:.2f} s of its clock)"
        )
        return bool(told.broken)
    if said.planted:
        return bool(find_planted(said.seed, said.histories))
    return bool(play_many(said.seed, said.histories, said.processes))


if __name__ == "__main__":
    sys.exit(main())
