"""What is said without effect is refused, with the reason; what nobody said is no statement."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import htrain
from htrain.errors import ClusterError, UsageError
from htrain.spec.cache import HetCache
from htrain.spec.cluster import Cluster, this_machine
from htrain.spec.effects import require_counts, require_effect, require_hosts
from htrain.spec.optimizers import RowwiseAdagrad
from htrain.spec.options import Options
from htrain.spec.tree import flags, given, with_flags

TWO = Cluster(groups=2)
WORKERS = Cluster(groups=2, group_ps=0, dense_ps=0)
HET: Mapping[str, Any] = {"cache": "het"}
AHEAD: Mapping[str, Any] = {"cache": "lookahead"}
GMP: Mapping[str, Any] = {"sparse_sync": "gmp", "dense_sync": "allreduce", "partition": "p"}

# What belongs to a strategy that is not chosen cannot be said.
OTHERS = [
    ({"sync_alpha": 0.2, "dense_sync": "allreduce"}, "--sync-alpha 0.2 has no effect: it belongs to --dense-sync easgd or --dense-sync model_averaging or"),
    ({"sync_period": 2, "dense_sync": "ps"}, "--sync-period 2 has no effect: it belongs to --dense-sync easgd or"),
    ({"sync_mode": "fixed_rate", "dense_sync": "ps"}, "--sync-mode fixed_rate has no effect: it belongs to --dense-sync easgd or"),
    ({"sync_through": "groups", "dense_sync": "allreduce"}, "--sync-through groups has no effect: it belongs to --dense-sync easgd or"),
    ({"sync_dtype": "int8", "dense_sync": "ps"}, "--sync-dtype int8 has no effect: it belongs to --dense-sync easgd or"),
    ({"sync_top_k": 0.5, "dense_sync": "ps"}, "--sync-top-k 0.5 has no effect: it belongs to --dense-sync easgd or"),
    ({"sync_momentum": 0.5, "dense_sync": "easgd"}, "--sync-momentum 0.5 has no effect: it belongs to --dense-sync bmuf, and dense sync is easgd"),
    ({"sync_lr": 0.5, "dense_sync": "easgd"}, "--sync-lr 0.5 has no effect: it belongs to --dense-sync bmuf"),
    ({"sync_nesterov": True, "dense_sync": "model_averaging"}, "--sync-nesterov True has no effect: it belongs to --dense-sync bmuf"),
    ({"beta1": 0.5}, "--beta1 0.5 has no effect: it belongs to --dense-optimizer adam or --dense-optimizer adamw, and the dense optimizer is adagrad"),
    ({"beta2": 0.5}, "--beta2 0.5 has no effect: it belongs to --dense-optimizer adam"),
    (
        {"dense_eps": 0.5, "dense_optimizer": "sgd"},
        "--dense-eps 0.5 has no effect: it belongs to --dense-optimizer adagrad or --dense-optimizer adam or --dense-optimizer adamw, and",
    ),
    ({"sparse_eps": 0.5, "sparse_optimizer": "sgd"}, "--sparse-eps 0.5 has no effect: it belongs to --sparse-optimizer adagrad or --sparse-optimizer roww"),
    ({"dense_momentum": 0.5}, "--dense-momentum 0.5 has no effect: it belongs to --dense-optimizer sgd, and the dense optimizer is adagrad"),
    ({"dense_dampening": 0.5}, "--dense-dampening 0.5 has no effect: it belongs to --dense-optimizer sgd"),
    ({"dense_nesterov": True}, "--dense-nesterov True has no effect: it belongs to --dense-optimizer sgd"),
    ({"sparse_momentum": 0.5}, "--sparse-momentum 0.5 has no effect: it belongs to --sparse-optimizer sgd"),
    ({"sparse_dampening": 0.5}, "--sparse-dampening 0.5 has no effect: it belongs to --sparse-optimizer sgd"),
    ({"sparse_nesterov": True}, "--sparse-nesterov True has no effect: it belongs to --sparse-optimizer sgd"),
    (
        {"sparse_weight_decay": 0.5, "sparse_optimizer": "rowwise_adagrad"},
        "--sparse-weight-decay 0.5 has no effect: it belongs to --sparse-optimizer sgd or --sparse-optimizer adagrad",
    ),
    ({"sparse_beta1": 0.5}, "--sparse-beta1 0.5 has no effect: it belongs to --sparse-optimizer sparse_adam or --sparse-optimizer rowwise_adam"),
    ({"sparse_lazy_momentum": 0.5}, "--sparse-lazy-momentum 0.5 has no effect: it belongs to --sparse-optimizer lazy_momentum"),
    ({"sparse_beta2": 0.5}, "--sparse-beta2 0.5 has no effect: it belongs to --sparse-optimizer sparse_adam"),
    (
        {"dense_lazy_weight_decay": 0.5, "dense_optimizer": "adam"},
        "--dense-lazy-weight-decay 0.5 has no effect: it belongs to --dense-optimizer sgd or --dense-optimizer adagrad",
    ),
    (
        {"sparse_lazy_weight_decay": 0.5, "sparse_optimizer": "ftrl"},
        "--sparse-lazy-weight-decay 0.5 has no effect: it belongs to --sparse-optimizer sgd or --sparse-optimizer adagrad or --sparse-optimizer roww",
    ),
    ({"dense_beta": 0.5}, "--dense-beta 0.5 has no effect: it belongs to --dense-optimizer ftrl, and the dense optimizer is adagrad"),
    ({"dense_l1": 0.5}, "--dense-l1 0.5 has no effect: it belongs to --dense-optimizer ftrl"),
    ({"dense_l2": 0.5}, "--dense-l2 0.5 has no effect: it belongs to --dense-optimizer ftrl"),
    ({"sparse_beta": 0.5}, "--sparse-beta 0.5 has no effect: it belongs to --sparse-optimizer ftrl"),
    ({"sparse_l1": 0.5}, "--sparse-l1 0.5 has no effect: it belongs to --sparse-optimizer ftrl"),
    ({"sparse_l2": 0.5}, "--sparse-l2 0.5 has no effect: it belongs to --sparse-optimizer ftrl"),
    (
        {"dense_initial_accumulator": 0.5, "dense_optimizer": "adam"},
        "--dense-initial-accumulator 0.5 has no effect: it belongs to --dense-optimizer adagrad",
    ),
    (
        {"sparse_initial_accumulator": 0.5, "sparse_optimizer": "sgd"},
        "--sparse-initial-accumulator 0.5 has no effect: it belongs to --sparse-optimizer adagrad or --sparse-optimizer rowwise_adagrad",
    ),
    ({"dense_schedule_decay": 5}, "--dense-schedule-decay 5 has no effect: it belongs to --dense-schedule linear or --dense-schedule cosine"),
    ({"dense_schedule_share": 0.5}, "--dense-schedule-share 0.5 has no effect: it belongs to --dense-schedule linear or"),
    ({"dense_schedule_gamma": 0.5}, "--dense-schedule-gamma 0.5 has no effect: it belongs to --dense-schedule steps"),
    ({"dense_schedule_milestones": "5"}, "--dense-schedule-milestones 5 has no effect: it belongs to --dense-schedule steps"),
    ({"sparse_schedule_decay": 5}, "--sparse-schedule-decay 5 has no effect: it belongs to --sparse-schedule linear or"),
    ({"sparse_schedule_share": 0.5}, "--sparse-schedule-share 0.5 has no effect: it belongs to --sparse-schedule linear or"),
    ({"sparse_schedule_gamma": 0.5}, "--sparse-schedule-gamma 0.5 has no effect: it belongs to --sparse-schedule steps"),
    ({"sparse_schedule_milestones": "5"}, "--sparse-schedule-milestones 5 has no effect: it belongs to --sparse-schedule steps"),
    ({"dense_clip_max_value": 0.5}, "--dense-clip-max-value 0.5 has no effect: it belongs to --dense-clip value, and clipping of dense gradients is none"),
    ({"dense_clip_max_norm": 0.5, "dense_clip": "value"}, "--dense-clip-max-norm 0.5 has no effect: it belongs to --dense-clip norm or --dense-clip global"),
    ({"bucket_bytes": 4096}, "--bucket-bytes 4096 has no effect: it belongs to --dense-sync allreduce"),
    ({"row_dtype": "int8", "sparse_sync": "allgather"}, "--row-dtype int8 has no effect: it belongs to --sparse-sync ps"),
    ({"partition": "p"}, "--partition p has no effect: it belongs to --sparse-sync gmp, and sparse sync is ps"),
    ({"gmp_staleness": 5}, "--gmp-staleness 5 has no effect: it belongs to --sparse-sync gmp"),
    ({"gmp_write": "deferred"}, "--gmp-write deferred has no effect: it belongs to --sparse-sync gmp"),
    ({"gmp_intra": False}, "--gmp-intra False has no effect: it belongs to --sparse-sync gmp"),
    ({"gmp_inter": False, "sparse_sync": "allgather"}, "--gmp-inter False has no effect: it belongs to --sparse-sync gmp"),
    ({"cache_window": 5}, "--cache-window 5 has no effect: it belongs to --cache het or --cache lookahead, and the cache is none"),
    ({"cache_capacity": "20%"}, "--cache-capacity 20% has no effect: it belongs to --cache het, and the cache is none"),
    ({"cache_staleness": 5, **AHEAD}, "--cache-staleness 5 has no effect: it belongs to --cache het, and the cache is lookahead"),
    ({"cache_policy": "lru"}, "--cache-policy lru has no effect"),
    ({"cache_table": (("a", "none"),)}, "--cache-table a=none has no effect: it belongs to --cache het or --cache lookahead"),
    ({"cache_sets": 5, **HET}, "--cache-sets 5 has no effect: it belongs to --cache lookahead, and the cache is het"),
    ({"cache_ways": 5}, "--cache-ways 5 has no effect"),
    ({"cache_patch": False}, "--cache-patch False has no effect"),
    ({"cache_device": "cuda"}, "--cache-device cuda has no effect"),
]  # fmt: skip

# What can be said, and changes nothing on such a cluster, or beside another option.
IDLE = [
    (Cluster(), {"sync_alpha": 0.2}, "--sync-alpha 0.2 has no effect: one group has nothing to synchronise with"),
    (Cluster(), {"sync_period": 2}, "--sync-period 2 has no effect: one group has nothing to synchronise with"),
    (TWO, {"net_replicas": 4, **HET}, "--net-replicas 4 has no effect: a trainer behind a cache has one net replica"),
    (WORKERS, {"net_replicas": 4, "dense_sync": "allreduce"}, "--net-replicas 4 has no effect: a trainer in lockstep"),
    (TWO, {"compress": "always"}, "--compress always has no effect: no value may be shorter"),
    (WORKERS, {"compress": "always", "gradient_dtype": "bfloat16"}, "--gradient-dtype bfloat16 has no effect: nothing travels"),
    (WORKERS, {"activation_dtype": "int8"}, "--activation-dtype int8 has no effect: nothing travels between trainers and group PSs"),
    (Cluster(sparse_ps=0), {"row_dtype": "int8"}, "--row-dtype int8 has no effect: no rows travel"),
    (TWO, {"row_gradient_dtype": "bfloat16", **HET}, "--row-gradient-dtype bfloat16 has no effect: all tables are behind the het cache"),
    (WORKERS, {"gmp_inter": True, "gmp_staleness": 0, **GMP}, "--gmp-inter True has no effect: without staleness every replica that is read is as new"),
    (WORKERS, {"gmp_intra": True, "gmp_staleness": "unbounded", **GMP}, "--gmp-intra True has no effect: replicas have no bound"),
    (Cluster(), {"cache_average": 2, **AHEAD}, "--cache-average 2 has no effect: there is one trainer"),
    (Cluster(), {"prefetch": True, **AHEAD}, "--prefetch True has no effect: a look-ahead cache brings"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "says"), OTHERS)
def test_what_belongs_to_another_strategy_is_refused_with_the_reason(values: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refusal:
        with_flags(**values)
    assert str(refusal.value).startswith(says)


@pytest.mark.parametrize(("cluster", "values", "says"), IDLE)
def test_an_option_that_changes_nothing_is_refused_with_the_reason(
    cluster: Cluster, values: dict[str, Any], says: str
) -> None:
    options = with_flags(**values)
    with pytest.raises(UsageError) as refusal:
        require_effect(options, cluster, values)
    assert str(refusal.value).startswith(says)
    require_effect(options, cluster, ())  # not given: no statement


def test_every_option_that_belongs_to_something_has_its_case() -> None:
    """What a flag belongs to is told from its own section; the cases stand for all of them, and for every rule."""
    free = {
        "batch_size",
        "loss",
        "dense_lr",
        "sparse_lr",
        "rate",
        "dense_weight_decay",
        "dense_schedule_warmup",
        "sparse_schedule_warmup",
        "bounded_staleness",
        "seed",
        "table_store",
        *(n for n, f in flags().items() if f.chooses_kind),
    }
    free |= {
        name for name, flag in flags().items() if flag.section in ("numerics", "fusions") and not flag.chooses_kind
    }
    refused = {says.split()[0].removeprefix("--").replace("-", "_") for *_, says in (*OTHERS, *IDLE)}
    assert set(flags()) == free | refused


@pytest.mark.parametrize(
    "values",
    [
        {}, {"dense_optimizer": "adam", "beta1": 0.5}, {"cache": "het", "cache_window": 5, "cache_staleness": 3, "net_replicas": 1},
        {"cache": "lookahead", "cache_sets": 9, "cache_window": 3}, {"gradient_dtype": "bfloat16", "compress": "always"},
        {"sync_period": 3, "sync_alpha": 0.1, "sync_mode": "fixed_rate"}, {"dense_sync": "bmuf", "sync_momentum": 0.5},
        {"row_dtype": "int8", "cache": "het", "cache_table": (("a", "none"),)},
    ],
)  # fmt: skip
def test_what_has_an_effect_is_accepted(values: dict[str, Any]) -> None:
    options = with_flags(**values)
    require_effect(options, TWO, given(options))


def test_a_prefetch_that_is_asked_for_is_refused_where_there_is_none() -> None:
    for values in (AHEAD, {"cache": "het", "cache_staleness": 0}):
        with pytest.raises(UsageError, match="--prefetch True has no effect"):
            require_effect(with_flags(**values), TWO, {"prefetch"})
        require_effect(with_flags(prefetch=False, **values), TWO, {"prefetch"})


def test_devices_that_a_strategy_leaves_without_work_are_refused() -> None:
    with pytest.raises(
        UsageError,
        match=r"--dense-ps 2 \(or dense_ps in the cluster file\) has no effect: dense sync ps has no dense PS",
    ):
        require_counts(with_flags(dense_sync="ps"), Cluster(dense_ps=2), {"dense_ps"})
    with pytest.raises(UsageError, match=r"--sparse-ps 1 .* has no effect: sparse sync allgather"):
        require_counts(with_flags(dense_sync="allreduce", sparse_sync="allgather"), Cluster(), {"sparse_ps"})
    with pytest.raises(UsageError, match=r"--group-ps-memory has no effect: the cluster has no group PS"):
        require_hosts(Options(), Cluster(group_ps=0), {"group_ps_memory"})
    with pytest.raises(UsageError, match=r"--cache-hit-percent has no effect"):
        require_hosts(Options(), TWO, {"cache_hit_percent"})
    with pytest.raises(UsageError, match=r"--dense-ps 1 has no effect: one group"):
        require_hosts(Options(), Cluster(), {"dense_ps"})


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Linear(13, 1)

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        return self.top(dense)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(100, 1, mode="sum")

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        return self.table(sparse)


@pytest.mark.parametrize(
    ("module", "given", "says"),
    [
        (Dense, {"table_splits": {"nosuch": 2}}, "--split-table nosuch=2: the model has no table 'nosuch'; there are none"),
        (Wide, {"table_splits": {"tabel.weight": 2}}, "the model has no table 'tabel.weight'; there are table.weight"),
        (Wide, {"table_splits": {"table.weight": 101}}, "it has 100 rows, so that 1 to as many shards can be"),
        (Wide, {"table_splits": {"table.weight": 0}}, "--split-table table.weight=0: it has 100 rows"),
        (Wide, {"table_splits": {"table.weight": 2}, "cluster": this_machine(sparse_ps=0)}, "without sparse PSs, tables are whole"),
        (Dense, {"options": with_flags(sparse_lr=0.5)}, "--sparse-lr 0.5 has no effect: the model has no embedding table"),
        (Dense, {"options": with_flags(cache="het")}, "--cache het has no effect: the model has no embedding table"),
        (Wide, {"options": with_flags(dense_lr=0.5)}, "--dense-lr 0.5 has no effect: the model has no dense weight"),
        (Wide, {"options": Options(batch_size="64")}, "--batch-size: '64' is not a whole number of 1 to 16,777,216"),  # type: ignore[arg-type]
        (Wide, {"options": Options(cache="het")}, r"Options: cache: is 'het', want one of NoCache, HetCache, LookAheadCache"),  # type: ignore[arg-type]
        (Wide, {"options": Options(dense_optimizer=RowwiseAdagrad(lr=1.0))}, r"Options: dense_optimizer: is Row.*, want one of Sgd, Adagrad, Adam"),
        (Wide, {"options": Options(cache=HetCache(capacity="0"))}, r"--cache-capacity: '0' is not a capacity"),
        (Wide, {"label": "click"}, "--label click has no effect"),
    ],
)  # fmt: skip
def test_compile_refuses_names_and_options_that_mean_nothing_for_the_model(
    module: type[nn.Module], given: dict[str, Any], says: str
) -> None:
    inputs = {"dense": torch.zeros(4, 13)} if module is Dense else {"sparse": torch.zeros(4, 26, dtype=torch.int64)}
    with pytest.raises(UsageError, match=says):
        htrain.compile(module(), example_inputs=inputs, **given)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("groups", 10**8, "groups: 100000000 is not a whole number of 1 to 10,000"),
        ("trainers", 0, "trainers: 0 is not a whole number of 1 to 1,000"),
        ("groups", True, "groups: True is not a whole number"),
        ("sparse_ps", 2.5, "sparse_ps: 2.5 is not a whole number"),
        ("racks", 3, "unknown field 'racks'"),
    ],
)
def test_a_cluster_in_python_has_the_bounds_of_one_in_a_file(field: str, value: Any, says: str) -> None:
    with pytest.raises(ClusterError, match=says):
        this_machine(**{field: value})


def test_a_cluster_file_means_what_it_says(tmp_path: Path) -> None:
    with pytest.raises(
        ClusterError, match="10,000 groups of 1000 trainers and 1 group PSs are more than 100,000 roles"
    ):
        this_machine(groups=10_000, trainers=1000)
