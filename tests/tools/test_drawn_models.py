"""Drawn models through htrain: refused by an error of its own, or trained as by PyTorch; and how the tool tells what became of one (tools/drawn_models.py)."""

from dataclasses import replace

import pytest
import torch
from drawn_models import kind_of, result_of, told
from drawn_programs import DrawnModel, example
from library_models.result import Result

STEPS = 14


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """As many models as --drawn-models says."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--drawn-models")))


def test_a_drawn_model_trains_as_by_pytorch_or_is_refused(seed: int) -> None:
    result = result_of(seed, num_steps=STEPS, train=True, seconds=200)
    kind = kind_of(result)
    assert kind in ("equal", "chaotic", "refused"), f"{told(result, kind)}\n{DrawnModel(seed, STEPS)}\n{result.text}"


def test_a_seed_draws_the_same_model_at_any_time() -> None:
    batch = example(5)
    torch.manual_seed(1)
    first = DrawnModel(3)
    torch.manual_seed(2)
    second = DrawnModel(3)
    assert str(first) == str(second)
    assert torch.equal(first.eval()(**batch), second.eval()(**batch))
    assert str(DrawnModel(4)) != str(first)


EQUAL = Result("drawn", "7", "yes", equal="yes", trains={"sgd+sgd alone": 1e-6, "sgd+sgd het": 2e-6})


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (EQUAL, "equal"),
        (replace(EQUAL, equal="no"), "wrong"),
        (replace(EQUAL, trains={"sgd+sgd alone": 1e-6, "sgd+sgd het": 0.1}, ulp={"sgd+sgd het": 1e-6}), "wrong"),
        (replace(EQUAL, trains={"sgd+sgd roles": 2e-4}, ulp={"sgd+sgd roles": 3e-4}), "chaotic"),
        (replace(EQUAL, trains={"sgd+sgd roles": "RunError: no"}), "crashed"),
        (replace(EQUAL, compiles="crash"), "crashed"),
        (replace(EQUAL, compiles="no", why="aten.gcd.default in forward() cannot be compiled: no such op"), "refused"),
        (replace(EQUAL, compiles="skipped"), "skipped"),
    ],
)
def test_a_model_that_is_not_pytorchs_is_told_from_one_that_is(result: Result, kind: str) -> None:
    assert kind_of(result) == kind
    assert told(result, kind).startswith(f"seed 7: {kind}: ")
