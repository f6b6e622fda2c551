"""Steps that count their updates are those of torch.optim, whatever the optimizer is told."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import RowWiseAdagrad, TableAdagrad
from hypothesis import given, settings
from hypothesis import strategies as st
from row_optimizers import PartialRowwiseAdam, SparseMomentum
from torch_schedules import scheduler

from htrain.errors import DataError
from htrain.ops import OPS
from htrain.spec.clipping import Clip, ClipNorm, ClipValue, NoClip
from htrain.spec.optimizers import (
    Adagrad,
    Adam,
    AdamW,
    LazyMomentum,
    Optimizer,
    RowwiseAdagrad,
    RowwiseAdam,
    Sgd,
    SparseAdam,
)
from htrain.spec.schedules import ConstantRate, CosineDecay, LinearDecay, Schedule, StepDecay
from htrain.transform.optimizer import dense_op, row_op

STEPS, SHAPE = 50, (3, 2)
quick = settings(max_examples=25, deadline=None, derandomize=True)
SHARES = st.sampled_from([0.0, 0.3, 0.9])
DECAYS = st.sampled_from([0.0, 0.01, 0.3])
MAKE: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
}  # fmt: skip
SGDS = st.builds(
    Sgd, lr=st.just(0.05), momentum=SHARES, dampening=SHARES, nesterov=st.booleans(), weight_decay=DECAYS
).filter(lambda sgd: not sgd.nesterov or (sgd.momentum > 0 and sgd.dampening == 0))
SEEDS = st.integers(0, 1 << 30)
WARMUPS, UPDATES = st.sampled_from([0, 1, 7]), st.sampled_from([1, 20, 90])
SCHEDULES = st.one_of(
    st.just(ConstantRate()),
    st.builds(ConstantRate, warmup=WARMUPS),
    *(st.builds(kind, warmup=WARMUPS, decay=UPDATES, share=SHARES) for kind in (LinearDecay, CosineDecay)),
    st.builds(
        StepDecay, warmup=WARMUPS, milestones=st.sampled_from(["0", "5,30", "60"]), gamma=st.sampled_from([0.1, 0.5])
    ),
)
CLIPS = st.one_of(
    st.just(NoClip()),
    st.builds(ClipNorm, st.sampled_from([0.5, 2.0])),
    st.builds(ClipValue, st.sampled_from([0.1, 1.0])),
)
OPTIMIZERS = st.one_of(
    SGDS,
    st.builds(
        Adagrad,
        lr=st.just(0.05),
        eps=st.just(1e-6),
        initial_accumulator=st.sampled_from([0.0, 0.1]),
        weight_decay=DECAYS,
    ),
    *(
        st.builds(kind, lr=st.just(0.05), beta1=SHARES, beta2=st.sampled_from([0.8, 0.99]), weight_decay=DECAYS)
        for kind in (Adam, AdamW)
    ),
)


def of_torch(asked: Optimizer, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
    named: dict[str, Any] = dict(vars(asked))
    named.pop("lazy_weight_decay", None)  # of tables alone
    if isinstance(asked, Adam | AdamW):
        named["betas"] = (named.pop("beta1"), named.pop("beta2"))
    if isinstance(asked, Adagrad):
        named["initial_accumulator_value"] = named.pop("initial_accumulator")
    return MAKE[asked.kind]([parameter], **named)


def states_of(asked: Optimizer, names: tuple[str, ...]) -> list[torch.Tensor]:
    first = {"accumulator": getattr(asked, "initial_accumulator", 0.0)}
    shapes = {"step": (1,), "updates": ()}
    held = [torch.full(shapes.get(name, SHAPE), first.get(name, 0.0)) for name in names]
    return [tensor.long() if name == "updates" else tensor for name, tensor in zip(names, held, strict=True)]


@quick
@given(seed=SEEDS, asked=OPTIMIZERS, schedule=SCHEDULES, clip=CLIPS)
def test_dense_steps_are_those_of_torch(seed: int, asked: Optimizer, schedule: Schedule, clip: Clip) -> None:
    generator = torch.Generator().manual_seed(seed)
    type, names, attrs = dense_op(asked, schedule, clip)
    weight = torch.randn(SHAPE, generator=generator)
    parameter, states = torch.nn.Parameter(weight.clone()), states_of(asked, names)
    optimizer = of_torch(asked, parameter)
    changing = scheduler(optimizer, schedule)
    for _ in range(STEPS):
        dw = torch.randn(SHAPE, generator=generator)
        parameter.grad = dw.clone()
        if isinstance(clip, ClipNorm):
            torch.nn.utils.clip_grad_norm_(parameter, clip.max_norm)
        elif isinstance(clip, ClipValue):
            torch.nn.utils.clip_grad_value_(parameter, clip.max_value)
        optimizer.step()
        changing.step()
        OPS[type].kernel(weight, *states, dw, **attrs)
    torch.testing.assert_close(weight, parameter.detach(), rtol=1e-5, atol=1e-6)


ROWS, WIDTH = 6, 3
ROW_OPTIMIZERS = st.sampled_from([
    Sgd(lr=0.05), Adagrad(lr=0.05, initial_accumulator=0.1), RowwiseAdagrad(lr=0.05, eps=1e-6), SparseAdam(lr=0.05, beta1=0.8, beta2=0.95),
    RowwiseAdam(lr=0.05, beta1=0.8, beta2=0.95, eps=1e-6), LazyMomentum(lr=0.05, lazy_momentum=0.8), LazyMomentum(lr=0.05, lazy_momentum=0.0),
])  # fmt: skip


def table_optimizer(asked: Optimizer, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
    if isinstance(asked, SparseAdam):
        return torch.optim.SparseAdam([parameter], lr=asked.lr, betas=(asked.beta1, asked.beta2), eps=asked.eps)
    if isinstance(asked, Adagrad):
        return TableAdagrad([parameter], asked.lr, asked.eps, asked.initial_accumulator)
    if isinstance(asked, RowwiseAdagrad):
        return RowWiseAdagrad([parameter], asked.lr, asked.eps, asked.initial_accumulator)
    if isinstance(asked, RowwiseAdam):
        return PartialRowwiseAdam([parameter], asked)
    if isinstance(asked, LazyMomentum):
        return SparseMomentum([parameter], asked)
    return torch.optim.SGD([parameter], lr=asked.lr)


@quick
@given(seed=SEEDS, asked=ROW_OPTIMIZERS, schedule=SCHEDULES, first_row=st.sampled_from([0, 2**40]))
def test_steps_of_rows_are_those_of_torch(seed: int, asked: Optimizer, schedule: Schedule, first_row: int) -> None:
    """SparseAdam takes the rows of a batch alone; of the others, rows without a gradient do not move."""
    generator = torch.Generator().manual_seed(seed)
    type, names, attrs = row_op(asked, schedule)
    table = torch.randn((ROWS, WIDTH), generator=generator)
    parameter, states = torch.nn.Parameter(table.clone()), row_states(asked, names)
    optimizer = table_optimizer(asked, parameter)
    changing = scheduler(optimizer, schedule)
    for _ in range(STEPS):
        count = int(torch.randint(0, ROWS + 1, (), generator=generator))
        ids = torch.randperm(ROWS, generator=generator)[:count]
        grads = torch.randn((count, WIDTH), generator=generator)
        gradient = torch.sparse_coo_tensor(ids[None], grads, (ROWS, WIDTH), check_invariants=True)
        parameter.grad = gradient if isinstance(asked, SparseAdam | RowwiseAdam | LazyMomentum) else gradient.to_dense()
        optimizer.step()
        changing.step()
        OPS[type].kernel(table, *states, ids + first_row, grads, **{**attrs, "first_row": first_row})
    torch.testing.assert_close(table, parameter.detach(), rtol=1e-5, atol=1e-6)


def row_states(asked: Optimizer, names: tuple[str, ...]) -> list[torch.Tensor]:
    accumulator = torch.full(
        (ROWS,) if isinstance(asked, RowwiseAdagrad) else (ROWS, WIDTH), getattr(asked, "initial_accumulator", 0.0)
    )
    held = {"accumulator": accumulator, "updates": torch.zeros((), dtype=torch.int64)}
    if isinstance(asked, RowwiseAdam):
        held["square"] = torch.zeros(ROWS)
    return [held[name] if name in held else torch.zeros(ROWS, WIDTH) for name in names]


@pytest.mark.parametrize("asked", [SparseAdam(lr=0.1), RowwiseAdam(lr=0.1), LazyMomentum(lr=0.1)])
@pytest.mark.parametrize("bad", [-1, ROWS])
def test_steps_of_rows_refuse_an_id_that_is_outside(bad: int, asked: Optimizer) -> None:
    type, names, attrs = row_op(asked, ConstantRate())
    table, states = torch.zeros(ROWS, WIDTH), row_states(asked, names)
    with pytest.raises(DataError, match=rf"id {bad} at position 0 is outside the table's rows \[0, {ROWS}\)"):
        OPS[type].kernel(table, *states, torch.tensor([bad]), torch.ones(1, WIDTH), **attrs)
    assert not table.any()
