"""Where a role takes messages: the names of its endpoints, from the names of devices in a net."""

from htrain.executor.engine.context import Context
from htrain.net.names import GROUP, WORKERS, Device, Role


def endpoint_of(peer: str, context: Context) -> str:
    """The endpoint behind a device's name in a net, for a context: its own group's, or its own replica."""
    # Asked for every message: text is joined, for to parse a Device and write a Role takes several times as long.
    if peer == "trainer":
        return f"trainer:{context.group}:{context.trainer}/{context.replica}"
    kind, _, index = peer.partition(":")
    if kind == WORKERS:
        return f"trainer:{context.group}:{context.trainer}/{WORKERS}"
    return f"group_ps:{context.group}:{index}" if kind == "group_ps" else peer


def holder_number(device: str) -> int:
    """The number under which a sync net's rounds travel: k of group_ps:k, -1 of the trainer, which may hold weights beside it."""
    number = Device.parse(device).number
    return -1 if number is None else number


def sync_endpoint(role: str) -> str:
    """Where a holder of weights takes the answers to its rounds."""
    return f"{role}/sync"


def centre_endpoint(host: str, holder: str) -> str:
    """Where a host of centres answers a role that holds weights: a dense PS, or the role of another group that holds what this one does."""
    device = Device.parse(host)
    if device.kind != GROUP or device.number is None:
        return host
    return f"{Role.parse(holder).at(device.number)}/centre"
