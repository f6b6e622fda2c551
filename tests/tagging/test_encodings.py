"""Which values travel encoded, against brute force over every choice (HT 4.2)."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_workloads import workloads
from small_dlrm import small_dlrm

from htrain.compiler.pipeline import compile_net
from htrain.frontend.captured import Captured
from htrain.net.net import COMPRESS
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.tagging.encodings import Encodable, _deltas, choose, encoded
from htrain.tagging.workload import MEMORY, Ints, Workload

quick = settings(max_examples=60, deadline=None, derandomize=True)
SHORT = with_flags(batch_size=8, activation_dtype="bfloat16", gradient_dtype="bfloat16")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Workload, Encodable, Ints]:
    workload = draw(workloads())
    chance = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    places = np.array([chance.choice(np.flatnonzero(row)) for row in workload.allowed], np.int64)
    number = len(workload.values)
    forms = Encodable(
        chance.random(number) < 0.7,
        workload.value_bytes * chance.choice([0.25, 0.5], number),
        workload.value_cpu + 0.2 * chance.random(number),
        workload.value_lock + 0.1 * chance.random(number),
    )
    return workload, forms, places


@quick
@given(cases())
def test_what_encoding_a_value_changes_is_what_counting_again_gives(case: tuple[Workload, Encodable, Ints]) -> None:
    workload, forms, places = case
    deltas = _deltas(workload, forms, places)
    for v in range(len(workload.values)):
        chosen = np.arange(len(workload.values)) == v
        after = encoded(workload, forms, chosen).loads(places) - workload.loads(places)
        np.testing.assert_allclose(deltas[v], after[:, :MEMORY], atol=1e-12)


@quick
@given(cases())
def test_choice_is_never_worse_than_its_start_and_mostly_the_best(case: tuple[Workload, Encodable, Ints]) -> None:
    workload, forms, places = case
    none, every = np.zeros_like(forms.possible), forms.possible
    found = [choose(workload, forms, places, start) for start in (none, every)]
    for start, chosen in zip((none, every), found, strict=True):
        assert not (chosen & ~forms.possible).any()
        before, after = (encoded(workload, forms, flags).seconds(places) for flags in (start, chosen))
        assert after <= before * (1 + 1e-9)
    reached = min(encoded(workload, forms, chosen).seconds(places) for chosen in found)
    best = min(
        encoded(workload, forms, np.array(flags, bool) & forms.possible).seconds(places)
        for flags in itertools.product([False, True], repeat=len(workload.values))
    )
    assert reached <= 1.15 * best + 1e-12


def encoders(cluster: Cluster, options: Options) -> int:
    plan = compile_net(Captured(small_dlrm(), {}), cluster, options, name="small", solver="rules")
    return sum(op.module == COMPRESS for op in plan.nets["train"].ops)


def test_values_are_encoded_where_the_network_binds_and_not_where_the_cpu_does() -> None:
    slow = Cluster(group_ps=2, trainer_bandwidth=10**5, group_ps_bandwidth=10**5)
    assert encoders(slow, SHORT) > 0
    assert encoders(Cluster(group_ps=2), SHORT) == 0
    assert encoders(slow, Options(batch_size=8)) == 0
