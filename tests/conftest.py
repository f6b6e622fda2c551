"""Goldens, and the plan of a small model that many tests look at."""

import difflib
import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from captures import remember_captures
from forked import Commands, shared_commands
from hypothesis import settings
from small_dlrm import small_plan

from htrain.plan.plan import Plan

settings.register_profile("shared host", deadline=None)  # how long an example takes says who else computes here
settings.load_profile("shared host")
remember_captures()
torch.set_num_threads(
    1
)  # as roles have it; a test's roles are threads already, and others run beside it: OpenMP's would spin until each has its turn
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGTERM, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if (
        signal.getsignal(number) == signal.SIG_IGN
    ):  # under nohup, and in the background of a script: commands that tests start would ignore it, too
        signal.signal(number, handler)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of commands start: each would compile all of htrain again
sys.dont_write_bytecode = False  # and each worker all tests, with their assertions, whenever they run
GOLDENS = Path(__file__).parent / "goldens"
Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite tests/goldens/*.txt; review reads the diff")
    parser.addoption(
        "--fuzz", type=int, default=1, help="times as many tries of tests/system/test_fuzz.py, other ones each time"
    )
    parser.addoption(
        "--drawn-models", type=int, default=4, help="how many drawn models tests/tools/test_drawn_models.py trains"
    )
    parser.addoption(
        "--drawn-plans", type=int, default=14, help="how many drawn plans tests/system/test_drawn_runs.py runs"
    )


def pytest_configure(config: pytest.Config) -> None:
    os.environ["HTRAIN_FUZZ"] = str(config.getoption("--fuzz"))  # read where tests are collected, in every worker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole runs first: the files that take longest must not be the last, with one worker on them and the other idle."""
    items.sort(key=lambda item: "system" not in item.path.parts)


def pytest_collection_finish() -> None:
    """What was imported is 300,000 objects, and a capture makes as many in a second: looking for garbage among them was a tenth of the time of all tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with tests/goldens/NAME.txt, or write it there with --update-goldens."""

    def compare(name: str, text: str) -> None:
        path = GOLDENS / f"{name}.txt"
        if request.config.getoption("--update-goldens"):
            path.write_text(text)
        wanted = path.read_text() if path.exists() else ""
        diff = difflib.unified_diff(wanted.splitlines(), text.splitlines(), f"goldens/{path.name}", "now", lineterm="")
        changed = "\n".join(diff)
        assert not changed, f"{changed}\n(if this is meant: pytest --update-goldens)"

    return compare


@pytest.fixture(scope="session")
def commands() -> Commands:
    return shared_commands()


def pytest_sessionfinish() -> None:
    if shared_commands.cache_info().currsize:
        shared_commands().close()


@pytest.fixture(scope="session")
def plan() -> Plan:
    """The small model's plan; changes to it are made on copies."""
    return small_plan()
