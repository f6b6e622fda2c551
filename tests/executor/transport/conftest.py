"""Networks that end with their test."""

import threading
from collections.abc import Iterator

import pytest

from htrain.executor.transport.port import Network
from tests.support.ports import SCHEMES, MakeNetwork, network_of, remove


@pytest.fixture
def make_network() -> Iterator[MakeNetwork]:
    """Networks that the test may close; one that does not end within 10 s fails the test."""
    networks: list[Network] = []

    def make(scheme: str) -> Network:
        networks.append(network_of(scheme))
        return networks[-1]

    yield make
    for network in networks:
        remove(network.folder)
        closing = threading.Thread(target=network.close, daemon=True)
        closing.start()
        closing.join(10)
        assert not closing.is_alive(), "the network did not close within 10 s"


@pytest.fixture(params=SCHEMES)
def network(request: pytest.FixtureRequest, make_network: MakeNetwork) -> Network:
    return make_network(request.param)
