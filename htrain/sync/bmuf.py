"""Blockwise model-update filtering (Chen and Huo 2016): how much of its last step a centre keeps. The arithmetic is that of the op `BlockStep`.

With n groups, the mean of what they learn in a block is a step as long as one group's, though n times the data went into it. A momentum of 1 - 1/n makes up for
it: a step that is repeated comes to count 1 / (1 - momentum) = n times, which is what the authors set. Here it is 0.5 at most: with blocks of a few steps,
16 replicas at 0.94 came to +0.8 % to +5.3 % of PyTorch's NE by the seed, at 0.5 to +0.8 % (`python tools/dense_replicas.py`).
"""

from htrain.spec.dense_sync import Bmuf

LARGEST_DEFAULT_MOMENTUM = 0.5


def momentum_of(bmuf: Bmuf, num_groups: int) -> float:
    """The block momentum for `num_groups` groups: the user's own, or 1 - 1/num_groups, at most 0.5."""
    return min(LARGEST_DEFAULT_MOMENTUM, 1 - 1 / num_groups) if bmuf.momentum == "auto" else bmuf.momentum
