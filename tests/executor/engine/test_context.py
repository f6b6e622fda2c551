"""Passes over the processes of a role: all messages of one go to the same process, and processes have as many as each other."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from htrain.executor.engine.context import Context, Spread, process_endpoint
from htrain.net.names import role_at


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(1, 9))
def test_processes_have_as_many_replicas_as_each_other(
    groups: int, trainers: int, replicas: int, processes: int
) -> None:
    spread = Spread(trainers, replicas)
    places = [(g, t, r) for g in range(groups) for t in range(trainers) for r in range(replicas)]
    found = Counter(spread.process_of(Context(*place, 0), processes) for place in places)
    assert set(found) <= set(range(processes))
    assert max(found.values()) - min(found[k] for k in range(processes)) <= 1


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3), st.integers(0, 10**9), st.integers(1, 9))
def test_a_replica_stays_with_its_process(group: int, trainer: int, replica: int, step: int, processes: int) -> None:
    spread = Spread(10, 4)
    first, later = (spread.process_of(Context(group, trainer, replica, s), processes) for s in (0, step))
    assert first == later


def test_the_first_process_has_the_roles_own_endpoint_and_all_are_the_roles() -> None:
    assert process_endpoint("sparse_ps:0", 0) == "sparse_ps:0"
    assert role_at(process_endpoint("sparse_ps:0", 2)) == "sparse_ps:0"
