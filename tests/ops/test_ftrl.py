"""Steps of FTRL against the algorithm as the paper has it, of dense weights, of rows, and of rows on an accelerator."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_ftrl import PaperFtrl

from htrain.errors import DataError
from htrain.ops import OPS, step_loops
from htrain.ops.accelerated import accelerated_type
from htrain.ops.rates import Rates
from htrain.spec.clipping import NoClip
from htrain.spec.optimizers import Ftrl
from htrain.spec.schedules import ConstantRate, CosineDecay, LinearDecay, Schedule, StepDecay
from htrain.sync.row_steps import SparseStep, step_rows, stepped
from htrain.transform.optimizer import dense_op, row_op

STEPS, ROWS, WIDTH = 50, 7, 3
quick = settings(max_examples=25, deadline=None, derandomize=True)
SEEDS = st.integers(0, 1 << 30)
ASKED = st.builds(
    Ftrl,
    lr=st.sampled_from([0.05, 0.5]),
    beta=st.sampled_from([0.1, 1.0]),
    l1=st.sampled_from([0.0, 0.3, 2.0]),
    l2=st.sampled_from([0.0, 0.5]),
)


def paper(asked: Ftrl, first: torch.Tensor) -> PaperFtrl:
    return PaperFtrl(first.double().numpy(), asked.lr, asked.beta, asked.l1, asked.l2)


def first_values(shape: tuple[int, ...], generator: torch.Generator, *, zero: bool) -> torch.Tensor:
    return torch.zeros(shape) if zero else torch.randn(shape, generator=generator)


@quick
@given(seed=SEEDS, asked=ASKED, zero=st.booleans())
def test_dense_steps_are_those_of_the_paper(seed: int, asked: Ftrl, zero: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    type, names, attrs = dense_op(asked, ConstantRate(), NoClip())
    assert names == ("z", "n", "updates")
    weight = first_values((4, 2), generator, zero=zero)
    reference, states = paper(asked, weight), [torch.zeros(4, 2), torch.zeros(4, 2), torch.tensor(0)]
    for _ in range(STEPS):
        gradient = torch.randn(4, 2, generator=generator)
        OPS[type].kernel(weight, *states, gradient, **attrs)
        reference.step(gradient.double().numpy())
    np.testing.assert_allclose(weight.numpy(), reference.weights, rtol=1e-4, atol=1e-5)
    assert ((weight == 0).numpy() == (reference.weights == 0)).all()


@pytest.mark.parametrize("accelerated", [False, True])
@quick
@given(seed=SEEDS, asked=ASKED, zero=st.booleans(), first_row=st.sampled_from([0, 2**40]))
def test_steps_of_rows_are_those_of_the_paper(
    accelerated: bool, seed: int, asked: Ftrl, zero: bool, first_row: int
) -> None:
    """Of the rows of each batch alone; a row that is in it twice has the sum of its gradients."""
    generator = torch.Generator().manual_seed(seed)
    type, names, attrs = row_op(asked, ConstantRate())
    assert (type, names) == ("SparseFtrl", ("ftrl",))
    kernel = OPS[accelerated_type(type) if accelerated else type].kernel
    table, state = first_values((ROWS, WIDTH), generator, zero=zero), torch.zeros(ROWS, 2 * WIDTH)
    reference = paper(asked, table)
    for _ in range(STEPS):
        drawn = torch.randint(0, ROWS, (6,), generator=generator)
        ids, inverse = drawn.unique(return_inverse=True)
        grads = torch.zeros(len(ids), WIDTH).index_add_(0, inverse, torch.randn(6, WIDTH, generator=generator))
        kernel(table, state, ids + first_row, grads, **{**attrs, "first_row": first_row})
        reference.step(grads.double().numpy(), ids.numpy())
    np.testing.assert_allclose(table.numpy(), reference.weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state[:, WIDTH:].numpy(), reference.n, rtol=1e-5)
    assert ((table == 0).numpy() == (reference.weights == 0)).all()


@pytest.mark.parametrize("kind", ["dense", "rows"])
@quick
@given(
    seed=SEEDS,
    asked=ASKED,
    schedule=st.sampled_from(
        [
            LinearDecay(decay=20),
            CosineDecay(warmup=3, decay=17),
            StepDecay(milestones="5,10,15,19", gamma=1e-12),
            CosineDecay(decay=20, share=0.5),
        ]
    ),
)
def test_weights_stay_where_a_schedule_has_taken_the_rate_to_zero(
    kind: str, seed: int, asked: Ftrl, schedule: Schedule
) -> None:
    """The paper's, with an alpha for each step, where that is so small that in double precision it moves nothing that float32 can tell."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(ROWS, WIDTH, generator=generator) * (torch.rand(ROWS, WIDTH, generator=generator) < 0.7)
    reference = paper(asked, weight)
    if kind == "dense":
        type, _, attrs = dense_op(asked, schedule, NoClip())
        states = [torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, WIDTH), torch.tensor(0)]
    else:
        type, _, attrs = row_op(asked, schedule)
        states = [torch.zeros(ROWS, 2 * WIDTH), torch.tensor(0)]
    ids = () if kind == "dense" else (torch.arange(ROWS),)
    rates = Rates(
        lr=asked.lr, **{name: attrs[name] for name in ("schedule", "warmup", "decay", "share", "milestones", "gamma") if name in attrs}
    )  # fmt: skip
    for number in range(40):
        gradient = torch.randn(ROWS, WIDTH, generator=generator)
        before = weight.clone()
        OPS[type].kernel(weight, *states, *ids, gradient, **(attrs if kind == "dense" else {**attrs, "first_row": 0}))
        reference.at(max(rates.at(number), 1e-25)).step(gradient.double().numpy())
        if rates.at(number) == 0:
            assert torch.equal(weight, before)
    np.testing.assert_allclose(weight.numpy(), reference.weights, rtol=1e-4, atol=1e-5)
    assert all(state.isfinite().all() for state in states)


def test_l1_leaves_weights_exactly_zero_until_gradients_want_them() -> None:
    type, _, attrs = row_op(Ftrl(lr=0.1, l1=1.0), ConstantRate())
    table, state = torch.zeros(1, 2), torch.zeros(1, 4)
    seen = []
    for _ in range(4):
        OPS[type].kernel(table, state, torch.tensor([0]), torch.tensor([[0.4, -0.01]]), **attrs)
        seen.append(table[0].tolist())
    assert seen[:2] == [[0.0, 0.0]] * 2
    assert seen[2][0] < 0.0
    assert [second for _, second in seen] == [0.0] * 4
    OPS[type].kernel(table, state, torch.tensor([0]), torch.tensor([[-2.0, 0.0]]), **attrs)
    assert table[0].tolist() == [0.0, 0.0]


@quick
@given(seed=SEEDS, asked=ASKED)
def test_what_a_cache_steps_is_what_a_server_steps(seed: int, asked: Ftrl) -> None:
    rng = np.random.default_rng(seed)
    rule = SparseStep("ftrl", asked.lr, beta=asked.beta, l1=asked.l1, l2=asked.l2).rule
    table, grads = (rng.standard_normal((ROWS, WIDTH)).astype(np.float32) for _ in range(2))
    state, ids = np.zeros((ROWS, 2 * WIDTH), np.float32), np.arange(ROWS)
    served, its_state = table.copy(), state.copy()
    for _ in range(3):
        ahead = np.empty_like(table)
        for row in range(ROWS):
            stepped(ahead[row], table[row], grads[row], state[row], rule)
        step_rows(table, state, ids, grads, rule)
        step_loops.ftrl_rows(
            served, its_state, ids=ids, grads=grads, first_row=0, lr=asked.lr, beta=asked.beta, l1=asked.l1, l2=asked.l2
        )
        np.testing.assert_allclose(ahead, table, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(served, table, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(its_state, state, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ids": torch.tensor([7])}, rf"id 7 at position 0 is outside the table's rows \[0, {ROWS}\)"),
        ({"grads": torch.ones(1, 2)}, r"rows are float32\[1,2\], want float32\[1,3\]"),
    ],
)
def test_ids_and_gradients_that_do_not_fit_are_refused(change: dict[str, torch.Tensor], says: str) -> None:
    type, _, attrs = row_op(Ftrl(lr=0.1), ConstantRate())
    given: dict[str, Any] = {"ids": torch.tensor([0]), "grads": torch.ones(1, WIDTH), **change}
    table, state = torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, 2 * WIDTH)
    with pytest.raises(DataError, match=says):
        OPS[type].kernel(table, state, given["ids"], given["grads"], **attrs)
    assert not table.any()
