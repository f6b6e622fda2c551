"""Expected rows against batches: as many distinct ids as the kernels find."""

import numpy as np
import pytest
import torch
from torch import nn

import htrain
from htrain.costs.expected import expected, expected_blobs
from htrain.net.net import Net, numel
from htrain.ops import OPS
from htrain.plan.plan import Plan
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options

BATCH = 256
ROWS = {"tiny": 3, "small": 200, "large": 100_000}


class Tables(nn.Module):
    """A table of each size, of two ids an example, and an FC."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(rows, 8) for name, rows in ROWS.items()})
        self.top = nn.Linear(8, 1)

    def forward(self, tiny: torch.Tensor, small: torch.Tensor, large: torch.Tensor) -> torch.Tensor:
        ids = {"tiny": tiny, "small": small, "large": large}
        return self.top(sum(table(ids[name]).sum(1) for name, table in self.tables.items()))


def plan_of(**shards: int) -> Plan:
    ids = {name: torch.zeros(4, 2, dtype=torch.int64) for name in ROWS}
    options = Options(batch_size=BATCH)
    return htrain.compile(
        Tables(), example_inputs=ids, cluster=Cluster(sparse_ps=2), options=options, fc_splits={}, table_splits=shards
    )


@pytest.fixture(scope="module")
def whole() -> Plan:
    return plan_of()


@pytest.fixture(scope="module")
def sharded() -> Plan:
    return plan_of(**{"tables.large.weight": 2, "tables.small.weight": 2})


def rows_of(net: Net, table: str) -> list[int]:
    """Rows that each of a table's lookups gives, alone or among others."""
    found = [
        rows for op in net.ops for name, _, rows in OPS[op.type].reads(op) if name.startswith(f"tables.{table}.weight")
    ]
    return [numel(net.blobs[name].shape[:1], BATCH) for name in found]


def steps_of(net: Net) -> list[tuple[str, str]]:
    """The ids and the gradients of each table's steps, alone or among others."""
    steps = [op for op in net.ops if op.type.startswith("Sparse")]
    counts = [len(first) if isinstance(first := op.attrs.get("first_rows"), tuple) else 1 for op in steps]
    return [
        pair
        for op, n in zip(steps, counts, strict=True)
        for pair in zip(op.inputs[-2 * n : -n], op.inputs[-n:], strict=True)
    ]


@pytest.mark.parametrize("which", ["whole", "sharded"])
@pytest.mark.parametrize("table", list(ROWS))
def test_uniform_ids_ask_for_as_many_rows_as_expected(table: str, which: str, request: pytest.FixtureRequest) -> None:
    plan = request.getfixturevalue(which)
    train = plan.nets["train"]
    sized = expected(train, expected_blobs(train, plan.cluster, BATCH))
    random = np.random.default_rng(0)
    distinct = np.mean([len(np.unique(random.integers(0, ROWS[table], 2 * BATCH))) for _ in range(50)])
    assert sum(rows_of(sized, table)) == pytest.approx(distinct, rel=0.03, abs=1)
    assert sum(rows_of(train, table)) >= 2 * BATCH


def test_gradients_and_what_travels_are_sized_alike(sharded: Plan) -> None:
    train = sharded.nets["train"]
    blobs = expected_blobs(train, sharded.cluster, BATCH)
    assert any(op.type == "SparseStepTables" for op in train.ops)
    assert len(steps_of(train)) == 5
    for ids, gradient in steps_of(train):
        assert blobs[ids].shape[0] == blobs[gradient].shape[0]
        assert isinstance(blobs[ids].shape[0], int)
    untouched = [op for op in train.ops if op.type == "FC"]
    assert all(blobs[o] == train.blobs[o] for op in untouched for o in op.outputs)


def test_a_cluster_file_that_says_how_many_ids_are_distinct_is_believed(whole: Plan) -> None:
    train = whole.nets["train"]
    blobs = expected_blobs(train, Cluster(distinct_percent=25), BATCH)
    assert sum(rows_of(expected(train, blobs), "large")) == 2 * BATCH // 4
    assert sum(rows_of(expected(train, blobs), "tiny")) == 3


def test_a_plan_counts_shards_once(whole: Plan, sharded: Plan) -> None:
    """Two shards are asked for as many rows together as one table."""
    for plan in (whole, sharded):
        assert all(load.received_per_example > 0 for name, load in plan.loads.items() if name.startswith("sparse"))
    one, two = (sum(p.loads[f"sparse_ps:{k}"].sent_per_example for k in (0, 1)) for p in (whole, sharded))
    assert two == pytest.approx(one, rel=0.05)
