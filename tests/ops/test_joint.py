"""What is done with the rows of many tables at once, against the same of each table by itself."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from accelerators import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.errors import DataError
from htrain.ops import OPS

WIDTH = 3
quick = settings(max_examples=40, deadline=None)
everywhere = pytest.mark.parametrize("device", DEVICES)
seeds = st.integers(0, 999)


class Drawn:
    """The distinct rows of some tables, and inverse indices into each of them; -1 is a padding id."""

    def __init__(self, seed: int, tables: int, device: str) -> None:
        self._random, self._device = torch.Generator().manual_seed(seed), device
        sizes = [self._number(1, 6) for _ in range(tables)]
        self.rows = [torch.randn(size, WIDTH, generator=self._random) for size in sizes]
        self.unique = [torch.arange(size) for size in sizes]
        self.joint = torch.cat([*self.rows, torch.zeros(1, WIDTH)]).to(device)

    def _number(self, least: int, most: int) -> int:
        return int(torch.randint(least, most, (), generator=self._random))

    def inverse(self, shape_of: Callable[[int], tuple[int, ...]]) -> list[torch.Tensor]:
        """For each table, of a shape that is made of its number."""
        return [
            torch.randint(-1, len(rows), shape_of(number), generator=self._random)
            for number, rows in enumerate(self.rows)
        ]

    def like(self, y: torch.Tensor) -> torch.Tensor:
        return torch.randn(y.shape, generator=self._random)

    def there(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        return [tensor.to(self._device) for tensor in tensors]


def run(type: str, *tensors: torch.Tensor, **attrs: Any) -> list[torch.Tensor]:
    made = OPS[type].kernel(*tensors, **attrs)
    return list(made) if isinstance(made, (tuple, list)) else [made]


def check(made: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    for a, b in zip(made, wanted, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-6)


@everywhere
@quick
@given(seed=seeds, tables=st.integers(1, 4), batch=st.integers(0, 5))
def test_rows_are_taken(device: str, seed: int, tables: int, batch: int) -> None:
    drawn = Drawn(seed, tables, device)
    inverse = drawn.inverse(lambda number: (batch, number) if number % 2 else (batch,))
    (index,) = run("TakeIndex", *inverse, *drawn.unique)
    assert index.dtype == torch.int32
    own = [run("TakeRows", rows, places)[0] for rows, places in zip(drawn.rows, inverse, strict=True)]
    (index,) = drawn.there(index)
    check(run("TakeJoint", drawn.joint, index, *inverse), own)
    dys = [drawn.like(y) for y in own]
    gradients = [
        run("TakeRowsGradient", rows, places, dy)[0] for rows, places, dy in zip(drawn.rows, inverse, dys, strict=True)
    ]
    check(run("TakeJointGradient", drawn.joint, index, *drawn.there(*dys)), [torch.cat(gradients)])


@everywhere
@quick
@given(seed=seeds, tables=st.integers(1, 4), dense=st.integers(0, 2), batch=st.integers(0, 5))
def test_rows_are_stacked(device: str, seed: int, tables: int, dense: int, batch: int) -> None:
    drawn = Drawn(seed, tables, device)
    inverse, own = drawn.inverse(lambda number: (batch,)), [torch.randn(batch, WIDTH) for _ in range(dense)]
    (index,) = run("StackIndex", *inverse, *drawn.unique, dense=dense)
    (index,) = drawn.there(index)
    (y,) = run("StackRows", *own, *drawn.rows, *inverse, dense=dense)
    fields = dense + tables
    check(run("StackJoint", *drawn.there(*own), drawn.joint, index, fields=fields), [y])
    dy = drawn.like(y)
    *dx, gradients = run("StackJointGradient", *drawn.there(*own), drawn.joint, index, *drawn.there(dy), fields=fields)
    wanted = run("StackRowsGradient", *own, *drawn.rows, *inverse, dy, dense=dense)
    check(dx, wanted[:dense])
    check([gradients], [torch.cat(wanted[dense:])])


@everywhere
@quick
@given(seed=seeds, listed=st.lists(st.booleans(), min_size=1, max_size=4), mean=st.booleans(), batch=st.integers(1, 5))
def test_bags_are_pooled(device: str, seed: int, listed: list[bool], mean: bool, batch: int) -> None:
    drawn = Drawn(seed, len(listed), device)
    inverse = drawn.inverse(lambda number: (2 * batch,) if listed[number] else (batch, number))
    ends = np.random.default_rng(seed).integers(0, 2 * batch + 1, (len(listed), batch - 1))
    offsets = [torch.from_numpy(np.sort(np.r_[0, own])) for own in ends]
    rest = [[bags] if is_listed else [] for bags, is_listed in zip(offsets, listed, strict=True)]
    attrs: dict[str, Any] = {"mode": "mean" if mean else "sum", "weighted": False}
    index, starts, bag, share = drawn.there(
        *run("PoolIndex", *inverse, *drawn.unique, *(r[0] for r in rest if r), listed=tuple(listed), mean=mean)
    )
    own = [run("PoolRows", rows, i, *r, **attrs)[0] for rows, i, r in zip(drawn.rows, inverse, rest, strict=True)]
    bags = [r[0] if r else i for i, r in zip(inverse, rest, strict=True)]
    check(run("PoolJoint", drawn.joint, index, starts, *bags, mean=mean), own)
    dys = [drawn.like(y) for y in own]
    gradients = [
        run("PoolRowsGradient", rows, i, *r, dy, **attrs, wants_weights=False)[0]
        for rows, i, r, dy in zip(drawn.rows, inverse, rest, dys, strict=True)
    ]
    check(run("PoolJointGradient", drawn.joint, index, bag, share, *drawn.there(*dys)), [torch.cat(gradients)])


@quick
@given(seed=seeds, sizes=st.lists(st.sampled_from([0, 1, 700, 70_000]), min_size=1, max_size=4))
def test_tables_are_deduped_side_by_side(seed: int, sizes: list[int]) -> None:
    """With enough ids for several threads, and with few."""
    draw = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, 50, (size,), generator=draw) for size in sizes]
    padding = tuple(-1 if number % 2 else 3 for number in range(len(sizes)))
    made = run("DedupeTables", *ids, padding_idx=padding)
    wanted = [run("Dedupe", each, padding_idx=p) for each, p in zip(ids, padding, strict=True)]
    check(made, [*(unique for unique, _ in wanted), *(inverse for _, inverse in wanted)])


@pytest.mark.parametrize(
    ("offsets", "wanted"),
    [
        ([0, 5_000_000], "offset 5000000 at position 1 does not fit: offsets ascend from 0 to at most 4, the number of ids"),
        ([1, 3], "offset 1 at position 0 does not fit"),
        ([0, 3, 2], "offset 2 at position 2 does not fit"),
        ([0, -1], "offset -1 at position 1 does not fit"),
    ],
)  # fmt: skip
def test_offsets_that_cut_no_bags_are_refused(offsets: list[int], wanted: str) -> None:
    """They come with data: no loop may follow them out of its arrays."""
    inverse, unique = torch.tensor([0, 1, 0, 1]), torch.tensor([3, 7])
    with pytest.raises(DataError, match=wanted):
        run("PoolIndex", inverse, inverse, unique, unique, torch.tensor([0, 2]), torch.tensor(offsets), listed=(True, True), mean=False)  # fmt: skip


def test_ids_of_another_dtype_are_what_they_say() -> None:
    ids = [torch.tensor([5, 2, 5], dtype=torch.int32), torch.tensor([1, 1])]
    made = run("DedupeTables", *ids, padding_idx=(-1, -1))
    assert [tensor.tolist() for tensor in made] == [[5, 2], [1], [0, 1, 0], [0, 0]]
