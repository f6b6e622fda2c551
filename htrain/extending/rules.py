"""Rules of the user's own, by name: `rules.py:RULES` or `package.module:RULES`.

RULES is either a list of (name, rule), which come before the stock rules for modules without weights:

    def big_joins(view, unit):                  # htrain.tagging.rules.View, the unit's index
        return "joins more than 20 branches" if len(view.feeds[unit]) > 20 else ""

    RULES = [("big join", big_joins)]           # a reason puts the module on the trainer

or a function of (net, workload) that gives a `Decision` for every unit. The solver goes on from there; so do pins.
"""

from collections.abc import Callable, Sequence
from typing import Any

from htrain.errors import UsageError
from htrain.net.net import Net
from htrain.net.placement import Decision
from htrain.own.code import attribute_of, import_place, user_code
from htrain.tagging.place import Tagger
from htrain.tagging.rules import TRAINER_RULES, tag_by_rules
from htrain.tagging.workload import Workload


def load_tagger(spec: str) -> Tagger:
    """The tagger that a name stands for. Raises UsageError for what is not rules, ModelError for what cannot be imported."""
    place, _, name = spec.rpartition(":")
    if not place:
        raise UsageError(f"--rules {spec}: want FILE.py:NAME or package.module:NAME")
    found = attribute_of(import_place(place), name, spec)
    if callable(found):
        return _guarded(spec, found)
    with user_code(
        f"--rules {spec}: is a {type(found).__name__}, want a function, or a list of (name, function)", UsageError
    ):
        rules = tuple((str(label), rule) for label, rule in found)
    bad = [label for label, rule in rules if not callable(rule)]
    if bad:
        raise UsageError(f"--rules {spec}: rule '{bad[0]}' is not a function of (view, unit)")

    def by_own_rules(net: Net, workload: Workload) -> Sequence[Decision]:
        return tag_by_rules(net, workload.units, workload.num_places - 1, (*rules, *TRAINER_RULES))

    return _guarded(spec, by_own_rules)


def _guarded(spec: str, tagger: Callable[..., Any]) -> Tagger:
    """What goes wrong in the user's code is told in a line, with its name."""

    def run(net: Net, workload: Workload) -> Sequence[Decision]:
        with user_code(f"--rules {spec}: failed", UsageError):
            decisions = list(tagger(net, workload))
        wrong = [d for d in decisions if not isinstance(d, Decision)]
        if wrong:
            raise UsageError(
                f"--rules {spec}: gave a {type(wrong[0]).__name__}, want htrain.net.placement.Decision for every unit"
            )
        return decisions

    return run
