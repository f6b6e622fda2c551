"""Products of pairs of features: which are found, and which stay."""

import pytest
import torch
from fused import types
from interpreter import run_net

from htrain.net.net import B, Blob, Net
from htrain.ops.base import constant_of
from htrain.ops.builder import NetBuilder
from htrain.transform.fusions.interaction import fuse_interaction


def paired(*, other: str = "f", positions: tuple[int, ...] = (1, 2, 5), twice: bool = False) -> Net:
    """Gathered products of all pairs of rows of f[B,3,4] and of another value."""
    builder = NetBuilder("n")
    for name in dict.fromkeys(("f", other)):
        builder.input(Blob(name, (B, 3, 4), "float32"))
    (turned,) = builder.add("Transpose", (other,), attrs={"perm": (0, 2, 1)})
    (product,) = builder.add("MatMul", ("f", turned))
    (flat,) = builder.add("Reshape", (product,), attrs={"shape": (-1, 9)})
    (at,) = builder.add("Constant", (), attrs={"value": constant_of(torch.tensor(positions))})
    (found,) = builder.add("Gather", (flat, at), attrs={"axis": 1})
    return builder.build(builder.add("Concat", (flat, found), attrs={"axis": 1}) if twice else [found])


def test_products_of_pairs_are_found() -> None:
    net = fuse_interaction(paired())
    assert types(net) == {"Constant": 1, "PairwiseDots": 1}
    f = torch.randn(5, 3, 4)
    seen = run_net(net, {}, {"f": f})[net.outputs[0]]
    torch.testing.assert_close(seen, torch.stack([(f[:, i] * f[:, j]).sum(1) for i, j in ((0, 1), (0, 2), (1, 2))], 1))


def beside(first: str, *, twice: bool = False) -> Net:
    """Products of pairs of stacked rows, behind a value."""
    builder = NetBuilder("n")
    for name in ("x", "other"):
        builder.input(Blob(name, (B, 4), "float32"))
    builder.input(Blob("rows", (7, 4), "float32"))
    builder.input(Blob("places", (B,), "int64"))
    (f,) = builder.add("StackRows", ("x", "rows", "places"), attrs={"dense": 1})
    (at,) = builder.add("Constant", (), attrs={"value": constant_of(torch.tensor((1, 3)))})
    (dots,) = builder.add("PairwiseDots", (f, at), attrs={"kept": 0})
    (y,) = builder.add("Concat", (first, dots), attrs={"axis": 1})
    return builder.build([y, dots] if twice else [y])


def test_products_behind_the_first_feature_are_made_there() -> None:
    net, fused = beside("x"), fuse_interaction(beside("x"))
    assert types(fused) == {"StackRows": 1, "Constant": 1, "PairwiseDots": 1}
    values = {
        "x": torch.randn(5, 4),
        "other": torch.randn(5, 4),
        "rows": torch.randn(7, 4),
        "places": torch.tensor([0, 6, 2, -1, 2]),
    }
    torch.testing.assert_close(run_net(fused, {}, values)[fused.outputs[0]], run_net(net, {}, values)[net.outputs[0]])


@pytest.mark.parametrize("net", [beside("other"), beside("x", twice=True)], ids=["another value", "read by others"])
def test_products_behind_something_else_are_concatenated(net: Net) -> None:
    assert fuse_interaction(net).ops == net.ops


@pytest.mark.parametrize(
    "net",
    [paired(other="g"), paired(twice=True), paired(positions=(-1, 2))],
    ids=["of two", "all are read", "from behind"],
)
def test_other_products_stay(net: Net) -> None:
    assert fuse_interaction(net).ops == net.ops
