"""Whole runs of plans that nobody chose: every one ends with all its examples trained, within its bound on dense staleness (docs/guarantees.md)."""

import pytest
import torch
from drawn_plans import Drawn, data_of
from harness import run_roles

from htrain.executor.record.sent import sent_in
from htrain.executor.roles.address_book import AddressBooks
from htrain.executor.settings import RunSettings
from htrain.net.names import TRAINER, role_at, role_of

STEPS = 30


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """As many plans as --drawn-plans says."""
    metafunc.parametrize("seed", range(metafunc.config.getoption("--drawn-plans")))


def test_a_drawn_plan_trains_every_example_within_its_bound_on_staleness(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    drawn = Drawn.of(seed)
    folder = tmp_path_factory.mktemp("drawn")
    examples = STEPS * drawn.options.batch_size * drawn.num_trainers * drawn.options.net_replicas
    examples = -(-examples // 20) * 20
    data = data_of(drawn.model, folder, examples)
    plan = drawn.plan()
    try:
        roles = run_roles(
            plan,
            folder / "plan",
            RunSettings(folder / "plan", data, folder / "run", deadline_seconds=40),
            seconds=120,
        )
    except Exception as error:
        raise AssertionError(f"{drawn}: {type(error).__name__}: {error}") from error
    books, collective = AddressBooks(plan), any(role.collective for role in roles.values())
    sent = {frozenset((name, role_at(peer))) for name, role in roles.items() for peer in sent_in(role.metrics())}
    known = {frozenset((name, peer)) for name in roles for peer in books.peers_of(name)}
    between_trainers = {pair for pair in known if collective and all(role_of(name) == TRAINER for name in pair)}
    assert sent <= known, drawn
    if drawn.options.cache.kind != "lookahead":  # of whose trainers one may ask for all
        assert {pair for pair in known - sent - between_trainers if len(pair) > 1} == set(), drawn
    trainers = [role.trainer for role in roles.values() if role.trainer]
    assert sum(trainer.totals.examples for trainer in trainers) == examples, drawn
    assert min(trainer.totals.steps for trainer in trainers) >= STEPS, drawn
    workers = [role.server or role.trainer for name, role in roles.items() if name.startswith(("trainer", "group_ps"))]
    staleness = [max(worker.staleness, default=0) for worker in workers if worker]
    assert max(staleness) <= drawn.bound, drawn
    assert all(
        torch.isfinite(tensor).all()
        for role in roles.values()
        for tensor in role.store.values()
        if tensor.is_floating_point()
    ), drawn
