"""Whole runs out of look-ahead caches, against PyTorch on the full tables (cDLRM 5)."""

import tempfile
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import relative_differences, run_roles, torch_losses
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_wide_deep import BATCH, DATA, MODELS, small_plan

import htrain
from htrain.errors import DataError, PeerLost
from htrain.executor.host.patience import Patience
from htrain.executor.host.watch import Activity
from htrain.executor.launch.role import RunningRole
from htrain.executor.settings import RunSettings
from htrain.executor.strategies.lookahead.exchange import Exchange
from htrain.executor.strategies.lookahead.table_cache import TableCache
from htrain.executor.strategies.lookahead.windows import Windows
from htrain.executor.transport.peers import Peers
from htrain.ops.lookahead import window_of
from htrain.spec.cluster import this_machine
from htrain.spec.footprint import ROLE_BYTES
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.sync.lookahead.averaging import EverySteps
from htrain.sync.lookahead.pipeline import Pipeline
from htrain.sync.lookahead.window import WindowChoice

LOOKAHEAD = with_flags(batch_size=BATCH, cache="lookahead", sparse_lr=0.05)
SMALL = with_flags(LOOKAHEAD, cache_sets=3, cache_ways=2, cache_window=4)


def trained(folder: Path, options: Options, **counts: int) -> tuple[RunningRole, list[float]]:
    """The trainer of a whole run, and PyTorch's losses."""
    model, plan = small_plan(options, **counts)
    run = RunSettings(folder / "plan", DATA, folder / "run", deadline_seconds=10)
    return run_roles(plan, folder / "plan", run)["trainer:0:0"], torch_losses(model, DATA, options)


def losses_of(role: RunningRole) -> list[float]:
    assert role.trainer
    return role.trainer.losses


def counted(role: RunningRole) -> Counter[str]:
    total: Counter[str] = Counter()
    for cache in role.caches.values():
        if isinstance(cache, TableCache):
            total.update(vars(cache.counts))
    return total


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    optimizer=st.sampled_from(["sgd", "adagrad", "rowwise_adagrad"]),
    sets=st.sampled_from(["auto", 1, 2, 7, 20, 40]),
    ways=st.integers(1, 4),
    window=st.sampled_from(["auto", 1, 3, 10]),
    sparse_ps=st.integers(0, 2),
)
def test_the_losses_are_those_of_training_on_the_tables(
    optimizer: str, sets: int | str, ways: int, window: int | str, sparse_ps: int
) -> None:
    options = with_flags(
        LOOKAHEAD, sparse_optimizer=optimizer, cache_sets=sets, cache_ways=ways, cache_window=window,  # type: ignore[arg-type]
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        role, wanted = trained(Path(folder), options, sparse_ps=sparse_ps)
    assert max(relative_differences(losses_of(role), wanted)) < 1e-5


@pytest.mark.parametrize("sparse_ps", [0, 2])
def test_a_cache_that_is_far_too_small_has_victims_and_stale_rows_all_of_them_put_right(
    sparse_ps: int, tmp_path: Path
) -> None:
    role, wanted = trained(tmp_path, SMALL, sparse_ps=sparse_ps)
    counts = counted(role)
    assert counts["misses"] > counts["hits"] > 0
    assert counts["evicted"] > 0
    assert counts["stale"] > 0
    assert max(relative_differences(losses_of(role), wanted)) < 1e-5


def test_a_cache_that_holds_every_table_whole_reads_each_row_once(tmp_path: Path) -> None:
    role, _ = trained(tmp_path, with_flags(LOOKAHEAD, cache_sets=40))
    counts = counted(role)
    assert (counts["misses"], counts["evicted"], counts["stale"]) == (0, 0, 0)
    assert 0 < counts["loaded"] <= 52 * 40


def test_after_the_run_the_tables_hold_every_update(tmp_path: Path) -> None:
    _, plan = small_plan(SMALL, sparse_ps=2)
    full = small_plan(with_flags(SMALL, cache="none", prefetch=False, net_replicas=1), sparse_ps=2)[1]
    ends = []
    for number, each in enumerate((plan, full)):
        folder = tmp_path / str(number)
        roles = run_roles(each, folder, RunSettings(folder, DATA, folder / "run", deadline_seconds=10))
        ends.append({n: t for r in roles.values() if r.name.startswith("sparse") for n, t in r.store.items()})
    assert ends[0].keys() == ends[1].keys()
    for name, tensor in ends[0].items():
        assert (tensor - ends[1][name]).abs().max() <= 1e-5 * ends[1][name].abs().max()


def test_a_window_is_as_large_as_the_caches_that_fit_in_memory_were_made_for(tmp_path: Path) -> None:
    data = f"synthetic:?rows={BATCH * 200}&table_rows=5000"
    cluster = replace(this_machine(group_ps=0, sparse_ps=1), trainer_memory=ROLE_BYTES + (24 << 20))
    plan = htrain.compile(str(MODELS / "wide_deep.py"), data=data, cluster=cluster, options=LOOKAHEAD)
    trainer = plan.net_of("trainer")
    window = window_of(trainer)
    assert 1 < window < LOOKAHEAD.window
    assert sum(p.num_bytes for n, p in trainer.parameters.items() if n.endswith(":rows")) <= 12 << 20
    role = run_roles(plan, tmp_path, RunSettings(tmp_path, data, tmp_path / "run", deadline_seconds=10))["trainer:0:0"]
    assert role.trainer
    windows = role.trainer.upcoming
    assert isinstance(windows, Windows)
    assert windows.pipeline.choice.most == window
    counts = counted(role)
    assert counts["misses"] <= counts["hits"] / 1000


def test_one_worker_in_lockstep_ends_with_an_empty_step(tmp_path: Path) -> None:
    role, wanted = trained(tmp_path, with_flags(SMALL, dense_sync="allreduce"), sparse_ps=1)
    assert max(relative_differences(losses_of(role), wanted)) < 1e-5


def test_some_tables_can_do_without_a_cache(tmp_path: Path) -> None:
    role, wanted = trained(tmp_path, with_flags(SMALL, cache_table=(("wide.*", "none"),)), sparse_ps=1)
    assert sum(isinstance(cache, TableCache) for cache in role.caches.values()) == 26
    assert max(relative_differences(losses_of(role), wanted)) < 1e-5


def test_without_the_patch_stale_rows_are_counted_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Exchange.run

    def late(self: Exchange, replica: object, wishes: object) -> object:
        time.sleep(0.005)  # writes are behind, and windows read early
        return run(self, replica, wishes)  # type: ignore[arg-type]

    monkeypatch.setattr(Exchange, "run", late)
    role, wanted = trained(tmp_path, with_flags(SMALL, cache_patch=False))
    assert counted(role)["stale"] > 0
    assert max(relative_differences(losses_of(role), wanted)) > 1e-5


def test_a_store_that_never_answers_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, plan = small_plan(SMALL, sparse_ps=1)
    monkeypatch.setattr("htrain.executor.loops.server.Server._carry_out", lambda self, instructions, worker: None)
    with pytest.raises(PeerLost, match="trainer:0:0/-2: nothing from sparse_ps:0 for 1 s"):
        run_roles(plan, tmp_path, RunSettings(tmp_path, DATA, tmp_path / "run", deadline_seconds=1, warm_up_seconds=1))


def test_what_the_reader_cannot_read_ends_the_run_with_its_words(tmp_path: Path) -> None:
    _, plan = small_plan(SMALL)
    broken = tmp_path / "broken.tsv"
    broken.write_text("not a row\n" * 100)
    with pytest.raises(DataError, match=r"broken\.tsv"):
        run_roles(
            plan,
            tmp_path / "plan",
            RunSettings(tmp_path / "plan", f"criteo:{broken}", tmp_path / "run", deadline_seconds=10),
        )


class _Nothing:
    """A replica, a store and data of nothing: reading blocks until the test ends."""

    endpoint = "trainer:0:0/-2"
    seconds_waited = 0.0

    def __init__(self) -> None:
        self.ended = threading.Event()

    def next(self) -> None:
        self.ended.wait()

    def close(self) -> None:
        """Nothing is open."""


def test_a_stop_ends_a_trainer_that_waits_for_a_window_however_long_it_may_wait() -> None:
    nothing: Any = _Nothing()
    windows = Windows(
        {}, nothing, lambda number: nothing, lambda purpose: Peers(None), Pipeline(WindowChoice(8)), averaging=EverySteps(1),
        patience=Patience(1e6, 1e6), activity=Activity,
    )  # fmt: skip
    windows.start(nothing, nothing, {})
    came: list[object] = []
    trainer = threading.Thread(target=lambda: came.append(windows.next()), daemon=True)
    trainer.start()
    stopping = threading.Thread(target=windows.stop, daemon=True)
    stopping.start()
    trainer.join(timeout=10)
    nothing.ended.set()
    stopping.join(timeout=10)
    assert came == [None]
    assert not any(thread.is_alive() for thread in (trainer, stopping, *windows.threads))
