"""Rows of many tables that are stacked: which are taken in one pass, and what stays."""

import pytest
import torch
from fused import types
from interpreter import run_net

from htrain.net.net import B, Blob, Net
from htrain.ops.builder import NetBuilder
from htrain.transform.fusions.fields import fuse_fields

WIDTH, BATCH = 4, 5


def stacked(*, axis: int = 1, twice: bool = False, dense: int = 0) -> Net:
    """Rows of two tables, one of each for an example; behind a value of the example where `dense` is its width."""
    builder = NetBuilder("n")
    taken = []
    for k in range(2):
        builder.input(Blob(f"rows{k}", (7, WIDTH), "float32"))
        builder.input(Blob(f"places{k}", (B,), "int64"))
        taken += builder.add("TakeRows", (f"rows{k}", f"places{k}"))
    (y,) = builder.add("Stack", taken, attrs={"axis": axis})
    if dense:
        builder.input(Blob("x", (B, dense), "float32"))
        (row,) = builder.add("Reshape", ("x",), attrs={"shape": (-1, dense // WIDTH, WIDTH)})
        (y,) = builder.add("Concat", (row, y), attrs={"axis": 1})
    return builder.build([y, taken[0]] if twice else [y])


def values(net: Net) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = {n: [d if isinstance(d, int) else d.at(BATCH) for d in net.blobs[n].shape] for n in net.inputs}
    return {
        name: torch.randint(-1, 7, size, generator=generator)
        if net.blobs[name].dtype == "int64"
        else torch.randn(size, generator=generator)
        for name, size in sizes.items()
    }


@pytest.mark.parametrize("dense", [0, WIDTH])
def test_rows_are_taken_and_stacked_in_one_pass_behind_a_value_of_the_example(dense: int) -> None:
    net, fused = stacked(dense=dense), fuse_fields(stacked(dense=dense))
    assert types(fused) == {"StackRows": 1}
    assert fused.ops[0].attrs == {"dense": int(dense > 0)}
    seen, wanted = run_net(fused, {}, values(net)), run_net(net, {}, values(net))
    torch.testing.assert_close(seen[fused.outputs[0]], wanted[net.outputs[0]], rtol=0, atol=0)


def test_two_values_before_the_rows_stay_concatenated() -> None:
    fused = fuse_fields(stacked(dense=2 * WIDTH))
    assert types(fused) == {"Reshape": 1, "StackRows": 1, "Concat": 1}


@pytest.mark.parametrize("net", [stacked(axis=0), stacked(twice=True)], ids=["of all", "read by others"])
def test_other_rows_stay(net: Net) -> None:
    assert fuse_fields(net).ops == net.ops
