"""Two outcomes of one batch: where they differ by more than rounding."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from htrain.self_check.outcome import Gradient, Outcome, Rows

_LOSS, _OUTPUT = 1e-4, 1e-3
_GRADIENT = 1e-3  # of a parameter's largest entry
_FLOOR = 5e-6  # of the largest entry of all: what cancels out leaves the rounding of its parts
_NOISE = 10.0  # times what a change of the values' last bits makes


@dataclass(frozen=True)
class Difference:
    """`what` differs: `ours` and `theirs` at its largest difference; `share` of the reference's largest entry, infinite where that is 0."""

    what: str
    ours: float
    theirs: float
    share: float


def differences(ours: Outcome, theirs: Outcome, *, noise: Mapping[str, float]) -> list[Difference]:
    """The largest first, the loss and the outputs before gradients. `noise` is how far each may be off by rounding, as `noise_between` gives it."""
    found = []
    scale = max(1.0, abs(theirs.loss))
    if not abs(ours.loss - theirs.loss) <= _LOSS * scale + _NOISE * noise.get("", 0.0):
        found.append(Difference("the loss", ours.loss, theirs.loss, abs(ours.loss - theirs.loss) / scale))
    elif ours.outputs.shape != theirs.outputs.shape:
        found.append(Difference("the number of outputs", len(ours.outputs), len(theirs.outputs), float("inf")))
    else:
        slack = _OUTPUT + _NOISE * noise.get("", 0.0)
        pairs = {"the logit": (ours.outputs, theirs.outputs)}
        pairs |= {f"output '{name}'": (ours.heads[name], theirs.heads[name]) for name in theirs.heads}
        told = (_apart(what, *pair, share=_OUTPUT, slack=slack) for what, pair in pairs.items())
        found += [apart for apart in told if apart]
    overall = max((_largest(g) for g in theirs.gradients.values()), default=0.0)
    gradients = []
    for name in sorted({*ours.gradients, *theirs.gradients}):
        pair = _aligned(ours.gradients.get(name), theirs.gradients.get(name))
        apart = _apart(
            f"the gradient of '{name}'", *pair, share=_GRADIENT, slack=_FLOOR * overall + _NOISE * noise.get(name, 0.0)
        )
        gradients += [apart] if apart else []
    return found + sorted(gradients, key=lambda d: -d.share)


def noise_between(one: Outcome, other: Outcome) -> dict[str, float]:
    """The largest difference of each gradient, and of the loss and outputs as ""."""
    found = {name: float((a - b).abs().max()) for name in one.gradients.keys() & other.gradients.keys()
             for a, b in [_aligned(one.gradients[name], other.gradients[name])] if a.numel()}  # fmt: skip
    return found | {"": max(abs(one.loss - other.loss), float((one.outputs - other.outputs).abs().max()))}


def _apart(what: str, ours: torch.Tensor, theirs: torch.Tensor, *, share: float, slack: float) -> Difference | None:
    if ours.shape != theirs.shape:
        return Difference(f"the shape of {what}", ours.numel(), theirs.numel(), float("inf"))
    if not ours.numel():
        return None
    apart, largest = (ours - theirs).abs().reshape(-1), float(theirs.abs().max())
    at = int(apart.nan_to_num(float("inf")).argmax())
    if float(apart[at]) <= share * largest + slack:
        return None
    return Difference(
        what,
        float(ours.reshape(-1)[at]),
        float(theirs.reshape(-1)[at]),
        float(apart[at]) / largest if largest else float("inf"),
    )


def _largest(gradient: Gradient) -> float:
    entries = gradient.rows if isinstance(gradient, Rows) else gradient
    return float(entries.abs().max()) if entries.numel() else 0.0


def _aligned(ours: Gradient | None, theirs: Gradient | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as tensors of one shape; a gradient that is not there is zeros."""
    if isinstance(ours, Rows) or isinstance(theirs, Rows):
        ids = torch.cat([g.ids for g in (ours, theirs) if isinstance(g, Rows)]).unique()
        return _rows_of(ours, theirs, ids), _rows_of(theirs, ours, ids)
    if ours is None or theirs is None:
        given = ours if ours is not None else theirs
        assert given is not None
        zeros = torch.zeros_like(given)
        return (ours if ours is not None else zeros).float(), (theirs if theirs is not None else zeros).float()
    return ours.float(), theirs.float()


def _rows_of(gradient: Gradient | None, other: Gradient | None, ids: torch.Tensor) -> torch.Tensor:
    """The rows of all `ids`; zeros where there is none, of the other one's width where there is no gradient."""
    if isinstance(gradient, torch.Tensor):
        return gradient[ids].float()
    shaped = gradient if gradient is not None else other
    assert isinstance(shaped, Rows)
    rows = shaped.rows.new_zeros(len(ids), *shaped.rows.shape[1:])
    if gradient is not None:
        rows[torch.searchsorted(ids, gradient.ids)] = gradient.rows
    return rows
