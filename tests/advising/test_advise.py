"""Advice as a whole: against runs, of groups of caches, and what it recommends."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from harness import run_roles
from small_libfm import BATCH, MODEL, ROWS, write_libfm
from torch import nn

import htrain
from htrain.advising.advice import Advice, Grid, Setting
from htrain.errors import UsageError
from htrain.executor.settings import RunSettings
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

GRID = Grid(("10%", "30%", "60%"), ("lru", "light-lfu"), (1, 4), (0, 3, 100))
COUNTS = ("hits", "misses", "run_out", "stale")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_libfm(tmp_path_factory.mktemp("advise"))


def advice_of(data: str, trainers: int = 1, epochs: int = 2) -> Advice:
    cluster = this_machine(groups=trainers, trainers=1, group_ps=0, sparse_ps=2)
    options = with_flags(dense_sync="allreduce", batch_size=BATCH)
    return htrain.advise(data, model=MODEL, cluster=cluster, options=options, grid=GRID, epochs=epochs)


@pytest.fixture(scope="module")
def advice(data: str) -> Advice:
    return advice_of(data)


def plan_at(advice: Advice, data: str, setting: Setting) -> Plan:
    cache = htrain.HetCache(**vars(setting))
    options = replace(advice.options, cache=cache)
    return htrain.compile(
        MODEL, data=data, cluster=advice.cluster, options=options, fc_splits={}, self_check=False, rates=advice.at(setting).rates,
    )  # fmt: skip


def counts_of(plan: Plan, data: str, folder: Path, epochs: int) -> dict[str, int]:
    roles = run_roles(plan, folder, RunSettings(folder, data, folder / "run", epochs=epochs, deadline_seconds=20))
    reports = [role.metrics()["caches"] for name, role in roles.items() if name.startswith("trainer")]
    return {name: sum(report[name] for report in reports) for name in COUNTS}


@pytest.mark.parametrize(
    "setting", [Setting("30%", "light-lfu", 4, 3), Setting("60%", "lru", 1, 100)], ids=lambda s: s.policy
)
def test_the_second_pass_of_a_run_hits_as_often_as_advised(
    advice: Advice, data: str, setting: Setting, tmp_path: Path
) -> None:
    plan = plan_at(advice, data, setting)
    once, twice = (counts_of(plan, data, tmp_path / str(epochs), epochs) for epochs in (1, 2))
    run = {name: twice[name] - once[name] for name in COUNTS}
    asked, share = run["hits"] + run["misses"], advice.at(setting).share
    assert share.hit_rate == pytest.approx(run["hits"] / asked, abs=0.01)
    assert share.invalid == pytest.approx((run["run_out"] + run["stale"]) / asked, abs=0.01)


def test_caches_that_are_asked_for_the_same_rows_are_found_to_be_alike(advice: Advice) -> None:
    assert [table.cache for table in advice.tables] == ["cache_16", "cache_1"]
    assert len({table.asked for table in advice.tables}) == 1
    for candidate in advice.candidates:
        assert len(set(candidate.tables)) == 1
        assert candidate.tables[0] == candidate.share
        assert candidate.rates.caches.keys() == {"cache_16", "cache_1"}


def test_more_rows_hit_no_less_often_and_nothing_hits_more_often_than_the_bound(advice: Advice) -> None:
    assert advice.basis.rate == 1
    for policy in GRID.policies:
        for window in GRID.windows:
            rates = [advice.at(Setting(c, policy, window, 100)).share.hit_rate for c in GRID.capacities]
            assert rates == sorted(rates)
    for candidate in advice.candidates:
        assert candidate.share.hit_rate <= advice.best[candidate.setting.capacity]
        assert 0 <= candidate.share.valid <= candidate.share.hit_rate


def test_a_tighter_bound_costs_bytes_and_a_faster_link_allows_more(advice: Advice) -> None:
    for capacity in GRID.capacities:
        num_bytes = [advice.at(Setting(capacity, "lru", 4, s)).traffic.bytes_per_example for s in (0, 3, 100)]
        assert num_bytes == sorted(num_bytes, reverse=True)
    for candidate in advice.candidates:
        slow, fast, faster = candidate.traffic.eps
        assert fast == pytest.approx(10 * slow)
        assert faster == pytest.approx(25 * slow)


def test_what_is_recommended_is_of_the_users_staleness_and_compiles(advice: Advice, data: str) -> None:
    setting = advice.recommended.setting
    assert setting.staleness == 100
    assert advice.options.cache == htrain.HetCache(**vars(setting))
    assert advice.cluster.distinct_percent == pytest.approx(100 * advice.tables[0].asked / (BATCH * 4), abs=1)
    plan = plan_at(advice, data, setting)
    assert plan.rates == advice.recommended.rates
    without = htrain.compile(
        MODEL, data=data, cluster=advice.cluster, options=advice.options, fc_splits={}, self_check=False
    )
    mine, guessed = (p.loads["trainer"].received_per_example for p in (plan, without))
    assert mine == pytest.approx(guessed, rel=0.25)


def test_several_trainers_have_stale_rows(data: str) -> None:
    found = advice_of(data, trainers=2, epochs=1)
    rates = found.at(Setting("60%", "lru", 4, 3)).rates
    assert all(cache.stale > 0 for cache in rates.caches.values())
    assert all(len(cache.shards) <= 2 for cache in rates.caches.values())


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        (Grid(capacities=("0%",)), "advise: capacities: '0%' is not a capacity"),
        (Grid(policies=("fifo",)), "advise: policies: 'fifo' is not one of those that can be played: light-lfu, lfu, lru"),
        (Grid(windows=(0,)), "advise: windows: 0 is not a number of batches"),
        (Grid(staleness=(-1,)), "advise: staleness: -1 is neither"),
        (Grid(windows=()), "advise: windows: is empty, want at least one to try"),
    ],
)  # fmt: skip
def test_a_setting_that_no_cache_can_have_is_named(grid: Grid, says: str, data: str) -> None:
    with pytest.raises(UsageError, match=says):
        htrain.advise(data, model=MODEL, grid=grid)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"cache": "lookahead"}, "the lookahead cache cannot be advised on"),
        ({"cache": "het", "cache_capacity": "5%"}, "--cache-capacity 5% has no effect: that is what advise chooses, among its --capacities"),
        ({"cache": "het", "cache_table": (("wide*", "5%"),)}, r"--cache-table wide\*=5% has no effect"),
    ],
)  # fmt: skip
def test_options_that_advise_would_not_follow_are_refused(flags: dict[str, object], says: str, data: str) -> None:
    with pytest.raises(UsageError, match=says):
        htrain.advise(data, model=MODEL, options=with_flags(**flags))


class NoTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        return self.fc(sparse.float())


class FrozenTable(NoTable):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(ROWS, 4).requires_grad_(False)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        return self.fc(self.rows(sparse).sum(1))


@pytest.mark.parametrize("model", [NoTable, FrozenTable])
def test_a_model_without_tables_that_are_trained_wants_no_cache(model: type[nn.Module], data: str) -> None:
    example = {"sparse": torch.zeros(4, 4, dtype=torch.int64)}
    says = f"^{model.__name__} has no trained table that a cache would hold rows of: there is nothing to advise$"
    with pytest.raises(UsageError, match=says):
        htrain.advise(data, model=model(), example_inputs=example)


def test_caches_that_the_user_has_left_no_table_are_said_to_be_without_effect(data: str) -> None:
    options = with_flags(cache="het", cache_table=(("*", "none"),))
    with pytest.raises(
        UsageError, match=r"^--cache het has no effect: it is of tables that are trained, but for those"
    ):
        htrain.advise(data, model=MODEL, options=options)
