"""Which models of public libraries htrain compiles as they are shipped, with the loss and the gradients of PyTorch.

    python tools/library_models.py --libraries DIR                        # every library, every model: a table, totals, refusals by reason
    python tools/library_models.py --libraries DIR --library torchfm --only dcn
    python tools/library_models.py --libraries DIR --train                # 20 steps of a plan beside 20 of PyTorch, by SGD and by Adam and Adagrad
    python tools/library_models.py --libraries DIR --json                 # a line of JSON for each model, with whole error texts

DIR has a folder for each library, without what it depends on, and one of dependencies, none of which brings a torch of its own:

    for name in deepctr-torch torchfm torch-rechub recbole fuxictr transformers; do
        pip install --no-deps --target DIR/$name $name
    done
    git clone https://github.com/reczoo/FuxiCTR DIR/fuxictr-zoo; rm -r DIR/fuxictr-zoo/fuxictr      # its model_zoo is in no wheel
    pip install --no-deps --target DIR/deps scikit-learn scipy joblib threadpoolctl 'pandas<3' tqdm ...     # what an import then misses

A library that cannot be imported is skipped, with the reason. A model is built by its own constructor over a few small fields, and trains with the
dropouts and batch norms that it has. `skipped` says that the library itself fails to build or run it. Every model has a process of its own.
Not among them: pytorch-widedeep, whose models are not imported without gensim, spaCy, OpenCV and torchvision. Of torchrec and
its fbgemm-gpu-cpu it takes the version that fits torch, 1.8.0 for 2.13: pip install --no-deps --target DIR/torchrec torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from library_models.case import Case
from library_models.checking import limited
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


def results_of(asked: argparse.Namespace, skipped: dict[str, str]) -> Iterator[Result]:
    """One model after the other; `skipped` gets the libraries that cannot be imported."""
    for library in [asked.library] if asked.library else LIBRARIES:
        try:
            cases = cases_of(library)
        except Exception as error:  # an import may raise anything
            skipped[library] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            continue
        for case in cases:
            if not asked.only or case.name in asked.only:
                yield limited(case, train=asked.train, seconds=asked.seconds)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--libraries", type=Path, required=True, metavar="DIR", help="a folder for each library")
    parser.add_argument("--library", choices=LIBRARIES, default="", help="this one alone")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this model alone; may be repeated")
    parser.add_argument("--train", action="store_true", help="train the plans for 20 steps beside PyTorch")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each model")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long one model may take (default: 120)")
    return parser.parse_args()


def main() -> None:
    """The table, line by line, then the totals and what models are refused for."""
    asked = arguments()
    folders = [str(folder) for folder in sorted(asked.libraries.iterdir()) if folder.is_dir()]
    sys.path[1:1] = folders  # before what is installed: recbole takes no pandas 3
    skipped: dict[str, str] = {}
    results: list[Result] = []
    with redirect_stdout(sys.stderr):  # what libraries say of themselves
        for result in results_of(asked, skipped):
            results.append(result)
            print(json.dumps(asdict(result)) if asked.json else row(result), flush=True, file=sys.__stdout__)
    if not asked.json:
        print("", *totals(results, skipped), "", sep="\n")
        for kind, count, example in reasons(results):
            print(f"{count:4} {kind}   ({example})")


if __name__ == "__main__":
    main()
