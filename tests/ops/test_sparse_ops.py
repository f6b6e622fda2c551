"""Embedding rows and optimizer steps against torch.nn and torch.optim with dense gradients."""

import random
from collections.abc import Callable
from functools import partial

import pytest
import torch
from harness import RowWiseAdagrad
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from htrain.errors import DataError
from htrain.ops import OPS
from htrain.ops.bundle import LARGE_BYTES, Bundle

ROWS, DIM = 9, 4
SEEDS = st.integers(0, 1 << 30)
quick = settings(max_examples=40, deadline=None, derandomize=True)


def kernel(type: str) -> Callable:
    return OPS[type].kernel


def drawn_table(seed: int) -> torch.Tensor:
    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(seed))


ids = st.lists(st.integers(0, ROWS - 1), max_size=20).map(lambda values: torch.tensor(values, dtype=torch.int64))


@quick
@given(first=ids, second=ids, padding=st.integers(-1, ROWS - 1))
def test_dedupe_gives_each_id_once_in_order_of_appearance_and_its_places(first, second, padding: int) -> None:
    unique, *places = kernel("Dedupe")(first, second, padding_idx=padding)
    kept = [i for i in [*first.tolist(), *second.tolist()] if i != padding]
    assert unique.tolist() == list(dict.fromkeys(kept))
    for given_ids, found in zip((first, second), places, strict=True):
        assert [unique[p].item() if p >= 0 else padding for p in found.tolist()] == given_ids.tolist()


@quick
@given(given_ids=ids, cuts=st.sets(st.integers(1, ROWS - 1)), padding=st.integers(-1, ROWS - 1))
def test_dedupe_by_shard_gives_each_shard_its_own_ids(given_ids, cuts: set[int], padding: int) -> None:
    bounds = (0, *sorted(cuts), ROWS)
    *shards, places = kernel("DedupeSharded")(given_ids, bounds=bounds, padding_idx=padding)
    assert len(shards) == len(bounds) - 1
    for k, shard in enumerate(shards):
        assert all(bounds[k] <= i < bounds[k + 1] for i in shard.tolist())
    joined = torch.cat(shards)
    assert sorted(joined.tolist()) == sorted(set(given_ids.tolist()) - {padding})
    assert [joined[p].item() if p >= 0 else padding for p in places.tolist()] == given_ids.tolist()


@pytest.mark.parametrize("bad", [-1, 9, 2**40])
def test_an_id_outside_all_shards_is_named_with_its_place(bad: int) -> None:
    with pytest.raises(DataError, match=rf"^id {bad} at position 2 is outside the table's rows \[0, 9\)$"):
        kernel("DedupeSharded")(torch.tensor([3, 4, bad]), bounds=(0, 5, 9), padding_idx=-1)


@pytest.mark.parametrize("bad", [2, 8])
def test_an_id_outside_a_shard_is_refused_by_its_lookup(bad: int) -> None:
    with pytest.raises(DataError, match=rf"^id {bad} at position 1 is outside the table's rows \[3, 8\)$"):
        kernel("Lookup")(torch.zeros(5, DIM), torch.tensor([4, bad]), first_row=3)


@quick
@given(
    seed=SEEDS,
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    mode=st.sampled_from(["sum", "mean", "weighted"]),
    padding=st.sampled_from([-1, 0, 3]),
)
def test_bags_are_those_of_embedding_bag_with_empty_bags_padding_and_weights(
    seed: int, sizes: list[int], mode: str, padding: int
) -> None:
    weighted, mode = mode == "weighted", "mean" if mode == "mean" else "sum"
    draw = random.Random(seed)
    bag_ids = torch.tensor([draw.randrange(ROWS) for _ in range(sum(sizes))], dtype=torch.int64)
    offsets = torch.tensor([sum(sizes[:b]) for b in range(len(sizes))])
    weights = (torch.rand(len(bag_ids)),) if weighted else ()
    table = drawn_table(seed).requires_grad_()
    leaves = [w.clone().requires_grad_() for w in weights]
    expected = F.embedding_bag(
        bag_ids, table, offsets, mode=mode, padding_idx=padding if padding >= 0 else None,
        per_sample_weights=leaves[0] if leaves else None,
    )  # fmt: skip
    dy = torch.randn(expected.shape)
    expected.backward(dy)

    unique, places = kernel("Dedupe")(bag_ids, padding_idx=padding)
    rows = kernel("Lookup")(table.detach(), unique, first_row=0)
    arguments = (rows, places, offsets, *weights)
    torch.testing.assert_close(kernel("PoolRows")(*arguments, mode=mode, weighted=weighted), expected.detach())
    drows, *dweights = kernel("PoolRowsGradient")(*arguments, dy, mode=mode, weighted=weighted, wants_weights=weighted)
    assert table.grad is not None
    torch.testing.assert_close(torch.zeros(ROWS, DIM).index_add(0, unique, drows), table.grad)
    for seen, leaf in zip(dweights, leaves, strict=True):
        counted = bag_ids != padding
        assert leaf.grad is not None
        torch.testing.assert_close(seen[counted], leaf.grad[counted])


@quick
@given(seed=SEEDS, padding=st.sampled_from([-1, 0, 3]))
def test_rows_taken_one_by_one_are_those_of_embedding(seed: int, padding: int) -> None:
    sequence = torch.randint(ROWS, (3, 5), generator=torch.Generator().manual_seed(seed))
    table = drawn_table(seed)
    if padding >= 0:
        table[padding] = 0
    leaf = table.clone().requires_grad_()
    expected = F.embedding(sequence, leaf, padding_idx=padding if padding >= 0 else None)
    dy = torch.randn(expected.shape)
    expected.backward(dy)

    unique, places = kernel("Dedupe")(sequence, padding_idx=padding)
    rows = kernel("Lookup")(table, unique, first_row=0)
    assert torch.equal(kernel("TakeRows")(rows, places), expected)
    drows = kernel("TakeRowsGradient")(rows, places, dy)
    assert leaf.grad is not None
    torch.testing.assert_close(torch.zeros(ROWS, DIM).index_add(0, unique, drows), leaf.grad)


SPARSE = {
    "SparseSgd": (lambda p: torch.optim.SGD([p], lr=0.1), {"lr": 0.1}, ()),
    "SparseAdagrad": (lambda p: torch.optim.Adagrad([p], lr=0.1, eps=1e-6), {"lr": 0.1, "eps": 1e-6}, (DIM,)),
    "SparseRowWiseAdagrad": (lambda p: RowWiseAdagrad([p], lr=0.1, eps=1e-6), {"lr": 0.1, "eps": 1e-6}, "row"),
}


@pytest.mark.parametrize("type", SPARSE)
@settings(quick, max_examples=15)
@given(seed=SEEDS, first_row=st.sampled_from([0, 5, 2**40]))
def test_sparse_steps_are_those_of_torch_on_dense_gradients(type: str, seed: int, first_row: int) -> None:
    make, attrs, state_shape = SPARSE[type]
    draw = random.Random(seed)
    table = drawn_table(seed)
    parameter = torch.nn.Parameter(table.clone())
    optimizer = make(parameter)
    state = [torch.zeros(ROWS, *(() if state_shape == "row" else state_shape))] if state_shape else []
    for _ in range(4):
        touched = torch.tensor(draw.sample(range(ROWS), draw.randrange(ROWS + 1)), dtype=torch.int64)
        grads = torch.randn(len(touched), DIM)
        parameter.grad = torch.zeros(ROWS, DIM).index_copy(0, touched, grads)
        optimizer.step()
        kernel(type)(table, *state, touched + first_row, grads, first_row=first_row, **attrs)
        torch.testing.assert_close(table, parameter.detach())


DENSE = {
    "Sgd": (lambda p: torch.optim.SGD([p], lr=0.1), {"lr": 0.1}, []),
    "Adagrad": (lambda p: torch.optim.Adagrad([p], lr=0.1, eps=1e-6), {"lr": 0.1, "eps": 1e-6}, [(3, 2)]),
    "Adam": (
        lambda p: torch.optim.Adam([p], lr=0.1, betas=(0.8, 0.95), eps=1e-6),
        {"lr": 0.1, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6}, [(3, 2), (3, 2), (1,)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("type", DENSE)
def test_dense_steps_are_those_of_torch(type: str) -> None:
    make, attrs, shapes = DENSE[type]
    weight = torch.randn(3, 2)
    parameter = torch.nn.Parameter(weight.clone())
    optimizer, state = make(parameter), [torch.zeros(shape) for shape in shapes]
    for _ in range(5):
        parameter.grad = torch.randn(3, 2)
        optimizer.step()
        kernel(type)(weight, *state, parameter.grad, **attrs)
        torch.testing.assert_close(weight, parameter.detach())


@pytest.mark.parametrize("bad", [-1, 5])
def test_tables_that_are_served_together_refuse_ids_and_gradients_that_do_not_fit(bad: int) -> None:
    tables, ids, grads = (
        [torch.zeros(5, 4), torch.zeros(5, 2)],
        torch.tensor([0, 4]),
        [torch.ones(2, 4), torch.ones(2, 2)],
    )
    step = partial(OPS["SparseStepTables"].kernel, optimizer="sgd", lr=0.1, eps=0.0, first_rows=(0, 0))
    with pytest.raises(DataError, match=rf"id {bad} at position 1 is outside the table's rows \[0, 5\)"):
        OPS["LookupTables"].kernel(*tables, ids, torch.tensor([0, bad]), first_rows=(0, 0))
    with pytest.raises(DataError, match=f"id {bad} at position 1 is outside"):
        step(*tables, ids, torch.tensor([0, bad]), *grads)
    with pytest.raises(DataError, match=r"rows are float32\[1,2\], want float32\[2,2\]"):
        step(*tables, ids, ids, grads[0], grads[1][:1])
    with pytest.raises(DataError, match=r"ids are int32\[2\], want int64\[u\]"):
        OPS["LookupTables"].kernel(*tables, ids, ids.int(), first_rows=(0, 0))


NUMBERS = {"sgd": {}, "ftrl": {"beta": 1.0, "l1": 0.3, "l2": 0.1}}


def _state_shape(optimizer: str, rows: int, width: int) -> tuple[int, ...]:
    return {"rowwise_adagrad": (rows,), "ftrl": (rows, 2 * width)}.get(optimizer, (rows, width))


@quick
@given(seed=SEEDS, optimizer=st.sampled_from(["sgd", "adagrad", "rowwise_adagrad", "ftrl"]))
def test_tables_that_are_served_from_bundle_to_bundle_have_the_bits_that_they_have_one_by_one(
    seed: int, optimizer: str
) -> None:
    """Some tables are asked for so many rows that these travel by themselves; ids and gradients come among others, in any order."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    forms = [(rng.choice((1, 9, 3000)), rng.choice((1, 4, 16)), rng.choice((0, 50))) for _ in range(rng.randint(1, 4))]
    tables = [torch.randn(rows, width, generator=generator) for rows, width, _ in forms]
    states = [torch.rand(_state_shape(optimizer, rows, width), generator=generator) for rows, width, _ in forms]
    ids = [first + torch.randperm(rows, generator=generator)[: rng.randint(0, rows)] for rows, _, first in forms]
    grads = [
        torch.randn(len(found), width, generator=generator) for found, (_, width, _) in zip(ids, forms, strict=True)
    ]
    names, first_rows = tuple(f"t{k}" for k in range(len(forms))), tuple(first for _, _, first in forms)

    def arrived(tensors: list[torch.Tensor]) -> Bundle:
        shuffled = [*enumerate(tensors), (len(tensors), torch.ones(3))]
        rng.shuffle(shuffled)
        return Bundle.of(tuple(f"t{k}" for k, _ in shuffled), [tensor for _, tensor in shuffled]).packed().pick(names)

    rows = OPS["LookupTables"].bundled(tables, names, first_rows=first_rows)(arrived(ids))
    assert list(rows) == list(names)
    assert len(rows.pieces) == 1 + sum(tensor.nbytes >= LARGE_BYTES for tensor in rows.values())
    for table, found, (_, _, first), got in zip(tables, ids, forms, rows.values(), strict=True):
        assert torch.equal(got, table[found - first])

    held = [] if optimizer == "sgd" else states
    alone, attrs = (
        [tensor.clone() for tensor in (*tables, *held)],
        {"lr": 0.1, **NUMBERS.get(optimizer, {"eps": 1e-8})},
    )
    OPS["SparseStepTables"].bundled(
        [*tables, *held], (), optimizer=optimizer, first_rows=first_rows, **{"eps": 0.0, **attrs}
    )(arrived(ids), arrived(grads))
    one = {
        "sgd": "SparseSgd",
        "adagrad": "SparseAdagrad",
        "rowwise_adagrad": "SparseRowWiseAdagrad",
        "ftrl": "SparseFtrl",
    }[optimizer]
    for k, (found, grad) in enumerate(zip(ids, grads, strict=True)):
        own = alone[k :: len(tables)]
        kernel(one)(
            *own,
            found,
            grad,
            first_row=first_rows[k],
            **attrs,
        )
    assert all(torch.equal(ours, theirs) for ours, theirs in zip((*tables, *held), alone, strict=True))


def test_a_bundle_of_other_forms_than_a_server_serves_is_refused() -> None:
    tables, ids = [torch.zeros(5, 4)], Bundle.of(("a",), [torch.tensor([0, 4])])
    step = OPS["SparseStepTables"].bundled(tables, (), optimizer="sgd", lr=0.1, eps=0.0, first_rows=(0,))
    with pytest.raises(DataError, match=r"ids are float32\[2\], want int64"):
        OPS["LookupTables"].bundled(tables, ("x",), first_rows=(0,))(Bundle.of(("a",), [torch.ones(2)]))
    for wrong in (torch.ones(2, 3), torch.ones(1, 4), torch.ones(2), torch.ones(2, 4, dtype=torch.float64)):
        with pytest.raises(DataError, match=r"rows are .*, want float32"):
            step(ids, Bundle.of(("a",), [wrong]))
    assert not tables[0].any()
