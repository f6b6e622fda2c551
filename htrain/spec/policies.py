"""Which rows leave a full cache first: the table of policies, as users name them."""

from collections.abc import Callable

Score = Callable[[int, int, int], float]  # of a row's uses, and of the steps since its last and since its first
POLICIES: dict[str, Score | None] = {
    "light-lfu": None,
    "lfu": None,
    "lru": None,
}  # None: htrain's own, which need no score
