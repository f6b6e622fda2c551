"""Under which address other hosts reach this one. IPv4 alone."""

import ipaddress
import socket

import psutil

from htrain.errors import RunError, UsageError


def require_network(what: str, text: str) -> None:
    """Raises UsageError, in the name of `what`, for a text that is no network such as 10.1.0.0/16."""
    try:
        ipaddress.IPv4Network(text)
    except ValueError as error:
        raise UsageError(f"{what} {text}: want a network of IPv4 such as 10.1.0.0/16: {error}") from error


def address_within(what: str, network: str) -> str:
    """This host's address in a network, which `what` has asked for. Raises RunError where it has none there, or several."""
    wanted = ipaddress.IPv4Network(network)
    known = sorted(a.address for card in psutil.net_if_addrs().values() for a in card if a.family == socket.AF_INET)
    found = [address for address in known if ipaddress.IPv4Address(address) in wanted]
    if len(found) != 1:
        raise RunError(
            f"{what} {network}: {socket.gethostname()} has {len(found) or 'no'} addresses in it, want one: "
            f"its own are {', '.join(known)}"
        )
    return found[0]


def address_of_name() -> str:
    """What this host's own name stands for. Raises RunError for a loopback, at which no other host reaches it."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        raise RunError(f"{name}: no address is known under this name: {error}; say --network") from error
    if ipaddress.IPv4Address(address).is_loopback:
        raise RunError(
            f"{name}: stands for {address} here, at which no other host reaches it: say the network of the hosts, such as --network 10.1.0.0/16"
        )
    return address
