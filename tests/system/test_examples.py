"""Every public function has an example at the end of its docstring, and these examples run as they stand, in one folder, each as a script of its own."""

import inspect
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forked import Commands, Started
from reference import example_of
from whole_runs import ROOT, wait_until

import htrain.client

IN_ORDER = ("describe", "pack", "compile", "run", "export")  # what others need: each is written by the one before
SERVE = "htrain.serve"


def public() -> dict[str, Any]:
    """What has to have an example, by name: all functions, and the classes and methods that users call."""
    named = {f"htrain.{name}": getattr(htrain, name) for name in htrain.__all__}
    found = {name: value for name, value in named.items() if inspect.isfunction(value) or value is htrain.Published}
    found |= {f"htrain.client.{name}": getattr(htrain.client, name) for name in htrain.client.__all__}
    for owner in (htrain.Plan, htrain.Published, htrain.client.Tables):
        methods = {name: value for name, value in vars(owner).items() if inspect.isfunction(value) and name[0] != "_"}
        found |= {f"{owner.__name__}.{name}": value for name, value in methods.items()}
    return found


EXAMPLES = {name: example_of(value) for name, value in public().items()}


def write_clicks(path: Path, rows: int, seed: int) -> None:
    """A log in which users of even numbers like items of odd numbers, and the other way round."""
    draw = np.random.default_rng(seed)
    users, items = draw.integers(0, 400, rows), draw.integers(0, 300, rows)
    items[0] = 299  # the last row of its table
    clicks = draw.random(rows) < 0.2 + 0.5 * ((users + items) % 2)
    columns = {
        "click": clicks.astype(np.int8),
        "user": [f"u{user}" for user in users],
        "item": items,
        "price": draw.gamma(2.0, 8.0, rows).round(2),
    }
    pq.write_table(pa.table(columns), path)


def write_script(name: str, folder: Path) -> str:
    """The module that runs an example. One that names a file in its first line stands in that file, and is imported."""
    text, script = EXAMPLES[name], f"example_of_{name.replace('.', '_')}"
    if file := re.match(r"# (\w+)\.py\n", text):
        (folder / f"{file[1]}.py").write_text(text)
        text = f"import {file[1]}\n"
    (folder / f"{script}.py").write_text(text)
    return script


def run_example(name: str, commands: Commands, folder: Path) -> str:
    """What went wrong; "" where nothing did."""
    run = commands.run_module(write_script(name, folder), [], folder, timeout=120)
    return "" if run.returncode == 0 else f"status {run.returncode}\n{run.stdout[-500:]}{run.stderr[-2000:]}"


def stop(serving: Started) -> str:
    """As by Ctrl-C; what went wrong."""
    serving.send_signal(signal.SIGINT)
    _, told = serving.communicate(timeout=60)
    return "" if serving.returncode == 0 else f"status {serving.returncode}\n{told[-2000:]}"


@pytest.fixture(scope="module")
def outcomes(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What went wrong with each example, all of them having run in one folder, tables being served to those that ask for them."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(ROOT / "models", folder / "models")
    write_clicks(folder / "train.parquet", rows=4000, seed=0)
    write_clicks(folder / "test.parquet", rows=1000, seed=1)
    first = [f"htrain.{name}" for name in IN_ORDER]
    found = {name: run_example(name, commands, folder) for name in first}
    serving = commands.start_module(write_script(SERVE, folder), folder)
    try:
        wait_until((folder / "runs" / "tables" / "serving.json").exists, serving, "serving")
        others = [name for name, text in EXAMPLES.items() if text and name not in (*first, SERVE)]
        found |= {name: run_example(name, commands, folder) for name in others}
        return found | {SERVE: stop(serving)}
    finally:
        serving.kill()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_public_name_runs(name: str, outcomes: Mapping[str, str]) -> None:
    assert EXAMPLES[name], f"{name}: end its docstring with an example: a block that is indented by 4 spaces more"
    assert not outcomes[name], f"{name}: {outcomes[name]}"
