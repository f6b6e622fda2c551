"""Addresses of this machine, by networks and by its name."""

import re
import socket
from types import SimpleNamespace

import pytest

from htrain.errors import RunError, UsageError
from htrain.executor.host import address
from htrain.executor.host.address import (
    address_of,
    address_of_name,
    address_within,
    require_free,
    require_network,
    route_to,
    split_port,
)


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


def test_an_address_an_interface_or_a_name_says_where_a_host_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    assert address_of("--listen", "127.0.0.1") == address_of("--listen", "lo") == address_of("--listen", "localhost")
    monkeypatch.setattr(address.socket, "gethostbyname", lambda name: "10.3.0.9")
    assert address_of("--listen", "launcher") == "10.3.0.9"


def test_a_host_whose_name_is_a_loopback_is_told_to_name_an_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address.socket, "gethostbyname", lambda name: "127.0.1.1")
    with pytest.raises(
        RunError, match=r"^--listen launcher: stands for 127\.0\.1\.1 here, .* an interface such as eth0"
    ):
        address_of("--listen", "launcher")


def test_an_interface_of_several_addresses_or_none_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = {
        "eth0": [SimpleNamespace(family=socket.AF_INET, address=f"10.1.0.{k}") for k in (1, 2)],
        "eth1": [SimpleNamespace(family=socket.AF_INET6, address="fe80::1")],
    }
    monkeypatch.setattr(address.psutil, "net_if_addrs", lambda: cards)
    with pytest.raises(UsageError, match=r"^--address eth0: this interface has 2 addresses of IPv4, want one"):
        address_of("--address", "eth0")
    with pytest.raises(RunError, match=r"^--address eth1: this interface has no address of IPv4 yet: try again once"):
        address_of("--address", "eth1")  # as while a host starts: who starts the command again, does (status 1)


def test_names_that_cannot_be_asked_for_now_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(name: str) -> str:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(address.socket, "gethostbyname", away)
    wanted = (
        r"^--listen launcher: who knows names cannot be asked now \(Temporary failure in name resolution\): try again$"
    )
    with pytest.raises(RunError, match=wanted):
        address_of("--listen", "launcher")


@pytest.mark.parametrize("text", ["0.0.0.0", "no such host", "", "10.1.0.0/16", "x" * 300])
def test_what_nobody_could_reach_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--listen .*is no address"):
        address_of("--listen", text)


@pytest.mark.parametrize("text", ["host", ":7070", "host:", "host:0", "host:65536", "host:²", "a:b:7070", "host:-1"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--launcher .*: want HOST:PORT, such as 10\.1\.0\.1:7070$"):
        split_port("--launcher", text)


@pytest.mark.parametrize("text", ["[::1]:7070", "::1", "fe80::1:7070"])
def test_an_address_of_ipv6_is_refused_with_what_is_taken(text: str) -> None:
    wanted = r"want HOST:PORT, such as 10\.1\.0\.1:7070(, or HOST)?; addresses of IPv6 are not taken$"
    with pytest.raises(UsageError, match=wanted):
        split_port("--launcher", text)
    with pytest.raises(UsageError, match=wanted):
        split_port("--listen", text, port=0)
    with pytest.raises(UsageError, match=r"; addresses of IPv6 are not taken$"):
        address_of("--address", "::1")


def test_where_nothing_can_listen_is_said_before_a_role_tries() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0", "*"):
            wanted = rf"^cannot listen on tcp://{re.escape(host)}:{port}: Address already in use; choose another port with --listen$"
            with pytest.raises(RunError, match=wanted):
                require_free("--listen", host, port)
            require_free("--listen", host)
    require_free("--listen", "127.0.0.1", port)
    wanted = r"^cannot listen on tcp://192\.0\.2\.1:\*: Cannot assign requested address; choose an address of this host with --address$"
    with pytest.raises(RunError, match=wanted):
        require_free("--address", "192.0.2.1")


def test_a_port_may_be_left_out_where_another_stands_for_it() -> None:
    assert split_port("--listen", "eth0", port=0) == ("eth0", 0)
    assert split_port("--listen", "eth0:7070", port=0) == ("eth0", 7070)


def test_the_own_address_is_that_by_which_another_is_reached() -> None:
    with socket.create_server(("127.0.0.2", 0)) as server:
        assert route_to("127.0.0.2", server.getsockname()[1]) == ("127.0.0.2", "127.0.0.1")
    with pytest.raises(OSError, match="refused"):
        route_to("127.0.0.2", server.getsockname()[1] if server.fileno() >= 0 else 9)
