"""Products by OpenBLAS, against torch's in double precision."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name

from htrain.ops import blas

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(blas._sgemm() is None, reason="htrain leaves products to torch on this CPU"),
]
LIES = ("by rows", "turned", "part of wider rows", "part of wider columns")


def matrix(rows: int, columns: int, lies: str) -> torch.Tensor:
    if lies == "by rows":
        return torch.randn(rows, columns)
    if lies == "turned":
        return torch.randn(columns, rows).t()
    if lies == "part of wider rows":  # as a Split gives it
        return torch.randn(rows, columns + 3)[:, 2 : columns + 2]
    return torch.randn(columns, rows + 5)[:, 1 : rows + 1].t()


def close(made: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(made.double(), wanted, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 70),
    st.integers(0, 70),
    st.integers(1, 70),
    st.sampled_from(LIES),
    st.sampled_from(LIES),
    st.floats(-2, 2),
)
def test_products_are_those_of_torch(m: int, n: int, k: int, left_lies: str, right_lies: str, scale: float) -> None:
    left, right, total = matrix(m, k, left_lies), matrix(k, n, right_lies), torch.randn(m, n)
    assert blas.is_ahead(left, right)
    wanted = left.double() @ right.double()
    assert close(blas.product(left, right), wanted)
    wanted = total.double() + scale * wanted
    blas.add_product(total, left, right, scale)
    assert close(total, wanted)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.randn(4, 3).bfloat16(), torch.randn(3, 2).bfloat16()),
        (torch.randn(4, 3), torch.randn(3, 2).double()),
        (torch.randn(4, 3), torch.randn(4, 2)),
        (torch.randn(5, 4, 3), torch.randn(3, 2)),
        (torch.randn(4, 1).expand(4, 3), torch.randn(3, 2)),
        (torch.randn(4, 6)[:, ::2], torch.randn(3, 2)),
        (torch.empty(4, 3, device="meta"), torch.randn(3, 2)),
    ],
    ids=[
        "bfloat16",
        "two dtypes",
        "shapes that do not fit",
        "three dimensions",
        "rows over each other",
        "every other column",
        "another device",
    ],
)
def test_what_openblas_would_misread_is_left_to_torch(left: torch.Tensor, right: torch.Tensor) -> None:
    assert not blas.is_ahead(left, right)


def test_without_the_package_products_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(blas, "import_module", absent)
    assert blas._library.__wrapped__() is None


def test_several_threads_are_left_to_torch() -> None:
    torch.set_num_threads(2)
    assert not blas.is_ahead(torch.randn(4, 3), torch.randn(3, 2))


@pytest.mark.parametrize("total", [torch.zeros(4, 3), torch.zeros(2, 4).t(), torch.zeros(4, 2).double()])
def test_a_total_that_the_product_would_leave_is_refused(total: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="has no room"):
        blas.add_product(total, torch.randn(4, 3), torch.randn(3, 2), 1.0)


@pytest.mark.parametrize(("kernels", "narrow"), [("Haswell", get_host_cpu_name() != "znver4"), ("SkylakeX", False)])
@pytest.mark.skipif(not get_host_cpu_features().get("avx512f"), reason="this CPU has no wider kernels")
def test_narrow_are_the_kernels_that_the_environment_asks_for(kernels: str, narrow: bool) -> None:
    asked = [sys.executable, "-c", "from htrain.ops.blas import is_narrow; print(is_narrow())"]
    told = subprocess.run(
        asked, env={**os.environ, "OPENBLAS_CORETYPE": kernels}, check=True, capture_output=True, text=True
    )
    assert told.stdout.strip() == str(narrow)
