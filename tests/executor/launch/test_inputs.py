"""What data a plan is run on: ids that no table has are named before the first step."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from whole_runs import WIDE_DEEP

import htrain
from htrain.data import open_data
from htrain.errors import DataError
from htrain.executor.launch.inputs import check_rows
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

CLUSTERS: dict[str, tuple[dict[str, int], dict[str, object]]] = {
    "alone": ({"group_ps": 0, "sparse_ps": 0, "dense_ps": 0}, {}),
    "shards": ({"group_ps": 1, "sparse_ps": 2, "dense_ps": 0}, {}),
    "het": ({"group_ps": 1, "sparse_ps": 2, "dense_ps": 0}, {"cache": "het", "cache_capacity": "20%"}),
}


def plan_of(uri: str, cluster: str) -> Plan:
    counts, flags = CLUSTERS[cluster]
    return htrain.compile(WIDE_DEEP, data=uri, cluster=this_machine(**counts), options=with_flags(**flags))


@pytest.mark.parametrize("cluster", list(CLUSTERS))
def test_an_id_beyond_the_tables_is_named_with_its_file_and_a_cure(tmp_path: Path, cluster: str) -> None:
    path = tmp_path / "a.libfm"
    path.write_text("1 0:1 39:1\n" * 20)
    plan = plan_of(uri := f"libfm:{path}", cluster)
    check_rows(plan, open_data(uri))
    with path.open("a") as file:
        file.write("1 99:1 3:1\n")
    with pytest.raises(DataError) as raised:
        check_rows(plan, open_data(uri))
    assert str(raised.value) == (
        f"{path}: has the id 99 in 'sparse', and 'embeddings.tables.ids.weight' has the rows 0 to 39 of it: leave such lines out, or compile the model anew, "
        "with --data and ?rows=N for all ids that may come, and start a new run with --out"
    )
    check_rows(plan, open_data(f"{uri}?rows=40"))  # who says how many there are has the other line as a malformed one


def test_a_run_of_such_data_ends_before_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "a.libfm"
    path.write_text("1 0:1 39:1\n" * 40)
    plan_of(uri := f"libfm:{path}", "alone").save(tmp_path / "plan")
    htrain.run(tmp_path / "plan", data=uri, out=tmp_path / "run", hosting="threads")
    with path.open("a") as file:
        file.write("1 99:1 3:1\n")
    with pytest.raises(DataError, match=r"a\.libfm: has the id 99 in 'sparse', and '.*' has the rows 0 to 39 of it"):
        htrain.run(tmp_path / "plan", data=uri, out=tmp_path / "run", or_resume=True, hosting="threads")


class Two(nn.Module):
    """A table for each column, and one for a list, whose padding a mask leaves out; `guards` the second against numbers that it has no rows for."""

    def __init__(self, user: int, item: int, seen: int, *, guards: bool = False) -> None:
        super().__init__()
        self.user, self.item, self.seen = (nn.Embedding(rows, 2) for rows in (user, item, seen))
        self.guards = guards

    def forward(self, sparse: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        item = sparse[:, 1]
        item = torch.where(item < self.item.num_embeddings, item, 0) if self.guards else item
        pooled = (self.seen(seen) * (seen != 0).unsqueeze(2)).sum(1)
        return (self.user(sparse[:, 0]) * self.item(item) * pooled).sum(1)


@pytest.mark.parametrize(
    ("rows", "guards", "named"),
    [
        ((32, 12, 22), False, ""),
        ((40, 20, 30), False, ""),
        ((31, 12, 22), False, r"'sparse' has rows up to 31, 'user\.weight' has the rows 0 to 30"),
        ((32, 11, 22), False, r"'sparse' has rows up to 11, 'item\.weight' has the rows 0 to 10"),
        ((32, 11, 22), True, ""),
        ((32, 12, 21), False, r"'seen' has rows up to 21, 'seen\.weight' has the rows 0 to 20"),
    ],
)
def test_each_table_has_the_rows_of_the_vocabulary_that_it_is_looked_up_by(
    rows: tuple[int, int, int], guards: bool, named: str, tmp_path: Path
) -> None:
    columns = {
        "y": [0, 1] * 15,
        "user": range(30),
        "item": [k % 10 for k in range(30)],
        "seen": [[k % 20] for k in range(30)],
    }
    pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), tmp_path / "a.parquet")
    (tmp_path / "s.yaml").write_text(
        "label: y\ninputs:\n  sparse: {kind: ids, columns: [user, item], vocabulary: v.parquet}\n"
        "  seen: {kind: padded, column: seen, length: 3, vocabulary: v.parquet}\n"
    )
    uri = f"parquet:{tmp_path}/a.parquet?schema={tmp_path}/s.yaml"
    htrain.vocabulary(uri, out=tmp_path / "v.parquet")
    inputs = {"sparse": torch.ones(4, 2, dtype=torch.long), "seen": torch.ones(4, 3, dtype=torch.long)}
    plan = htrain.compile(Two(*rows, guards=guards), cluster=this_machine(), example_inputs=inputs, self_check=False)
    if not named:
        check_rows(plan, open_data(uri))
        return
    with pytest.raises(DataError, match=rf"the vocabulary of {named} of it: give the vocabulary"):
        check_rows(plan, open_data(uri))
