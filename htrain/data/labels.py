"""Which labels a loss takes, and what it makes of them."""

import numpy as np

from htrain.data.rows import Array

_OF_CLICKS = (0.0, 1.0, "labels from 0 to 1, and -1 for 0")
_DOMAINS = {
    "bce": _OF_CLICKS,
    "bce_probability": _OF_CLICKS,
    "own": (-np.inf, np.inf, "numbers"),
    "mse": (-np.inf, np.inf, "numbers"),
    "": (-np.inf, np.inf, "numbers"),
}


def as_taken(label: Array, loss: str) -> Array:
    """label[n] as the loss reads it: that of clicks takes -1 for another way to write 0."""
    return (
        np.where(label == -1, np.float32(0), label) if is_binary(loss) and label.size and label.min() == -1 else label
    )


def is_binary(loss: str) -> bool:
    """Whether a loss is of labels that say whether something happened: AUC and NE are of these."""
    return loss in ("bce", "bce_probability")


def first_outside(label: Array, loss: str) -> int | None:
    """The place in label[n], as `as_taken` gives it, of the first label that the loss does not take; None where there
    is none. No loss takes nan or infinity.
    """
    if not label.size:
        return None
    low, high, _ = _DOMAINS[loss]
    least, most = label.min(), label.max()  # nan where there is one
    if low <= least and most <= high and np.isfinite(least) and np.isfinite(most):
        return None
    return int(np.flatnonzero(~(np.isfinite(label) & (label >= low) & (label <= high)))[0])


def wanted(loss: str) -> str:
    """The labels that a loss takes, in words for a message."""
    return f"the {loss} loss takes {_DOMAINS[loss][2]}" if loss else f"want {_DOMAINS[loss][2]}"
