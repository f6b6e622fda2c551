"""What is compiled ahead is what runs call: else a run would compile the same loop twice, and begin later than without."""

import sys
from pathlib import Path
from typing import Any

import pytest
from numba.core.dispatcher import Dispatcher
from rich.console import Console

import htrain
from htrain.executor.engine.loops_of_nets import loops_of
from htrain.jit import usual_types
from htrain.tagging import search_loops

ROOT = Path(__file__).parents[3]
DATA = "synthetic:?rows=512&table_rows=20000"  # tables that are worth marks
WITH_OTHERS = {"_dedupe"}  # ids of one column, and ids of several that have been joined
OPTIMIZERS = {
    "sgd": htrain.Sgd,
    "adagrad": htrain.Adagrad,
    "rowwise_adagrad": htrain.RowwiseAdagrad,
    "ftrl": htrain.Ftrl,
}


def signatures() -> dict[Any, set[Any]]:
    """Of all loops that have usual types, those that they have been called with so far, by other tests, too."""
    modules = [module for name, module in sys.modules.items() if name.startswith("htrain.")]
    loops = {value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)}
    return {loop: set(loop.signatures) for loop in loops if usual_types(loop)}


@pytest.mark.parametrize(
    ("model", "optimizer"), [("dlrm", "adagrad"), ("dlrm", "sgd"), ("deepfm", "rowwise_adagrad"), ("wide_deep", "ftrl")]
)
def test_runs_call_loops_with_their_usual_types_and_no_others(model: str, optimizer: str, tmp_path: Path) -> None:
    known = signatures()
    options = htrain.Options(sparse_optimizer=OPTIMIZERS[optimizer](lr=0.01), batch_size=64)
    cluster = htrain.Cluster(groups=1, trainers=1, group_ps=1, sparse_ps=2)
    plan = htrain.compile(ROOT / "models" / f"{model}.py", data=DATA, cluster=cluster, options=options)
    plan.save(tmp_path / "plan")
    htrain.run(
        tmp_path / "plan",
        data=DATA,
        out=tmp_path / "run",
        hosting="threads",
        checkpoint_seconds=0.1,
        console=Console(quiet=True),
    )
    loops = loops_of(plan.nets.values())
    for loop in [*loops, *search_loops.LOOPS]:
        usual = usual_types(loop)
        called = set(loop.signatures)
        name = loop.py_func.__name__
        assert usual in called, f"{name} is compiled ahead, and nobody calls it"
        assert called - known[loop] <= {usual} or name in WITH_OTHERS, f"{name} is called with others than {usual}"
