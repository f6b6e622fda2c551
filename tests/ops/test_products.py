"""Products of FCs by each library that this machine has, against torch's in double precision."""

import pytest
import torch

from htrain.ops import blas, products

pytestmark = pytest.mark.usefixtures("one_thread")
LIBRARIES = ("as this CPU has it", "OpenBLAS wide", "OpenBLAS narrow", "no OpenBLAS", "no oneDNN", "torch alone")


@pytest.fixture(params=LIBRARIES, autouse=True)
def libraries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param.startswith("OpenBLAS"):
        monkeypatch.setattr(products, "is_narrow", lambda: request.param.endswith("narrow"))
    if request.param in ("no OpenBLAS", "torch alone"):
        monkeypatch.setattr(blas, "_sgemm", lambda: None)
    if request.param in ("no oneDNN", "torch alone"):
        monkeypatch.setattr(products, "_pointwise", None)
    return str(request.param)


def close(made: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(made.double(), wanted, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("inputs", [13, 50])
@pytest.mark.parametrize(("batch", "outputs"), [(1, 30), (160, 30), (160, 1200), (700, 30), (700, 300), (160, 5000)])
def test_products_are_those_of_torch(batch: int, inputs: int, outputs: int) -> None:
    x, dy, w, bias = (
        torch.randn(batch, inputs),
        torch.randn(batch, outputs),
        torch.randn(outputs, inputs),
        torch.randn(outputs),
    )
    y = x.double() @ w.double().t()
    assert close(products.fast_linear(x, w), y)
    assert close(products.fast_linear(x, w, bias), y + bias)
    assert close(products.fast_linear(x, w, bias, relu=True), (y + bias).relu())
    assert close(products.fast_linear(x, w, relu=True), y.relu())
    assert close(products.fast_linear(dy, w.t()), dy.double() @ w.double())
    gradient = dy.double().t() @ x.double()
    assert close(products.weight_gradient(dy, x), gradient)
    stepped = w.clone()
    products.sgd_step(stepped, dy, x, 0.01)
    assert close(stepped, w - 0.01 * gradient)


@pytest.mark.parametrize(("batch", "outputs"), [(3, 30), (700, 300)])
def test_a_weight_of_float32_takes_the_step_of_a_product_in_bfloat16(batch: int, outputs: int) -> None:
    x, dy, w = torch.randn(batch, 50).bfloat16(), torch.randn(batch, outputs).bfloat16(), torch.randn(outputs, 50)
    stepped = w.clone()
    products.sgd_step(stepped, dy, x, 0.01)
    gradient = dy.double().t() @ x.double()
    assert torch.allclose(
        stepped.double(), w - 0.01 * gradient, rtol=0, atol=0.01 * 2**-7 * gradient.abs().max().item()
    )


@pytest.mark.parametrize(("batch", "outputs"), [(160, 30), (700, 300)])
def test_a_weight_that_is_part_of_a_wider_value_is_stepped_where_it_is(batch: int, outputs: int) -> None:
    x, dy, wider = torch.randn(batch, 50), torch.randn(batch, outputs), torch.randn(outputs, 60)
    around = wider.clone()
    products.sgd_step(wider[:, 4:54], dy, x, 0.01)
    assert close(wider[:, 4:54], around[:, 4:54] - 0.01 * (dy.double().t() @ x.double()))
    assert torch.equal(wider[:, :4], around[:, :4])
    assert torch.equal(wider[:, 54:], around[:, 54:])


def test_large_products_of_bfloat16_run_on_whatever_cpu() -> None:
    x, w, bias = torch.randn(1024, 128).bfloat16(), torch.randn(96, 128).bfloat16(), torch.randn(96).bfloat16()
    wanted = torch.relu(x.float() @ w.float().t() + bias.float())
    torch.testing.assert_close(products.fast_linear(x, w, bias, relu=True).float(), wanted, rtol=2e-2, atol=2e-1)
