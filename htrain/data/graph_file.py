"""Adjacency lists: `user item item ...`, a line per user, ids whole numbers below 2^31."""

from dataclasses import dataclass

import numpy as np

from htrain.data.address import AnyPath
from htrain.data.graph_loops import MAX_ID, Ints, parse_lists
from htrain.data.text import MAX_CHUNK_BYTES, open_text, read_lines
from htrain.errors import DataError

_DESCRIBED = 10  # faults whose description is kept: as many as anyone will be shown
_SHOWN_BYTES = 24


@dataclass(frozen=True, eq=False)
class Pairs:
    """The distinct pairs users[P], items[P] of a file, ascending; how many users and items its ids make room for; and its lines.

    Lists of one user that stand on several lines are joined. `faults` describes the first of the `bad` lines.
    """

    users: Ints
    items: Ints
    num_users: int
    num_items: int
    good: int
    bad: int
    faults: tuple[str, ...]


@dataclass
class _Lines:
    """What was seen of a file so far."""

    number: int = 0
    good: int = 0
    bad: int = 0
    largest_user: int = -1


def read_pairs(path: AnyPath) -> Pairs:
    """Read the whole file. Raises DataError for a file without a good line, or without a pair."""
    seen, faults, parts = _Lines(), list[str](), list[Ints]()
    with open_text(path, ahead_bytes=MAX_CHUNK_BYTES) as file:
        while data := read_lines(file, MAX_CHUNK_BYTES, path):
            parts.append(_parse(path, data, seen, faults))
    if not seen.good:
        raise DataError(f"{faults[0]} (no row of the file can be read)" if faults else f"{path}: holds no rows")
    keys = np.unique(np.concatenate(parts))
    if not keys.size:
        raise DataError(f"{path}: none of its {seen.good} users has an item; want lines of 'user item item ...'")
    users, items = keys >> 32, keys & MAX_ID
    num_users, num_items = seen.largest_user + 1, int(items.max()) + 1
    return Pairs(users, items, num_users, num_items=num_items, good=seen.good, bad=seen.bad, faults=tuple(faults))


def _parse(path: AnyPath, data: bytes, seen: _Lines, faults: list[str]) -> Ints:
    """The pairs of whole lines, each as user * 2^32 + item; `seen` and `faults` are brought up to date."""
    array = np.frombuffer(data, np.uint8)
    num_lines, room = data.count(b"\n") + 1, len(data) // 2 + 1
    users, items, found = np.empty(room, np.int64), np.empty(room, np.int64), np.empty((num_lines, 4), np.int64)
    used, good, bad, largest = parse_lists(array, users, items, found)
    for line, word, start, end in found[: min(bad, _DESCRIBED - len(faults))].tolist():
        text = ascii(data[start : min(end, start + _SHOWN_BYTES)].decode(errors="replace"))
        faults.append(f"{path}:{seen.number + line + 1}: word {word} is {text}, want a whole number from 0 to {MAX_ID}")
    seen.number += num_lines - 1
    seen.good, seen.bad, seen.largest_user = seen.good + good, seen.bad + bad, max(seen.largest_user, largest)
    return (users[:used] << 32) | items[:used]
