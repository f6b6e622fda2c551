"""What the compiler decides, as values: the shards of every table, a device for every module with the rule that chose it, the form of a cache."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Encoding = Literal["bfloat16", "float16", "int8"]
SplitKind = Literal["vertical", "horizontal", "co-partition"]


@dataclass(frozen=True)
class Shard:
    """Rows [first_row, first_row + num_rows) of a table, on `device`."""

    table: str
    first_row: int
    num_rows: int
    device: str


@dataclass(frozen=True)
class Split:
    """How an FC is cut, into how many parts (HT 4.1). A co-partition cuts the FC that follows, too."""

    kind: SplitKind
    parts: int

    def __str__(self) -> str:
        return f"{self.kind} into {self.parts}"


@dataclass(frozen=True)
class Decision:
    """Why a module is where it is: the name of the rule and, in words, what it saw."""

    module: str
    device: str
    rule: str
    reason: str


@dataclass(frozen=True)
class Search:
    """How a placement was found, by which `solver`.

    `start_seconds`, `seconds` and `bound_seconds` are what an example takes the busiest device of a group: at the
    start, in the end, and at least in any placement. `tried` is the number of placements that were scored; `note` says
    what stopped the search.
    """

    solver: str
    start_seconds: float
    seconds: float
    bound_seconds: float
    tried: int
    note: str

    @property
    def gap(self) -> float:
        """How much slower than the best possible the placement may be at most: 0.03 for 3 %."""
        return self.seconds / self.bound_seconds - 1 if self.bound_seconds > 0 else 0.0


def spread(num_bytes: Mapping[str, int], count: int) -> dict[str, int]:
    """Which of `count` devices each name goes to: the largest first, to the device with the fewest bytes so far."""
    loads, places = [0] * count, {}
    for name in sorted(num_bytes, key=lambda n: (-num_bytes[n], n)):
        place = min(range(count), key=lambda k: (loads[k], k))
        loads[place] += num_bytes[name]
        places[name] = place
    return places


def next_prime(least: int) -> int:
    """The smallest prime that is at least `least`; 2 below that."""
    number = max(2, least)
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number += 1
    return number


@dataclass(frozen=True)
class CacheGeometry:
    """A cache of `sets` x `ways` rows. A row's set is its number modulo `sets`."""

    sets: int
    ways: int

    @classmethod
    def of(cls, num_rows: int, least_sets: int, ways: int) -> "CacheGeometry":
        """The geometry of a table's cache. A table with no more rows than `least_sets` is held whole, a set for each
        row; else the number of sets is the next prime.
        """
        return cls(num_rows, 1) if num_rows <= least_sets else cls(next_prime(least_sets), ways)

    @property
    def num_slots(self) -> int:
        """Rows that the cache holds."""
        return self.sets * self.ways
