"""What data a plan is run on: ids that no table has are named before the first step."""

from pathlib import Path

import pytest
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
        f"{path}: has the id 99 in 'sparse', and the plan's tables have the rows 0 to 39 of it: leave such lines out, or compile the model anew, with --data "
        "and ?rows=N for all ids that may come, and start a new run with --out"
    )
    check_rows(plan, open_data(f"{uri}?rows=40"))  # who says how many there are has the other line as a malformed one


def test_a_run_of_such_data_ends_before_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "a.libfm"
    path.write_text("1 0:1 39:1\n" * 40)
    plan_of(uri := f"libfm:{path}", "alone").save(tmp_path / "plan")
    htrain.run(tmp_path / "plan", data=uri, out=tmp_path / "run", hosting="threads")
    with path.open("a") as file:
        file.write("1 99:1 3:1\n")
    with pytest.raises(DataError, match=r"a\.libfm: has the id 99 in 'sparse', and the plan's tables have the rows"):
        htrain.run(tmp_path / "plan", data=uri, out=tmp_path / "run", or_resume=True, hosting="threads")
