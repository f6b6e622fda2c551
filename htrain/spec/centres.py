"""Where the centres of weights are, and what their nets are called.

A host of centres is a dense PS, `dense_ps:K`, or a group, `group:G`: the role there that plays the same device as the holder of the weight. With groups as
hosts every holder has a share of the centres of its device's weights, and rounds go from group to group.
"""

from htrain.net.names import DENSE_PS, GROUP, Device, NetName, role_of
from htrain.spec.cluster import Cluster
from htrain.spec.dense_sync import DenseSync

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


def device_at(host: str, holder: str) -> str:
    """The device that plays a host to the weights of `holder`."""
    return str(Device.parse(host).played_for(Device.parse(holder)))


def centre_name(weight: str, host: str) -> str:
    """The parameter that is the centre of a weight: of its name on a dense PS, where the weight is not."""
    return f"{weight}:centre" if in_group(host) else weight


def centre_net(host: str, holder: str) -> str:
    """The name of the net by which a host answers a holder."""
    return str(NetName.centre(host, holder))


def answers(device: str, net: str) -> bool:
    """Whether a net of that name is one by which `device` answers holders of weights, in whichever group, or one that fills what it needs."""
    name = NetName.parse(net)
    return name.kind == "centre" and name.run_by == Device.parse(device)
