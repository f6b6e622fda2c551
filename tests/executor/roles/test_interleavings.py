"""Whole runs by the machines of roles alone: whatever order messages, threads and rounds take, what must hold does (HT 2.3, 3.1.1)."""

from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduled import Scheduled
from small_dlrm import loss_by_torch, small_batch, small_dlrm

from htrain.compiler.pipeline import compile_net
from htrain.frontend.captured import Captured
from htrain.plan.plan import Plan
from htrain.spec.cluster import Cluster
from htrain.spec.tree import with_flags

quick = settings(max_examples=40, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
FOLDER = Path("nowhere")  # plans here have no values of their own


def plan_of(options: dict[str, object], **counts: int) -> Plan:
    """The small DLRM; SGD, so that PyTorch's loss is easily followed."""
    cluster = Cluster(**{"groups": 1, "trainers": 1, "group_ps": 2, "sparse_ps": 2, **counts})
    flags = {"batch_size": 8, "net_replicas": 1, "dense_optimizer": "sgd", "sparse_optimizer": "sgd", "dense_lr": 0.1, "sparse_lr": 0.1, **options}  # fmt: skip
    captured = Captured(small_dlrm(), {})
    splits = {"item.weight": 2}
    return compile_net(captured, cluster, with_flags(**flags), name="small", solver="rules", table_splits=splits)


def run(plan: Plan, seed: int, steps: int, **kwargs: object) -> Scheduled:
    trainers = [role for role in plan.cluster.roles if role.startswith("trainer")]
    batches = {t: [small_batch(100 * n + s, 8) for s in range(steps)] for n, t in enumerate(trainers)}
    return Scheduled(plan, FOLDER, batches, seed=seed, **kwargs).run()  # type: ignore[arg-type]


def torch_losses(parameters: dict[str, torch.Tensor], steps: int) -> list[float]:
    """PyTorch on the batches of the first trainer, from the same parameters."""
    own = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    losses = []
    for step in range(steps):
        loss = loss_by_torch(own, small_batch(step, 8))
        gradients = torch.autograd.grad(loss, list(own.values()))
        with torch.no_grad():
            for value, gradient in zip(own.values(), gradients, strict=True):
                value -= 0.1 * gradient
        losses.append(loss.item())
    return losses


def first_parameters(plan: Plan) -> dict[str, torch.Tensor]:
    """Weights and tables before the first step, put together from their shards."""
    found: dict[str, torch.Tensor] = {}
    for role, parts in Scheduled(plan, FOLDER, {}, seed=0).parts.items():
        if role.startswith(("group_ps:0", "sparse_ps", "trainer:0:0")):
            found |= {n: t for n, t in parts.store.items() if n.partition("/")[0].endswith((".weight", ".bias"))}
    tables = [n for n in found if "/" in n]
    whole = torch.cat([found.pop(name) for name in sorted(tables)]) if tables else None
    return found | ({"item.weight": whole} if whole is not None else {})


Asked = tuple[dict[str, object], dict[str, int]]
PLANS: dict[str, Asked] = {
    "with group PSs": ({}, {}),
    "a trainer alone": ({}, {"group_ps": 0}),
    "no prefetch": ({"prefetch": False}, {}),
    "behind a HET cache": ({"cache": "het", "cache_capacity": "50%", "cache_staleness": 0}, {}),
}


@cache
def plan_called(name: str) -> Plan:
    """One of PLANS or ROUNDS, compiled where it is first run: every worker collects these tests, and one runs them."""
    options, counts = (PLANS | ROUNDS)[name]
    return plan_of(options, **counts)


@pytest.mark.parametrize("name", PLANS)
@given(seed=seeds)
@quick
def test_one_replica_follows_pytorch_in_whatever_order_messages_come(name: str, seed: int) -> None:
    plan = plan_called(name)
    wanted = torch_losses(first_parameters(plan), 6)
    seen = run(plan, seed, 6)
    assert seen.losses["trainer:0:0"] == pytest.approx(wanted, rel=1e-4)
    assert seen.leftovers() == []


Shape = tuple[int, int, int, bool]
HOGWILD: tuple[Shape, ...] = (
    (1, 3, 2, True), (2, 2, 2, True), (3, 1, 1, True), (2, 2, 2, False), (1, 3, 0, True), (1, 3, 0, False)
)  # fmt: skip


@cache
def hogwild_plan(shape: Shape) -> Plan:
    trainers, replicas, group_ps, bound = shape
    options: dict[str, object] = {"net_replicas": replicas, "bounded_staleness": bound}
    return plan_of(options, trainers=trainers, group_ps=group_ps)


@pytest.mark.parametrize("shape", HOGWILD, ids=str)
@given(seed=seeds, threads=st.sampled_from([1, 2, 8]))
@quick
def test_every_step_is_run_once_and_none_misses_more_than_the_bound(shape: Shape, seed: int, threads: int) -> None:
    trainers, replicas, _, bound = shape
    seen = run(hogwild_plan(shape), seed, 9, threads=threads)
    assert [len(losses) for losses in seen.losses.values()] == [9] * trainers
    assert seen.leftovers() == []
    written = {role: histogram for role, histogram in seen.staleness.items() if histogram}
    assert written
    for histogram in written.values():
        assert sum(histogram.values()) % (9 * trainers) == 0
        assert not bound or max(histogram) <= trainers * replicas


ROUNDS: dict[str, Asked] = {
    f"{sync} {mode} {through}": (
        {"dense_sync": sync, "sync_period": 2, "sync_mode": mode, "sync_through": through},
        {"groups": 2, "dense_ps": int(through == "dense_ps")},
    )
    for sync in ("easgd", "bmuf", "model_averaging")
    for mode in ("background", "fixed_rate")
    for through in ("dense_ps", "groups")
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDS)
@given(seed=seeds)
@settings(quick, max_examples=10)
def test_groups_that_exchange_rounds_come_to_their_end(name: str, seed: int) -> None:
    seen = run(plan_called(name), seed, 6)
    assert [len(losses) for losses in seen.losses.values()] == [6, 6]
    assert seen.rounds >= 2
    assert seen.leftovers() == []


@given(seed=seeds, parity=st.integers(0, 2))
@quick
def test_a_repeated_request_of_a_cache_or_of_a_round_changes_nothing(seed: int, parity: int) -> None:
    plan = plan_called("behind a HET cache")
    wanted = torch_losses(first_parameters(plan), 6)
    seen = run(
        plan, seed, 6, twice=lambda endpoint, context: endpoint.startswith("sparse_ps") and context.step % 3 == parity
    )
    assert seen.losses["trainer:0:0"] == pytest.approx(wanted, rel=1e-4)
    assert seen.leftovers() == []


@pytest.mark.parametrize("name", PLANS)
@given(seed=seeds)
@settings(quick, max_examples=10)
def test_messages_of_steps_that_have_ended_change_nothing_when_they_come_again(name: str, seed: int) -> None:
    seen = run(plan_called(name), seed, 6)
    stores = {role: {n: t.clone() for n, t in parts.store.items()} for role, parts in seen.parts.items()}
    seen.send_again()
    assert seen.leftovers() == []
    for role, parts in seen.parts.items():
        for parameter, tensor in parts.store.items():
            torch.testing.assert_close(tensor, stores[role][parameter], rtol=0, atol=0)
