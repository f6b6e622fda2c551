"""Products of an FC that are large enough for oneDNN, or narrow enough to be turned, against float64."""

import pytest
import torch

from htrain.ops import OPS


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(("batch", "k", "n"), [(64, 415, 512), (2048, 13, 512), (4096, 256, 64), (7, 5, 3), (1, 1, 1)])
def test_products_are_those_of_float64(batch: int, k: int, n: int) -> None:
    x, w, b, dy = drawn(batch, k), drawn(n, k), drawn(n), drawn(batch, n)
    wide = [value.double() for value in (x, w, b, dy)]
    xs, ws, bs, dys = wide
    for seen, wanted in (
        (OPS["FCRelu"].kernel(x, w, b), (xs @ ws.T + bs).clamp(min=0)),
        (OPS["FCRelu"].kernel(x, w), (xs @ ws.T).clamp(min=0)),
        (OPS["FastFC"].kernel(x, w, b), xs @ ws.T + bs),
        (OPS["FCInputGradient"].kernel(w, dy), dys @ ws),
    ):
        torch.testing.assert_close(seen.double(), wanted, rtol=1e-4, atol=1e-3)
    for type in ("FCGradient", "FastFCGradient"):
        dw, db, dx = OPS[type].kernel(x, w, dy, bias=True, wants_x=True)
        for seen, wanted in ((dw, dys.T @ xs), (db, dys.sum(0)), (dx, dys @ ws)):
            torch.testing.assert_close(seen.double(), wanted, rtol=1e-4, atol=1e-2)
        assert len(OPS[type].kernel(x, w, dy, bias=False, wants_x=False)) == 1
    OPS["FCSgd"].kernel(w, b, x, dy, lr=0.01)
    torch.testing.assert_close(w.double(), ws - 0.01 * dys.T @ xs, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(b.double(), bs - 0.01 * dys.sum(0), rtol=1e-4, atol=1e-3)
