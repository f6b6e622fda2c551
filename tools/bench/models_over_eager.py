"""Twelve models of four libraries in one process without PSs, against plain PyTorch eager: CPU seconds, the same model, batches, optimizer and one thread.

    python tools/bench/models_over_eager.py --libraries DIR [--model fm ...] [--batch 256 --batch 2048] [--optimizer adagrad] [--history FILE]

DIR is made as `tools/library_models.py` says; of it, torchfm, torch-rechub, deepctr-torch and deps are needed. The models stand in `click_models.py`: 26
columns of 10,000 ids each. Both sides have a process each and take turns. For each model and batch size: CPU seconds per 1,000 examples of both, medians, and
the median of the rounds' ratios with its range, above 1 where htrain takes less; then, for each batch size, the least of them and the median of all.

PyTorch's side is the fastest of what a user could write without changing the model: tables with sparse or with dense gradients, and dense weights by torch's
plain or fused optimizer. It is found by trying them, and printed.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))

from history import append, cpu_model, summary
from single_process import Htrain, Side, Spent, Work, schema_of, sides_of

from htrain.data import Batch
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

MODELS = ("fm", "ffm", "afm", "autoint", "dcn", "dcn_v2", "din", "mmoe", "deepfm", "wide_deep", "dlrm", "xdeepfm")
OF_PROBABILITY = ("mmoe",)  # a mean of two, which is no sigmoid
OF_LOGIT = ("dlrm",)
EXAMPLES = 8_000  # of a run, or six batches where these are more
TABLE_ROWS = 10_000
_OPTIMIZERS = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}


@dataclass(frozen=True)
class Form:
    """A way to write PyTorch's side."""

    sparse: bool
    fused: bool

    def __str__(self) -> str:
        return f"{'sparse' if self.sparse else 'dense'} gradients{', fused steps' if self.fused else ''}"


FORMS = [Form(sparse, fused) for sparse, fused in itertools.product((True, False), repeat=2)]


class Eager:
    """Plain PyTorch, in the form that takes the fewest CPU seconds."""

    def __init__(self, options: Options, batches: list[Batch], folder: Path, work: Work) -> None:
        self._options, self._work = options, work
        self._batches = [{name: torch.from_numpy(column) for name, column in b.columns.items()} for b in batches]
        seconds: dict[Form, float] = {}
        for form in FORMS:
            self._begin(form)
            self.train(3)
            seconds[form] = min(self.train(6)[1] for _ in range(2))
        fastest = min(FORMS, key=lambda form: seconds[form])
        self.said = str(fastest)
        self._begin(fastest)
        self.train(3)

    def _begin(self, form: Form) -> None:
        torch.manual_seed(0)
        self._model = getattr(import_module("click_models"), _name(self._work))(schema_of(self._work))
        tables = {m.weight: m for m in self._model.modules() if isinstance(m, nn.Embedding)}
        for table in tables.values():
            table.sparse = form.sparse
        dense = [p for p in self._model.parameters() if p not in tables]
        lr, make = self._options.dense_optimizer.lr, _OPTIMIZERS[self._options.dense_optimizer.kind]
        of_tables = make(list(tables), lr=self._options.sparse_optimizer.lr, fused=form.fused and not form.sparse)
        self._steps = [make(dense, lr=lr, fused=form.fused), of_tables] if dense else [of_tables]

    def train(self, steps: int) -> Spent:
        """Wall and CPU seconds of training the first `steps` batches."""
        began, cpu = time.perf_counter(), time.process_time()
        for batch in self._batches[:steps]:
            self._step(batch)
        return time.perf_counter() - began, time.process_time() - cpu

    def _step(self, batch: Mapping[str, torch.Tensor]) -> float:
        for step in self._steps:
            step.zero_grad()
        wanted = self._model.forward.__code__.co_varnames[1 : self._model.forward.__code__.co_argcount]
        outputs = self._model(*(batch[name] for name in wanted))
        if _name(self._work) in OF_LOGIT:
            loss = F.binary_cross_entropy_with_logits(outputs, batch["label"])
        else:
            loss = F.binary_cross_entropy(outputs, batch["label"])
        loss.backward()
        for step in self._steps:
            step.step()
        return loss.item()


def _name(work: Work) -> str:
    return work.model.rpartition(":")[2]


def options_of(name: str, batch_size: int, optimizer: str) -> Options:
    """What htrain trains a model with; PyTorch takes its rates from here."""
    flags = {
        "dense_optimizer": optimizer,
        "sparse_optimizer": optimizer,
        "fc_dtype": "float32",
        "fc_gradient_dtype": "float32",
    }
    options = with_flags(net_replicas=1, batch_size=batch_size, **flags)
    return with_flags(options, loss="bce_probability") if name in OF_PROBABILITY else options


def compare(name: str, options: Options, runs: int, *, table_rows: int) -> dict[str, Any]:
    """Alternating runs of a model; prints a line, and returns its figures."""
    steps = max(6, EXAMPLES // options.batch_size)
    work = Work(f"{Path(__file__).parent / 'click_models.py'}:{name}", table_rows)
    with sides_of([Side(kind, options, work) for kind in (Htrain, Eager)], steps, threads=1) as sides:
        form = sides[1].said
        rounds = [[side.train()[1] for side in sides] for _ in range(runs)]
    scale = 1e6 / (steps * options.batch_size)
    ours, theirs = (summary([each[place] * scale for each in rounds]) for place in (0, 1))
    ratio = summary([b / a for a, b in rounds])
    print(
        f"{name:<10} batch {options.batch_size:5d} {options.dense_optimizer.kind}  CPU ms per 1,000 examples: htrain {ours['median']:7.2f}  "
        f"eager {theirs['median']:7.2f}  ratio {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}, n={runs})  eager has {form}",
        flush=True,
    )
    return {"htrain ms": ours, "eager ms": theirs, "CPU over eager": ratio, "form": str(form)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", type=Path, required=True, metavar="DIR", help="a folder for each library")
    parser.add_argument("--model", choices=MODELS, action="append", help="this model alone; may be repeated")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--optimizer", default="sgd", choices=_OPTIMIZERS)
    parser.add_argument("--table-rows", type=int, default=TABLE_ROWS)
    parser.add_argument("--history", type=Path, help="a file to which the figures are added as lines of JSON")
    asked = parser.parse_args()
    sys.path[1:1] = [str(folder) for folder in sorted(asked.libraries.iterdir()) if folder.is_dir()]
    print(f"{cpu_model()}, one thread of {os.cpu_count()}; torch {torch.__version__}", flush=True)
    for batch_size in asked.batch or [256, 2048]:
        ratios = []
        for name in asked.model or MODELS:
            options = options_of(name, batch_size, asked.optimizer)
            figures = compare(name, options, asked.runs, table_rows=asked.table_rows)
            ratios.append(figures["CPU over eager"]["median"])
            if asked.history:
                arguments = {**vars(asked), "model": name, "batch": batch_size}
                append(asked.history, "models_over_eager", arguments, figures)
        print(f"batch {batch_size}: least {min(ratios):.2f}, median {statistics.median(ratios):.2f} of {len(ratios)}")


if __name__ == "__main__":
    main()
