"""Elastic averaging SGD in the background (EASGD of Zhang et al., run as ShadowSync does; HT 2.2, 3.1.1).

Each group keeps a replica x of the dense parameters, the dense PSs keep the centre c. A round (`htrain.sync.rounds`) is

    group PS    snapshot x; training goes on
    dense PS    diff = alpha * (x - c); c += diff
    group PS    x -= diff

The group subtracts from what x is *by then*, so the updates that its trainers made in between stay, and every round
conserves the sum of all replicas and the centre, up to rounding: what the centre gains, the group gives. The arithmetic is that
of the ops `ElasticDifference` and `Relax`; here is by how much.
"""

from htrain.spec.dense_sync import Easgd

DEFAULT_ALPHA = 0.5


def alpha_of(easgd: Easgd) -> float:
    """The elastic rate: the user's own, or 0.5.

    HT names no rate. EASGD's authors set 0.9 / p for p workers that come to the centre at once; here they come one by one, and a round multiplies the
    distance of a group and the centre by 1 - 2 alpha: at 0.5 they meet halfway, above it they would jump past each other. With 16 groups, 0.9 / 16 leaves
    them too far apart: +5.1 % of PyTorch's NE, against +1.9 % with 0.5 (`python tools/dense_replicas.py`).
    """
    return DEFAULT_ALPHA if easgd.alpha == "auto" else easgd.alpha
