"""Addresses of this machine, by networks and by its name."""

import socket
from types import SimpleNamespace

import pytest

from htrain.errors import RunError, UsageError
from htrain.executor.host import address
from htrain.executor.host.address import address_of_name, address_within, require_network


def test_the_one_address_in_a_network_is_found() -> None:
    assert address_within("--network", "127.0.0.0/8") == "127.0.0.1"


def test_a_network_in_which_a_host_is_not_is_said_with_what_it_has() -> None:
    with pytest.raises(RunError, match=r"^--network 203.0.113.0/24: \S+ has no addresses in it, .*127\.0\.0\.1"):
        address_within("--network", "203.0.113.0/24")


def test_one_of_several_addresses_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    card = [SimpleNamespace(family=socket.AF_INET, address=f"10.1.0.{k}") for k in (1, 2)]
    monkeypatch.setattr(address.psutil, "net_if_addrs", lambda: {"eth0": card})
    with pytest.raises(RunError, match="has 2 addresses in it, want one"):
        address_within("--trainer-network", "10.0.0.0/8")
    assert address_within("--trainer-network", "10.1.0.2/32") == "10.1.0.2"


@pytest.mark.parametrize("text", ["10.1.0.0/33", "10.1.0.7/16", "fe80::/10", "eth0", "10.1.0.0/16,10.2.0.0/16"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--network .*: want a network of IPv4 such as 10\.1\.0\.0/16"):
        require_network("--network", text)


def test_a_name_that_is_the_loopback_is_no_address_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address.socket, "gethostbyname", lambda name: "127.0.1.1")
    with pytest.raises(RunError, match=r"stands for 127\.0\.1\.1 here, .*--network"):
        address_of_name()
    monkeypatch.setattr(address.socket, "gethostbyname", lambda name: "10.3.0.9")
    assert address_of_name() == "10.3.0.9"


def test_a_name_without_an_address_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr(address.socket, "gethostbyname", unknown)
    with pytest.raises(RunError, match="no address is known under this name"):
        address_of_name()
