"""What a plan expects batches of HET-GMP's workers to ask of each other, beside what they need."""

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from gmp_data import BATCH, Parts, divided
from joint import shard_of
from torch import nn

import htrain
from htrain.cli.app import commands
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

ROWS = {"a": 300, "b": 300, "c": 300, "d": 2}
WORKERS = 2
SCHEMA = f"label: y\ninputs:\n  sparse: {{kind: ids, columns: [a, b, c, d], rows: {[*ROWS.values()]}}}\n"


class OfTwoWidths(nn.Module):
    """Most rows of a batch are of its wide tables: a fourth of all is narrow, and has few."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Embedding(ROWS[name], 8) for name in "abc")
        self.d, self.top = nn.Embedding(ROWS["d"], 2), nn.Linear(10, 1)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        wide = sum(table(sparse[:, column]) for column, table in enumerate(self.wide))
        return self.top(torch.cat([wide, self.d(sparse[:, 3])], 1))[:, 0]


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    random = np.random.default_rng(0)
    (tmp_path / "s.yaml").write_text(SCHEMA)
    lines = [",".join(map(str, (random.integers(2), *(random.integers(r) for r in ROWS.values())))) for _ in range(4000)]  # fmt: skip
    (tmp_path / "a.csv").write_text("\n".join(["y,a,b,c,d", *lines]) + "\n")
    return divided(f"csv:{tmp_path}/a.csv?schema={tmp_path}/s.yaml", tmp_path, WORKERS, replicas=0.0)


def planned(parts: Parts, batch_size: int = BATCH) -> Plan:
    options = with_flags(
        dense_sync="allreduce",
        sparse_sync="gmp",
        partition=str(parts.partition),
        batch_size=batch_size,
        gmp_staleness=0,
    )
    cluster, inputs = this_machine(groups=WORKERS, trainers=1, group_ps=0), torch.zeros(4, 4, dtype=torch.int64)
    return htrain.compile(
        OfTwoWidths(), example_inputs={"sparse": inputs}, cluster=cluster, options=options, self_check=False
    )


def needed(parts: Parts) -> dict[str, float]:
    """The distinct rows of the other worker that a batch needs of each table, in the mean, as sets count them."""
    counts = dict.fromkeys(ROWS, 0)
    num_batches = 0
    for worker in range(WORKERS):
        for batch in shard_of(parts.packed, BATCH, worker, WORKERS):
            num_batches += 1
            for column, table in enumerate(ROWS):
                rows = batch["sparse"][:, column].unique()
                counts[table] += int(((rows < parts.numbering.bounds(table)[1]) != (worker == 0)).sum())
    return {table: count / num_batches for table, count in counts.items()}


def test_a_cache_asks_for_as_many_rows_as_its_tables_have_in_a_batch(parts: Parts) -> None:
    wanted = needed(parts)
    wide, narrow = sum(wanted[name] for name in "abc"), wanted["d"]
    assert wide > 8 * narrow
    asks = {op.attrs["width"]: op.attrs["asked"] for op in planned(parts).train.ops if op.type == "GmpAsk"}
    assert sum(asks[8]) / 1000 == pytest.approx(wide, rel=0.1)  # type: ignore[arg-type]
    assert sum(asks[2]) / 1000 < wide / 8  # type: ignore[arg-type]


@pytest.mark.parametrize("batch_size", [BATCH, 2 * BATCH])
def test_figures_of_other_batches_are_noted_where_they_are_told(parts: Parts, batch_size: int, tmp_path: Path) -> None:
    plan = planned(parts, batch_size)
    plan.save(tmp_path / "plan")
    found = CliRunner().invoke(commands, ["simulate", str(tmp_path / "plan"), "--steps", "4"])
    assert found.exit_code == 0, found.output
    is_other = batch_size != BATCH
    said = f"the partition was made for batches of {BATCH}, the plan has {batch_size}"
    assert (f"note: {said}" in found.output) == is_other
    assert any(note.startswith(said) for note in plan.notes) == is_other
    counted = CliRunner().invoke(
        commands, ["simulate", str(tmp_path / "plan"), "--steps", "4", "--trace", parts.packed]
    )
    assert counted.exit_code == 0, counted.output
    assert said not in counted.output
