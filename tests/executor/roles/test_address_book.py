"""Roles are told of those that they exchange messages with, and of no others. Whole runs say so, too: tests/system/test_drawn_runs.py."""

from dataclasses import replace

import pytest
from small_dlrm import small_plan

from htrain.executor.roles.address_book import AddressBooks
from htrain.net.names import NetName
from htrain.plan.plan import Plan


def book_of(plan: Plan, role: str) -> dict[str, str]:
    """What a role is told, of endpoints as roles have them."""
    whole = {f"{each}{part}": f"tcp://{each}" for each in plan.cluster.roles for part in ("", "/0", "/sync", "/control", "/pulse")}  # fmt: skip
    ((told, book),) = AddressBooks(plan).of([role], whole)
    assert told == role
    assert all(whole[endpoint] == address for endpoint, address in book.items())
    return book


@pytest.mark.parametrize(
    ("role", "peers"),
    [
        ("trainer:1:0", {"trainer:1:0", "group_ps:1:0", "group_ps:1:1", "sparse_ps:0", "sparse_ps:1"}),
        ("group_ps:0:1", {"group_ps:0:0", "group_ps:0:1", "trainer:0:0", "trainer:0:1", "dense_ps:0"}),
        ("sparse_ps:1", {"sparse_ps:1", "trainer:0:0", "trainer:0:1", "trainer:1:0", "trainer:1:1"}),
        ("dense_ps:0", {"dense_ps:0", "group_ps:0:0", "group_ps:0:1", "group_ps:1:0", "group_ps:1:1"}),
    ],
)
def test_a_role_knows_its_own_group_and_what_serves_all(role: str, peers: set[str]) -> None:
    plan = small_plan(trainers=2)
    assert set(AddressBooks(plan).peers_of(role)) == peers
    assert set(book_of(plan, role)) == {f"{peer}{part}" for peer in peers for part in ("", "/0", "/sync")}


def test_what_a_trainer_is_told_does_not_grow_with_the_groups() -> None:
    few, many = (book_of(small_plan(groups=groups, trainers=2), "trainer:1:1") for groups in (2, 40))
    assert few == many


def test_where_a_user_has_named_a_net_everybody_is_known() -> None:
    plan = small_plan()
    net = plan.net_of("trainer")
    assert NetName.parse("mine").kind == "own"
    own = replace(plan, nets={**plan.nets, "mine": net})
    assert set(AddressBooks(own).peers_of("dense_ps:0")) == set(plan.cluster.roles)
