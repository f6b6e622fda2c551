"""Under which address other hosts reach this one. IPv4 alone."""

import errno
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


def address_of(what: str, text: str) -> str:
    """This host's address that `what` was given as: itself, the interface that has it, such as eth0, or a name that stands for it.

    Raises UsageError for what is none of these. Raises RunError for what may be mended while the command stays: an interface that has no address yet, names
    that cannot be asked for now, and a name that stands for a loopback, at which no other host reaches it.
    """
    own = {
        card: [a.address for a in found if a.family == socket.AF_INET] for card, found in psutil.net_if_addrs().items()
    }
    if text in own:
        if not own[text]:
            raise RunError(
                f"{what} {text}: this interface has no address of IPv4 yet: try again once it has one, or name another"
            )
        if len(own[text]) > 1:
            raise UsageError(
                f"{what} {text}: this interface has {len(own[text])} addresses of IPv4, want one: name an address"
            )
        return own[text][0]
    try:
        found = socket.gethostbyname(text)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == socket.EAI_AGAIN:
            raise RunError(
                f"{what} {text}: who knows names cannot be asked now ({error.strerror}): try again"
            ) from error
        known = ", ".join(sorted(own))
        of_ipv6 = "; addresses of IPv6 are not taken" if ":" in text else ""
        raise UsageError(
            f"{what} {text}: is no address, no interface of this host ({known}), and no name: {error}{of_ipv6}"
        ) from error
    if ipaddress.IPv4Address(found).is_unspecified:
        raise UsageError(
            f"{what} {text}: is no address that others could reach: name one, or an interface such as eth0"
        )
    if ipaddress.IPv4Address(found).is_loopback and text not in (found, "localhost"):
        raise RunError(
            f"{what} {text}: stands for {found} here, at which no other host reaches this one: name an address, or an interface such as eth0"
        )
    return found


def require_free(what: str, host: str, port: int = 0) -> None:
    """Raises RunError, in the name of `what`, where nothing can listen at a port of an address, any port where that is 0: it is not this host's, or another
    process listens there. It is for who would not begin a run whose roles find it out."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZeroMQ: connections that ended are no matter
        try:
            probe.bind(("" if host == "*" else host, port))
        except OSError as error:
            where = f"tcp://{host}:{port or '*'}"
            cure = "choose another port" if error.errno == errno.EADDRINUSE else "choose an address of this host"
            raise RunError(f"cannot listen on {where}: {error.strerror}; {cure} with {what}") from error


def split_port(what: str, text: str, *, port: int | None = None) -> tuple[str, int]:
    """Host and port of HOST:PORT, or of HOST alone where a `port` stands for none. Raises UsageError for another text."""
    host, colon, number = text.rpartition(":")
    if not colon and port is not None:
        return text, port
    if not host or ":" in host or not (number.isascii() and number.isdigit()) or not 0 < int(number) < 1 << 16:
        of_ipv6 = "; addresses of IPv6 are not taken" if "[" in text or "::" in text else ""
        raise UsageError(
            f"{what} {text}: want HOST:PORT, such as 10.1.0.1:7070"
            + (", or HOST" if port is not None else "")
            + of_ipv6
        )
    return host, int(number)


def route_to(host: str, port: int) -> tuple[str, str]:
    """That host's address, and this one's on the way there. Raises OSError where nothing listens, or nobody answers within 5 seconds."""
    with socket.create_connection((socket.gethostbyname(host), port), timeout=5.0) as way:
        return str(way.getpeername()[0]), str(way.getsockname()[0])
