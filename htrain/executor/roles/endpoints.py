"""Where a role takes messages: the names of its endpoints, from the names of devices in a net."""

from htrain.executor.engine.context import Context
from htrain.ops.collective import WORKERS
from htrain.spec.centres import in_group


def endpoint_of(peer: str, context: Context) -> str:
    """The endpoint behind a device's name in a net, for a context: its own group's, or its own replica."""
    if peer == "trainer":
        return f"trainer:{context.group}:{context.trainer}/{context.replica}"
    kind, _, index = peer.partition(":")
    if kind == WORKERS:
        return f"trainer:{context.group}:{context.trainer}/{WORKERS}"
    return f"group_ps:{context.group}:{index}" if kind == "group_ps" else peer


def holder_number(device: str) -> int:
    """The number under which a sync net's rounds travel: k of group_ps:k, -1 of the trainer, which may hold weights beside it."""
    return int(device.partition(":")[2] or -1)


def sync_endpoint(role: str) -> str:
    """Where a holder of weights takes the answers to its rounds."""
    return f"{role}/sync"


def centre_endpoint(host: str, holder: str) -> str:
    """Where a host of centres answers a role that holds weights: a dense PS, or the role of another group that holds what this one does."""
    if not in_group(host):
        return host
    kind, _, index = holder.split(":")
    return f"{kind}:{host.partition(':')[2]}:{index}/centre"
