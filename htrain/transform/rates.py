"""Learning rates of their own, for weights and tables by pattern: shares of their optimizer's rate, of which 0 freezes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from htrain.errors import UsageError
from htrain.net.net import Net


def shares_of(net: Net, rates: Sequence[tuple[str, float]]) -> dict[str, float]:
    """The share of its optimizer's rate that each weight or table that a pattern matches steps with; where several match, the last says it.

    Raises UsageError for a pattern that matches none that is trained.
    """
    trained = [name for name, p in net.parameters.items() if p.trained and p.kind in ("weight", "table")]
    shares: dict[str, float] = {}
    for pattern, share in rates:
        matched = [name for name in trained if fnmatchcase(name, pattern)]
        if not matched:
            close = get_close_matches(pattern, trained, 3) or trained[:3]
            raise UsageError(
                f"--rate {pattern}={share:g}: no trained weight or table has that name; there are {', '.join(close)}"
            )
        shares.update(dict.fromkeys(matched, share))
    return shares


def freeze(net: Net, shares: Mapping[str, float]) -> Net:
    """The net in which what has a share of 0 is not trained.

    Ensures:  no gradient is made for it, and no step changes it.
    Raises UsageError where that would leave nothing to train.
    """
    frozen = {name: replace(net.parameters[name], trained=False) for name, share in shares.items() if not share}
    found = replace(net, parameters={**net.parameters, **frozen})
    if frozen and not any(p.trained for p in found.parameters.values() if p.kind in ("weight", "table")):
        raise UsageError("--rate: all weights and tables have a rate of 0, so nothing would train: leave one out")
    return found
