"""EASGD by its algebra: what the centre gains the groups give."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.ops import OPS
from htrain.spec.dense_sync import Easgd
from htrain.sync.easgd import alpha_of

values = st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3).map(lambda row: torch.tensor(row, dtype=torch.float64))
alphas = st.floats(0.01, 0.99)
relax = OPS["Relax"].kernel
reproducible = settings(deadline=None, derandomize=True)


def absorb(center: torch.Tensor, snapshot: torch.Tensor, alpha: float) -> torch.Tensor:
    return OPS["ElasticDifference"].kernel(center, snapshot, alpha=alpha)


@reproducible
@given(values, values, alphas)
def test_absorb_and_relax_are_the_update_of_easgd(replica: torch.Tensor, center: torch.Tensor, alpha: float) -> None:
    wanted_replica = (1 - alpha) * replica + alpha * center
    wanted_center = (1 - alpha) * center + alpha * replica
    diff = absorb(center, replica.clone(), alpha)
    relax(replica, diff)
    torch.testing.assert_close(center, wanted_center, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(replica, wanted_replica, rtol=1e-9, atol=1e-9)


@reproducible
@given(
    st.lists(values, min_size=2, max_size=4),
    values,
    st.lists(st.tuples(st.integers(0, 3), values), max_size=20),
    alphas,
)
def test_every_sync_conserves_groups_plus_centre_beside_training(
    groups: list[torch.Tensor], center: torch.Tensor, rounds: list[tuple[int, torch.Tensor]], alpha: float
) -> None:
    total = center + sum(groups)
    for who, trained in rounds:
        group = groups[who % len(groups)]
        snapshot = group.clone()
        group += trained  # the trainers' updates between snapshot and reply
        relax(group, absorb(center, snapshot, alpha))
        total = total + trained
        torch.testing.assert_close(center + sum(groups), total, rtol=1e-12, atol=1e-7)


@reproducible
@given(values, alphas)
def test_equal_replica_and_centre_stay_as_they_are(replica: torch.Tensor, alpha: float) -> None:
    center = replica.clone()
    diff = absorb(center, replica, alpha)
    assert not diff.any()
    assert torch.equal(center, replica)


def test_two_groups_and_their_centre_meet_at_their_mean() -> None:
    groups = [torch.tensor([0.0, 9.0], dtype=torch.float64), torch.tensor([6.0, -3.0], dtype=torch.float64)]
    center = torch.tensor([3.0, 3.0], dtype=torch.float64)
    for _ in range(100):
        for group in groups:
            relax(group, absorb(center, group.clone(), alpha_of(Easgd())))
    for value in (*groups, center):
        torch.testing.assert_close(value, torch.tensor([3.0, 3.0], dtype=torch.float64))


def test_where_nobody_names_a_rate_they_meet_halfway() -> None:
    assert (alpha_of(Easgd()), alpha_of(Easgd(0.1))) == (0.5, 0.1)
