"""The hot loops of the graph reader: adjacency lists out of bytes, and neighbours drawn without a generator's state.

Every draw is a hash of (seed, example, place in the example): any example can be made without those before it.
"""

# mypy: disable-error-code=assignment
# Numba infers the types of its functions; their numpy scalars are not mypy's ints.

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from htrain.data.hashing import GOLDEN, mixed
from htrain.jit import njit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAX_ID = 2**31 - 1
_TRIES = 10  # draws of a negative before one of the user's own items is taken after all


class Graph(NamedTuple):
    """Users and items, numbered from 0 in that order, with the edges that may be sampled, and the pairs to predict.

    Node n is called names[n] in the data; its neighbours are ends[starts[n]:starts[n+1]], ascending. The pairs are users[k], items[k].
    owned[owned_starts[u]:owned_starts[u+1]], ascending, are no negatives of user u; reach[i] is the summed weight, as a
    negative, of the items up to the i-th.
    """

    names: Ints
    starts: Ints
    ends: Ints
    users: Ints
    items: Ints
    owned_starts: Ints
    owned: Ints
    reach: Floats


@njit(nogil=True, cache=True)
def _is_gap(byte):  # type: ignore[no-untyped-def]
    return byte == 32 or byte == 9 or byte == 10 or byte == 13


@njit(nogil=True, cache=True)
def _whole_number(data, i):  # type: ignore[no-untyped-def]
    """The value of the word at i, -1 when that is no whole number up to MAX_ID; and where the word ends."""
    value = 0
    while i < data.size and not _is_gap(data[i]):
        digit = np.int64(data[i]) - 48
        value = value * 10 + digit if value >= 0 and 0 <= digit <= 9 else -1
        if value > MAX_ID:
            value = -1
        i += 1
    return value, i


@njit(nogil=True, cache=True)
def parse_lists(data, users, items, faults):  # type: ignore[no-untyped-def]
    """Parse whole lines `user item item ...` of uint8[n] into users[k], items[k] and faults[b] = (line, word, its start, its end).

    A line with a fault gives no pairs. Returns the number of pairs, of good lines and of bad ones, and the largest user.
    """
    used, good, bad, largest, line, i = 0, 0, 0, -1, 0, 0
    while i < data.size:
        user, here, words, faulty = -1, used, 0, False
        while i < data.size and data[i] != 10:
            if _is_gap(data[i]):
                i += 1
                continue
            begin = i
            value, i = _whole_number(data, i)
            words += 1
            if faulty:
                continue
            if value < 0:
                faults[bad, 0], faults[bad, 1], faults[bad, 2], faults[bad, 3] = line, words, begin, i
                faulty = True
            elif words == 1:
                user = value
            else:
                users[here], items[here] = user, value
                here += 1
        if faulty:
            bad += 1
        elif words:
            used, good, largest = here, good + 1, max(largest, user)
        line += 1
        i += 1
    return used, good, bad, largest


@njit(nogil=True, cache=True)
def _draw(key, counter):  # type: ignore[no-untyped-def]
    """The random bits number `counter` of a key."""
    return mixed(key + (np.uint64(counter) + np.uint64(1)) * GOLDEN)


@njit(nogil=True, cache=True)
def _fraction(bits):  # type: ignore[no-untyped-def]
    """Random bits as a number in [0, 1)."""
    return np.float64(bits >> np.uint64(11)) * 2.0**-53


@njit(nogil=True, cache=True)
def held_out(users, items, share, chosen):  # type: ignore[no-untyped-def]
    """chosen[k] = whether pair k is one of the `share` that is kept for testing: a matter of its two ids alone."""
    for k in range(users.size):
        chosen[k] = _fraction(_draw(_draw(np.uint64(0), users[k]), items[k])) < share


@njit(nogil=True, cache=True)
def _place(values, begin, end, wanted):  # type: ignore[no-untyped-def]
    """Where `wanted` stands in the ascending values[begin:end], -1 when it does not."""
    stop = end
    while begin < end:
        middle = (begin + end) // 2
        if values[middle] < wanted:
            begin = middle + 1
        else:
            end = middle
    return begin if begin < stop and values[begin] == wanted else -1


@njit(nogil=True, cache=True)
def _neighbour(graph, bits, node, user, item):  # type: ignore[no-untyped-def]
    """A neighbour of `node` in the graph without the edge (user, item); `node` itself where there is none."""
    begin, end = graph.starts[node], graph.starts[node + 1]
    hidden = -1
    if node == user:
        hidden = _place(graph.ends, begin, end, item)
    elif node == item:
        hidden = _place(graph.ends, begin, end, user)
    count = end - begin - (1 if hidden >= 0 else 0)
    if count == 0:
        return node
    picked = begin + np.int64(((bits >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))
    return graph.ends[picked + 1 if 0 <= hidden <= picked else picked]


@njit(nogil=True, cache=True)
def _negative(graph, key, user):  # type: ignore[no-untyped-def]
    """An item by its weight, other than the user's own where that comes up within some draws."""
    begin, end = graph.owned_starts[user], graph.owned_starts[user + 1]
    first_item = graph.names.size - graph.reach.size
    item = first_item
    for attempt in range(_TRIES):
        weight = _fraction(_draw(key, attempt)) * graph.reach[-1]
        item = first_item + min(np.searchsorted(graph.reach, weight, side="right"), graph.reach.size - 1)
        if _place(graph.owned, begin, end, item) < 0:
            break
    return item


@njit(nogil=True, cache=True)
def _sample_around(graph, key, node, user, item, near, far):  # type: ignore[no-untyped-def]
    """near[F] = neighbours of `node`, far[F*G] = G neighbours of each of them, by their names."""
    fanout = far.size // near.size
    for a in range(near.size):
        counter = a * (fanout + 1)
        neighbour = _neighbour(graph, _draw(key, counter), node, user, item)
        near[a] = graph.names[neighbour]
        for b in range(fanout):
            far[a * fanout + b] = graph.names[_neighbour(graph, _draw(key, counter + 1 + b), neighbour, user, item)]


@njit(nogil=True, cache=True)
def sample(graph, seed, first, negatives, nodes, near, far, label):  # type: ignore[no-untyped-def]
    """Examples `first` on, by their nodes' names: nodes[n,2], near[n,2F], far[n,2FG], label[n].

    Example e is about pair e // (negatives + 1): the pair itself, then its negatives. The pair's edge is hidden in all of them.
    """
    width, far_width = near.shape[1] // 2, far.shape[1] // 2
    for row in range(label.size):
        pair, turn = divmod(first + row, negatives + 1)
        key = _draw(mixed(np.uint64(seed) + GOLDEN), first + row)
        user, item = graph.users[pair], graph.items[pair]
        for end in range(2):
            node = user if end == 0 else item if turn == 0 else _negative(graph, _draw(key, 2), user)
            nodes[row, end] = graph.names[node]
            around = near[row, end * width : (end + 1) * width], far[row, end * far_width : (end + 1) * far_width]
            _sample_around(graph, _draw(key, end), node, user, item, *around)
        label[row] = 1.0 if turn == 0 else 0.0
