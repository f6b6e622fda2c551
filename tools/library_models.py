"""Which models of public libraries htrain compiles as they are shipped, with the loss and the gradients of PyTorch.

    python tools/library_models.py --libraries DIR                        # every library, every model: a table, totals, refusals by reason
    python tools/library_models.py --libraries DIR --library torchfm --only dcn
    python tools/library_models.py --libraries DIR --train                # 20 steps of each of 9 plans of a model beside 20 of PyTorch
    python tools/library_models.py --libraries DIR --library torchfm --only dcn --train --pairs 30      # by all pairs of optimizers
    python tools/library_models.py --libraries DIR --train --json >>FILE                   # a line of JSON for each model, with whole error texts
    python tools/library_models.py --libraries DIR --train --json --done FILE >>FILE       # the rest, after an interruption
    python tools/library_models.py --libraries DIR --train --done FILE                     # the totals of these lines

DIR has a folder for each library, without what it depends on, and one of dependencies, none of which brings a torch of its own:

    for name in deepctr-torch torchfm torch-rechub recbole fuxictr transformers; do
        pip install --no-deps --target DIR/$name $name
    done
    git clone https://github.com/reczoo/FuxiCTR DIR/fuxictr-zoo; rm -r DIR/fuxictr-zoo/fuxictr      # its model_zoo is in no wheel
    pip install --no-deps --target DIR/deps scikit-learn scipy joblib threadpoolctl 'pandas<3' tqdm ...     # what an import then misses

A library that cannot be imported is skipped, with the reason. A model is built by its own constructor over a few small fields, and trains with the
dropouts and batch norms that it has. `skipped` says that the library itself fails to build or run it. Every model has a process of its own.
With --train, models take turns with the 30 pairs of 6 optimizers of dense weights and 5 of tables, 3 each (`library_models/pairs.py`), and each pair
trains three plans: of one trainer alone, which holds everything; of a trainer, a group PS and a sparse PS; and of two groups of one trainer that step
together, by AllReduce, over tables behind a HET cache of staleness 0 on a sparse PS, or on both trainers (AllGather), by turns. Two such groups are PyTorch
on the batches of both, with the mean of their losses; with --deterministic they repeat bit for bit. `chaotic` is a training whose losses differ by more
than 1e-4, and by no more than twice what PyTorch's own do once every weight has begun from a neighbouring float, at the most of eight draws; it is tried
again with a tenth and a hundredth of the rates.

Not among them: pytorch-widedeep, whose models are not imported without gensim, spaCy, OpenCV and torchvision. Of torchrec and
its fbgemm-gpu-cpu it takes the version that fits torch, 1.8.0 for 2.13: pip install --no-deps --target DIR/torchrec torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0.
"""

import argparse
import json
import sys
from collections.abc import Collection, Iterator
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from library_models.case import Case
from library_models.checking import limited
from library_models.pairs import pairs_of
from library_models.result import Result, reasons, row, totals

LIBRARIES = {
    "deepctr-torch": "deepctr_torch",
    "torchfm": "torchfm",
    "torch-rechub": "torch_rechub",
    "recbole": "recbole",
    "fuxictr": "fuxictr",
    "transformers": "transformers",
    "torchrec": "torchrec",
}  # the folder of each, and the file of tools/library_models that has its models


def cases_of(library: str) -> list[Case]:
    """The models of a library. Raises whatever its import raises."""
    return list(import_module(f"library_models.{LIBRARIES[library]}").cases())


def results_of(
    asked: argparse.Namespace, done: Collection[tuple[str, str]], skipped: dict[str, str]
) -> Iterator[Result]:
    """One model after the other, without those that are `done`; `skipped` gets the libraries that cannot be imported."""
    for library in [asked.library] if asked.library else LIBRARIES:
        try:
            cases = cases_of(library)
        except Exception as error:  # an import may raise anything
            skipped[library] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            continue
        for number, case in enumerate(cases):
            if (case.library, case.name) not in done and (not asked.only or case.name in asked.only):
                pairs = pairs_of(number, asked.pairs) if asked.train else ()
                yield limited(case, pairs=pairs, seconds=asked.seconds)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--libraries", type=Path, required=True, metavar="DIR", help="a folder for each library")
    parser.add_argument("--library", choices=LIBRARIES, default="", help="this one alone")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this model alone; may be repeated")
    parser.add_argument("--train", action="store_true", help="train plans for 20 steps beside PyTorch")
    parser.add_argument(
        "--pairs", type=int, default=3, help="how many of the 30 pairs of optimizers train a model (default: 3)"
    )
    parser.add_argument(
        "--done", type=Path, metavar="FILE", help="lines of --json of models that are not to be run again"
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each model")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long one model may take (default: 300)")
    return parser.parse_args()


def main() -> None:
    """The table, line by line, then the totals and what models are refused for."""
    asked = arguments()
    folders = [str(folder) for folder in sorted(asked.libraries.iterdir()) if folder.is_dir()]
    sys.path[1:1] = folders  # before what is installed: recbole takes no pandas 3
    skipped: dict[str, str] = {}
    results = [Result(**json.loads(line)) for line in asked.done.read_text().splitlines()] if asked.done else []
    done = {(result.library, result.model) for result in results}
    with redirect_stdout(sys.stderr):  # what libraries say of themselves
        for result in results_of(asked, done, skipped):
            results.append(result)
            print(json.dumps(asdict(result)) if asked.json else row(result), flush=True, file=sys.__stdout__)
    if not asked.json:
        print("", *totals(results, skipped), "", sep="\n")
        for kind, count, example in reasons(results):
            print(f"{count:4} {kind}   ({example})")


if __name__ == "__main__":
    main()
