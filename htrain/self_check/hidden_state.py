"""What a forward() keeps from one batch to the next, where no tensor has it: numbers that it counts, and generators that it draws from."""

import random
from collections.abc import Callable

import numpy as np
from torch import nn

_FAR = 1_000_000_007  # no multiple of what a schedule may have as its period
_PERIODS = 360_360_000  # a multiple of each up to 16, and of 1,000 and what that is a multiple of


class Counted:
    """The numbers that a module's attributes hold now."""

    def __init__(self, module: nn.Module) -> None:
        self._modules = dict(module.named_modules())
        self._before = self._numbers()

    def _numbers(self) -> dict[tuple[str, str], float]:
        return {
            (path, name): value
            for path, module in self._modules.items()
            for name, value in vars(module).items()
            if type(value) in (int, float)
        }

    def first_that_matters(self, is_alike: Callable[[], bool]) -> str:
        """The first number that has changed and on which `is_alike` depends; "" where none does. `is_alike` runs the module, which may raise anything."""
        for (path, name), value in self._numbers().items():
            before = self._before.get((path, name), value)
            if value == before:
                continue
            for far in _far(value, before):
                setattr(self._modules[path], name, far)
                try:
                    alike = is_alike()
                except Exception:  # an index beyond the end of a schedule, say: it is read
                    alike = False
                setattr(self._modules[path], name, value)
                if not alike:
                    return f"{path}.{name}" if path else name
        return ""


def _far(value: float, before: float) -> list[float]:
    """What a number that has changed may become: far on; and, of one that counts batches, where what is done each so many of them is due, be it asked before
    or behind the count."""
    far = value + type(value)((value - before) * _FAR)
    return [far, _PERIODS - 1, _PERIODS] if isinstance(value, int) else [far]


def generators() -> tuple[object, ...]:
    """Where the generators of Python and numpy are that a forward() may draw from unseen."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return (random.getstate(), kind, np.asarray(keys).tobytes(), *rest)
