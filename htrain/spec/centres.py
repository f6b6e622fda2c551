"""Where the centres of weights are, and what their nets are called.

A host of centres is a dense PS, `dense_ps:K`, or a group, `group:G`: the role there that plays the same device as the holder of the weight. With groups as
hosts every holder has a share of the centres of its device's weights, and rounds go from group to group.
"""

import re

from htrain.spec.cluster import Cluster, role_of
from htrain.spec.dense_sync import DenseSync

GROUP = "group"
EACH = ":each"  # ends the name of a parameter of which a host has one for each group


def hosts_of(sync: DenseSync, cluster: Cluster) -> tuple[str, ...]:
    """The hosts of centres of a cluster that has any."""
    if not sync.has_rounds(cluster):
        return ()
    return (
        tuple(f"dense_ps:{k}" for k in range(cluster.dense_ps))
        if sync.uses_dense_ps
        else tuple(f"{GROUP}:{g}" for g in range(cluster.groups))
    )


def in_group(host: str) -> bool:
    """Whether a host is a group."""
    return role_of(host) == GROUP


def device_at(host: str, holder: str) -> str:
    """The device that plays a host to the weights of `holder`."""
    return holder if in_group(host) else host


def centre_name(weight: str, host: str) -> str:
    """The parameter that is the centre of a weight: of its name on a dense PS, where the weight is not."""
    return f"{weight}:centre" if in_group(host) else weight


def centre_net(host: str, holder: str) -> str:
    """The name of the net by which a host answers a holder."""
    return f"center_{_plain(host)}_{_plain(holder)}"


def answers(device: str, net: str) -> bool:
    """Whether a net of that name is one by which `device` answers holders of weights, in whichever group, or one that fills what it needs."""
    own = re.escape(_plain(device))
    return re.fullmatch(rf"(init_)?center_({own}_\w+|{GROUP}_\d+_{own})", net) is not None


def _plain(device: str) -> str:
    return device.replace(":", "_")
