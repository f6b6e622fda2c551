"""Where the centres of weights are, and what they are called.

A host of centres is a dense PS, `dense_ps:K`, or a group, `group:G`: the role there that plays the same device as the holder of the weight. With groups as
hosts every holder has a share of the centres of its device's weights, and rounds go from group to group.
"""

from htrain.net.names import DENSE_PS, GROUP, Device, role_of
from htrain.spec.cluster import Cluster
from htrain.spec.dense_sync import DenseSync

_CENTRE = ":centre"  # ends the name of one in a group, which has the weight, too
EACH = ":each"  # ends the name of a parameter of which a host has one for each group


def hosts_of(sync: DenseSync, cluster: Cluster) -> tuple[str, ...]:
    """The hosts of centres of a cluster that has any."""
    if not sync.has_rounds(cluster):
        return ()
    kind, count = (DENSE_PS, cluster.dense_ps) if sync.uses_dense_ps else (GROUP, cluster.groups)
    return tuple(str(Device(kind, number)) for number in range(count))


def in_group(host: str) -> bool:
    """Whether a host is a group."""
    return role_of(host) == GROUP


def is_owed(parameter: str) -> bool:
    """Whether a parameter is what a host has left out of what it has sent: nothing at first."""
    return parameter.endswith(f":owed{EACH}")


def is_centre(parameter: str) -> bool:
    """Whether a parameter of a group is the centre of a weight. On a dense PS all weights are."""
    return parameter.endswith(_CENTRE)


def centre_name(weight: str, host: str) -> str:
    """The parameter that is the centre of a weight: of its name on a dense PS, where the weight is not."""
    return f"{weight}{_CENTRE}" if in_group(host) else weight
