"""Models that nobody wrote, drawn by seeds, through htrain: refused with a reason, or equal to PyTorch in loss, gradients and training.

    python tools/drawn_models.py --models 200                 # from seed 0 on: compiled, loss and gradients beside PyTorch's
    python tools/drawn_models.py --models 50 --train          # and 20 steps of 3 plans each, by a pair of optimizers, as tools/library_models.py has them
    python tools/drawn_models.py --seed 17 --train            # one of them: its program, and all that is said

A drawn program may be one that htrain refuses; its reason stands in the list, and has to be right. What it may not do is crash, or train something else. The
last line counts; the status is 1 where a model did either.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from drawn_programs import WIDTHS, DrawnModel
from library_models.case import Case, Ids, Numbers
from library_models.checking import limited
from library_models.pairs import pairs_of
from library_models.result import Result, reason

from htrain.errors import ModelError, UsageError

_PLACEMENTS = ("alone", "roles", "het", "allgather")
_INPUTS = {name: Ids(width, rows) if rows else Numbers(width) for name, (width, rows) in WIDTHS.items()}


def result_of(seed: int, *, num_steps: int, train: bool, seconds: float) -> Result:
    """What becomes of the model of a seed; a placement that htrain refuses it, as caches of some lookups or of no table, is left out."""
    case = Case("drawn", str(seed), partial(DrawnModel, seed, num_steps), _INPUTS)
    result = limited(case, pairs=pairs_of(seed, 1) if train else (), seconds=seconds)
    asked = (f"{ModelError.__name__}: ", f"{UsageError.__name__}: ")
    refused = {name for name, seen in result.trains.items() if str(seen).startswith(asked)}
    return replace(result, trains={name: seen for name, seen in result.trains.items() if name not in refused})


def kind_of(result: Result) -> str:
    """In a word what became of it: wrong, chaotic, equal, refused, or crashed."""
    if "crash" in (result.compiles, result.equal) or any(isinstance(seen, str) for seen in result.trains.values()):
        return "crashed"
    if result.compiles != "yes":
        return "refused" if result.compiles == "no" else "skipped"
    if result.equal == "no" or result.trained(_PLACEMENTS) == "differs":
        return "wrong"
    return "chaotic" if result.trained(_PLACEMENTS) == "chaotic" else "equal"


def told(result: Result, kind: str) -> str:
    """A line of what is not equal."""
    trains = {name: seen for name, seen in result.trains.items() if result.training(name) != "equal"}
    return f"seed {result.model}: {kind}: {result.why or result.equal}" + (f" {trains}" if trains else "")


def results(asked: argparse.Namespace) -> Iterator[Result]:
    """Of one seed, or of as many as are asked for."""
    seeds = [asked.seed] if asked.seed is not None else range(asked.first, asked.first + asked.models)
    for seed in seeds:
        yield result_of(seed, num_steps=asked.steps, train=asked.train, seconds=asked.seconds)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="this one alone, with its program and whole errors")
    parser.add_argument("--steps", type=int, default=12, help="of a program")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--seconds", type=float, default=300.0, help="for one model")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    kinds: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for result in results(asked):
        kind = kind_of(result)
        kinds[kind] += 1
        if kind == "refused":
            reasons[reason(result)] += 1
        if kind in ("wrong", "crashed", "chaotic") or asked.seed is not None:
            print(told(result, kind), flush=True)
        if asked.seed is not None:
            print(DrawnModel(asked.seed, asked.steps), result.text, sep="\n")
    for why, count in reasons.most_common():
        print(f"{count:4} {why}")
    print(", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    sys.exit(bool(kinds["wrong"] or kinds["crashed"]))


if __name__ == "__main__":
    main()
