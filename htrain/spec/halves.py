"""The halves of strategies that users have registered, beside those that htrain has in rooms of its own."""

from dataclasses import dataclass
from typing import Any

from htrain.spec.fields import Section


@dataclass(frozen=True)
class Halves:
    """What a user's strategy does while a plan is made, and on a role; None where it does nothing of its own."""

    compile: type[Any] | None
    run: type[Any] | None


HALVES: dict[type[Section], Halves] = {}
