"""Elastic averaging SGD in the background (EASGD of Zhang et al., run as ShadowSync does; HT 2.2, 3.1.1).

Each group keeps a replica x of the dense parameters, the dense PSs keep the centre c. A round (`htrain.sync.rounds`) is

    group PS    snapshot x; training goes on
    dense PS    diff = alpha * (x - c); c += diff
    group PS    x -= diff

The group subtracts from what x is *by then*, so the updates that its trainers made in between stay, and every round
conserves the sum of all replicas and the centre, up to rounding: what the centre gains, the group gives. The arithmetic is that
of the ops `ElasticDifference` and `Relax`; here is by how much.
"""

from htrain.errors import ClusterError
from htrain.spec.dense_sync import Easgd

RECOMMENDED_BETA = 0.9
LARGEST_DEFAULT_ALPHA = 0.5


def default_alpha(num_groups: int) -> float:
    """The elastic rate for `num_groups` groups where the user names none: 0.9 / num_groups, at most 0.5.

    HT names no rate. EASGD's authors set alpha = beta / p for p workers and recommend beta = 0.9: a sync of all workers
    at once moves the centre 0.9 of the way to their mean. A sync multiplies the distance of a group and the centre by
    1 - 2 alpha; above 0.5, which only a single group would get, they would jump past each other, hence the cap.
    Raises ClusterError if there is no group.
    """
    if num_groups < 1:
        raise ClusterError(f"{num_groups} groups: EASGD needs at least 1; set groups to 1 or more")
    return min(LARGEST_DEFAULT_ALPHA, RECOMMENDED_BETA / num_groups)


def alpha_of(easgd: Easgd, num_groups: int) -> float:
    """The elastic rate of `num_groups` groups: the user's own, or the default one."""
    return default_alpha(num_groups) if easgd.alpha == "auto" else easgd.alpha
