"""The launcher's orders to roles, over real connections."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from small_dlrm import small_plan

from htrain.executor.launch.coordinator import Coordinator, Outside
from htrain.executor.launch.interrupt import Interrupt
from htrain.executor.record.identity import identify_served
from htrain.executor.record.run_folder import claimed
from htrain.executor.roles.coordination import Connect, TellAll
from htrain.executor.settings import RunSettings
from htrain.executor.transport.port import Network
from htrain.executor.transport.wire import Addresses, Order
from tests.support.ports import receive
from tests.support.resets import Road

PLAN = small_plan(groups=1, trainers=1, group_ps=0, sparse_ps=1)
ROLES = PLAN.cluster.roles


class NoPool:
    """Roles that nobody plays here."""

    descriptors = ()

    def lost(self) -> str:
        return ""

    def lives(self, role: str) -> bool:
        return False

    def end(self) -> None:
        """Nothing."""

    abandon = kill = end


class OneLost(NoPool):
    """Roles of which one has ended."""

    def lost(self) -> str:
        return f"{ROLES[0]} (process 7) was killed by signal 9"


@pytest.fixture
def networks() -> Iterator[dict[str, Network]]:
    made = {name: Network("tcp", token=bytes(16)) for name in ("launcher", "roles")}
    yield made
    for network in made.values():
        network.close()


@pytest.fixture
def coordinator(networks: dict[str, Network], tmp_path: Path) -> Iterator[Coordinator]:
    interrupt = Interrupt()
    settings = RunSettings(tmp_path, "synthetic:", tmp_path)
    with claimed(tmp_path) as claim:
        outside = Outside(interrupt, lambda totals, reports: None, print, claim)
        made = Coordinator(PLAN, networks["launcher"], settings, identify_served(PLAN), outside)
        yield made
    made._inbox.close()
    if made._pulse:
        made._pulse.stop()
    if made._outbox:
        made._outbox.close()
    interrupt.close()


def test_orders_come_once_and_in_order_though_connections_are_lost_with_them(
    networks: dict[str, Network], coordinator: Coordinator
) -> None:
    inboxes = [networks["roles"].inbox(f"{role}/control") for role in ROLES]
    roads = [Road(inbox.address) for inbox in inboxes]
    book = {inbox.name: road.address for inbox, road in zip(inboxes, roads, strict=True)}
    try:
        coordinator._carry_out(Connect(book, {}), iter(()), NoPool())
        for inbox in inboxes:
            assert receive(inbox)[0] == Addresses({})  # these endpoints are for the launcher alone
        orders = [Order(verb, number=number) for number, verb in enumerate(("start", "save", "save", "stop"), 1)]
        for order in orders:
            for road in roads:
                road.cut()
            coordinator._carry_out(TellAll(order), iter(()), NoPool())
            for road in roads:
                road.reset()
                road.mend()
            if order.verb == "start":  # later ones are said while the connection may be made
                assert all(receive(inbox)[0] == order for inbox in inboxes)
        for inbox in inboxes:
            assert [receive(inbox)[0] for _ in orders[1:]] == orders[1:]
    finally:
        for road in roads:
            road.close()
        for inbox in inboxes:
            inbox.close()


def test_a_role_that_ends_once_it_has_come_up_is_not_waited_for(
    networks: dict[str, Network], coordinator: Coordinator
) -> None:
    """Nobody answers at its address: else it would be asked for 15 s, and its end told as silence."""
    inboxes = {name: networks["roles"].inbox(name) for name in (f"{role}/control" for role in ROLES)}
    book = {name: inbox.address for name, inbox in inboxes.items()}
    ended, *others = inboxes.values()
    ended.close()
    try:
        coordinator._carry_out(Connect(book, {}), iter(()), OneLost())
        for inbox in others:
            assert receive(inbox)[0] == Addresses({})
    finally:
        for inbox in others:
            inbox.close()
