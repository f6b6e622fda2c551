"""Ops on an accelerator against those that they stand for, with torch on the host, and on a CUDA device where there is one."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from accelerators import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.ops import OPS
from htrain.ops.accelerated import accelerated_type

WIDTH = 3
quick = settings(max_examples=60, deadline=None, derandomize=True)
everywhere = pytest.mark.parametrize("device", DEVICES)


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def compare(type: str, tensors: Sequence[torch.Tensor], device: str, **attrs: Any) -> None:
    """Outputs, and inputs that are written, are the same."""
    own, there = [t.clone() for t in tensors], [t.clone().to(device) for t in tensors]
    wanted, seen = OPS[type].kernel(*own, **attrs), OPS[accelerated_type(type)].kernel(*there, **attrs)
    for a, b in zip([*as_list(seen), *there], [*as_list(wanted), *own], strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-6)


def as_list(made: Any) -> list[torch.Tensor]:
    return [] if made is None else list(made) if isinstance(made, tuple) else [made]


@everywhere
@quick
@given(ids=st.lists(st.integers(0, 8), max_size=9, unique=True), first_row=st.integers(0, 5), seed=st.integers(0, 99))
def test_rows_are_bounded(device: str, ids: list[int], first_row: int, seed: int) -> None:
    places = torch.tensor(ids, dtype=torch.int64) + first_row
    compare("BoundTable", (drawn(seed, 9, WIDTH), places), device, max_norm=1.2, first_row=first_row)


@everywhere
@quick
@given(ids=st.lists(st.integers(0, 8), max_size=12), first_row=st.integers(0, 5), seed=st.integers(0, 99))
def test_lookup(device: str, ids: list[int], first_row: int, seed: int) -> None:
    compare(
        "Lookup", [drawn(seed, 9, WIDTH), torch.tensor(ids, dtype=torch.int64) + first_row], device, first_row=first_row
    )


@everywhere
@quick
@given(places=st.lists(st.integers(-1, 4), max_size=12), seed=st.integers(0, 99))
def test_rows_are_taken_and_their_gradients_summed(device: str, places: list[int], seed: int) -> None:
    rows, inverse = drawn(seed, 5, WIDTH), torch.tensor(places, dtype=torch.int64)
    compare("TakeRows", [rows, inverse], device)
    compare("TakeRowsGradient", [rows, inverse, drawn(seed + 1, len(places), WIDTH)], device)
    if len(places) % 2 == 0:
        compare("TakeRows", [rows, inverse.reshape(-1, 2)], device)


@everywhere
@quick
@given(
    bags=st.lists(st.lists(st.integers(-1, 4), max_size=4), min_size=1, max_size=5),
    form=st.sampled_from(["sum", "mean", "weighted"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_bags_are_pooled_and_their_gradients_spread(device: str, bags: list[list[int]], form: str, seed: int) -> None:
    rows, inverse = drawn(seed, 5, WIDTH), torch.tensor([p for bag in bags for p in bag], dtype=torch.int64)
    offsets = torch.tensor([0, *(len(bag) for bag in bags)]).cumsum(0)[:-1]
    weighted = form == "weighted"
    rest = [offsets, *([drawn(seed + 1, inverse.numel())] if weighted else [])]
    attrs = {"mode": "mean" if form == "mean" else "sum", "weighted": weighted}
    compare("PoolRows", [rows, inverse, *rest], device, **attrs)
    compare(
        "PoolRowsGradient",
        [rows, inverse, *rest, drawn(seed + 2, len(bags), WIDTH)],
        device,
        **attrs,
        wants_weights=weighted,
    )


@everywhere
@quick
@given(examples=st.integers(0, 4), ids=st.integers(1, 3), mean=st.booleans(), seed=st.integers(0, 99))
def test_bags_of_one_length(device: str, examples: int, ids: int, mean: bool, seed: int) -> None:
    rows = drawn(seed, 5, WIDTH)
    inverse = torch.randint(-1, 5, (examples, ids), generator=torch.Generator().manual_seed(seed))
    attrs = {"mode": "mean" if mean else "sum", "weighted": False}
    compare("PoolRows", [rows, inverse], device, **attrs)
    compare("PoolRowsGradient", [rows, inverse, drawn(seed + 2, examples, WIDTH)], device, **attrs, wants_weights=False)


@everywhere
@pytest.mark.parametrize("type", ["SparseSgd", "SparseAdagrad", "SparseRowWiseAdagrad", "SparseFtrl"])
@quick
@given(ids=st.lists(st.integers(0, 8), unique=True, max_size=9), first_row=st.integers(0, 5), seed=st.integers(0, 99))
def test_sparse_steps(device: str, type: str, ids: list[int], first_row: int, seed: int) -> None:
    shapes = {
        "SparseSgd": [],
        "SparseFtrl": [(9, 2 * WIDTH)],
        "SparseAdagrad": [(9, WIDTH)],
        "SparseRowWiseAdagrad": [(9,)],
    }[type]
    states = [drawn(seed + 1, *shape).abs() for shape in shapes]
    places = torch.tensor(ids, dtype=torch.int64) + first_row
    numbers = {"SparseSgd": {}, "SparseFtrl": {"beta": 1.0, "l1": 0.3, "l2": 0.1}}.get(type, {"eps": 1e-8})
    attrs = {"lr": 0.1, "first_row": first_row, **numbers}
    compare(type, [drawn(seed, 9, WIDTH), *states, places, drawn(seed + 2, len(ids), WIDTH)], device, **attrs)


@everywhere
@quick
@given(
    examples=st.integers(1, 4),
    positions=st.lists(st.integers(0, 15), min_size=1, max_size=9),
    kept=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_dots_of_pairs(device: str, examples: int, positions: list[int], kept: int, seed: int) -> None:
    features, places = drawn(seed, examples, 4, WIDTH), torch.tensor(positions)
    compare("PairwiseDots", [features, places], device, kept=kept)
    compare(
        "PairwiseDotsGradient",
        [features, places, drawn(seed + 1, examples, kept * WIDTH + len(positions))],
        device,
        kept=kept,
    )


@everywhere
@quick
@given(examples=st.integers(1, 4), tables=st.integers(1, 3), dense=st.integers(0, 1), seed=st.integers(0, 99))
def test_fields(device: str, examples: int, tables: int, dense: int, seed: int) -> None:
    own, rows = [drawn(seed, examples, WIDTH)] * dense, [drawn(seed + k, 4 + k, WIDTH) for k in range(tables)]
    places = [
        torch.randint(-1, 4, (examples,), generator=torch.Generator().manual_seed(seed + k)) for k in range(tables)
    ]
    compare("StackRows", [*own, *rows, *places], device, dense=dense)
    compare(
        "StackRowsGradient", [*own, *rows, *places, drawn(seed, examples, dense + tables, WIDTH)], device, dense=dense
    )


def test_what_is_bound_to_the_host_is_not_taken_along() -> None:
    """A fusion binds what it knows of its inputs into a loop over host memory: on an accelerator the kernel of its own has to run."""
    there = [OPS[accelerated_type(d.type)] for d in OPS.values() if d.accelerated]
    assert there
    assert all(not d.on_host and d.gradient is None for d in there)
    assert {d.type for d in there if d.bind} == {
        accelerated_type(d.type) for d in OPS.values() if d.accelerated and d.bind_accelerated
    }
