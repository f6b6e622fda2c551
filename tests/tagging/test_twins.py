"""Twins: units whose exchange changes no load, found where they are planted."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_workloads import workloads, workloads_with_twins

from htrain.compiler.lowering import lowered
from htrain.data import click_schema
from htrain.frontend.load import load_model
from htrain.frontend.torch_model import capture
from htrain.net.placement import Split
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.tagging.twins import twins
from htrain.tagging.workload import Workload, workload_of

MODELS = Path(__file__).parents[2] / "models"
drawn = settings(max_examples=60, deadline=None, derandomize=True)


@drawn
@given(workloads() | workloads_with_twins(), st.integers(0, 1 << 30))
def test_exchanging_twins_changes_no_load(workload: Workload, seed: int) -> None:
    chance = np.random.default_rng(seed)
    for members in twins(workload):
        for u, w in combinations(members, 2):
            places = np.array([chance.choice(np.flatnonzero(row)) for row in workload.allowed])
            exchanged = places.copy()
            exchanged[[u, w]] = places[[w, u]]
            np.testing.assert_allclose(workload.loads(exchanged), workload.loads(places), rtol=1e-12)
            assert workload.fits(exchanged) == workload.fits(places)


@drawn
@given(workloads_with_twins())
def test_a_planted_twin_is_found(workload: Workload) -> None:
    assert [0, len(workload.units) - 1] in [[m[0], m[-1]] for m in twins(workload)]


@drawn
@given(workloads_with_twins(), st.sampled_from(["unit_load", "unit_made", "value_bytes", "value_cpu", "value_lock"]))
def test_what_differs_in_anything_is_no_twin(workload: Workload, field: str) -> None:
    last = len(workload.units) - 1
    changed = getattr(workload, field).copy()
    mine = np.flatnonzero(workload.maker == last) if field.startswith("value") else [last]
    changed[mine] += 1.0
    found = twins(replace(workload, **{field: changed}))
    assert len(mine) == 0 or not any({0, last} <= set(members) for members in found)


@pytest.mark.parametrize("kind", ["vertical", "horizontal", "co-partition"])
def test_equal_parts_of_a_cut_fc_are_twins(kind: Literal["vertical", "horizontal", "co-partition"]) -> None:
    loaded = load_model(str(MODELS / "dlrm.py"), click_schema(13, (1000,) * 26))
    cluster, options = Cluster(trainers=2, group_ps=4, sparse_ps=2), Options()
    net, units, fixed, _ = lowered(
        capture(loaded.module, loaded.example_inputs), cluster, options, fc_splits={"top.2": Split(kind, 4)}
    )
    workload = workload_of(net, units, fixed, cluster, options)
    classes = [{workload.units[u].name for u in members} for members in twins(workload)]
    parts = {unit.name for unit in workload.units if unit.name.startswith("top.2/")}
    assert any(len(parts & members) >= 3 for members in classes)
