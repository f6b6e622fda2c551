"""Moves of vertices between workers by the exact marginal of F_B.

With a row's home on the worker that uses it most, a row costs sum over i of p(c_i), less the largest of them; where workers stand on several hosts, what
`htrain.tagging.bigraph.links` says. What a vertex's rows cost on each worker follows from the counts alone, so that homes need not be known until the end.

Vertices are looked at in blocks: all of a block against the same counts, in parallel, and then moved one after another. What comes of it does not depend on
the number of threads.

Counts are kept for the rows that at least as many vertices read as there are workers, which is at most one number an edge; for the others, their readers are
asked. On one host, for the rows of single samples that many more read, what one use more costs on each worker is kept, too, and what the last use costs: they
are brought up to date when a reader moves. There a home that would follow the sample is taken to stay, which of so many readers is one in two at most.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from htrain.jit import njit
from htrain.tagging.bigraph.chunks import in_chunks, is_worth_threads
from htrain.tagging.bigraph.graph import Floats, Level, Longs, counts_of
from htrain.tagging.bigraph.links import Links, add_linked_costs, linked_cost

_BLOCKS = 64  # of a sweep: the more, the fresher are the counts that a vertex is moved by
_LEAST_BLOCK = 32  # vertices
_STILL = 0.002  # of the vertices: a sweep that moves fewer is the last
_LEAST_GAIN = 1e-9
_LOST = 1e30
_WOKEN = 32  # readers of a row at most, when one of them has moved
_PRICED = 4  # times as many readers as workers, from which prices are kept


class State(NamedTuple):
    """What the loops work on. The first rows of the level are counted, counts[x, i], and the first of those priced, prices[x, 2, i]; rows from `num_shared` on
    have one reader."""

    level: Level
    part: NDArray[np.int32]
    probability: NDArray[np.float32]
    num_shared: int
    counts: NDArray[np.int32]
    prices: NDArray[np.float32]
    room: Longs  # samples that each worker may take
    links: Links


class Parts:
    """Which worker each vertex of a level is on, `part[v]`, and how many samples of each worker use each row."""

    def __init__(self, level: Level, part: Longs, probability: NDArray[np.float32], links: Links) -> None:
        self.level = level
        self.part = np.ascontiguousarray(part, np.int32)
        self.probability = probability
        self._num_workers = num_workers = len(links.host_of)
        num_counted = level.num_rows_read_by(num_workers)
        is_priced = not level.mult.size and len(links.starts) == 2
        num_priced = level.num_rows_read_by(_PRICED * num_workers) if is_priced else 0
        counts = counts_of(level, self.part, num_workers, num_counted)
        prices = np.empty((num_priced, 2, num_workers), np.float32)
        in_chunks(num_priced, partial(_price_all, counts, probability, prices), num_edges=len(level.rows))
        room = np.zeros(num_workers, np.int64)
        num_shared = level.num_rows_read_by(2)
        self.state = State(
            level, self.part, probability, num_shared, counts=counts, prices=prices, room=room, links=links
        )
        self._edges_each = len(level.rows) / max(1, level.num_vertices)
        self._awake = np.ones(level.num_vertices, np.bool_)  # whose move may pay, as far as is known
        self._resting = np.zeros(level.num_vertices, np.bool_)

    def let_rest(self, is_sure: NDArray[np.bool_]) -> None:
        """Do not look at some of the vertices any more, whatever moves near them."""
        self._resting |= is_sure
        self._awake &= ~is_sure

    @property
    def loads(self) -> Longs:
        """Samples of each worker."""
        return np.bincount(self.part, weights=self.level.weight, minlength=self._num_workers).astype(np.int64)

    @property
    def cost(self) -> float:
        """F_B, a row of another host taken for as many as it costs, with every row on the worker where it costs least."""
        return float(_cost(self.state)) / self._num_workers

    def refine(self, *, most: Longs, sweeps: int, random: np.random.Generator) -> None:
        """Move vertices to where they cost less, while worker i has at most most[i] samples, until few move or after so many sweeps."""
        for _ in range(sweeps):
            order = random.permutation(np.flatnonzero(self._awake))
            self.state.room[:] = most - self.loads
            num_moved = self._sweep(order)
            self._awake &= ~self._resting
            if num_moved < _STILL * self.level.num_vertices:
                break

    def _sweep(self, order: Longs) -> int:
        """Look at some vertices once, and keep awake those that have moved and those with which they share a row of few readers. Returns how many moved."""
        self._awake[:] = False
        size, num_moved = max(_LEAST_BLOCK, -(-self.level.num_vertices // _BLOCKS)), 0
        targets = np.empty(size, np.int32)
        if not is_worth_threads(size * self._edges_each):
            return int(_sweep_alone(self.state, order, targets, self._awake))
        for first in range(0, len(order), size):
            block = order[first : first + size]
            in_chunks(
                len(block), partial(_propose, self.state, block, targets), num_edges=len(block) * self._edges_each
            )
            num_moved += _move_all(self.state, block, targets, self._awake)
        return num_moved

    def balance(self, *, most: Longs) -> None:
        """Move vertices away from workers i with more than most[i] samples, those first for which it costs least.

        Where vertices are single samples, no worker has more afterwards.
        """
        room = self.state.room
        for _ in range(self._num_workers * 4):
            room[:] = most - self.loads
            crowded = int(room.argmin())
            if room[crowded] >= 0:
                return
            vertices = np.flatnonzero(self.part == crowded)
            targets, losses = np.empty(len(vertices), np.int32), np.full(len(vertices), _LOST)
            in_chunks(
                len(vertices),
                partial(_find_ways_out, self.state, vertices, targets, losses),
                num_edges=len(vertices) * self._edges_each,
            )
            order = np.argsort(losses / self.level.weight[vertices], kind="stable")
            order = order[losses[order] < _LOST]
            if not _move_out(self.state, vertices[order], targets[order], crowded):
                return


class Scratch(NamedTuple):
    """What `costs_on` works in: found[N] and sums[2, hosts], which are zero before and after, and touched[N + 1]."""

    found: NDArray[np.int32]
    touched: NDArray[np.int32]
    sums: Floats


@njit(nogil=True, cache=True)
def scratch_for(links):  # type: ignore[no-untyped-def]
    """One for workers on these hosts."""
    num_workers = links.host_of.size
    return Scratch(
        np.zeros(num_workers, np.int32), np.empty(num_workers + 1, np.int32), np.zeros((2, links.starts.size - 1))
    )


@njit(nogil=True, cache=True, inline="always")
def _p(probability, count):  # type: ignore[no-untyped-def]
    return probability[min(count, probability.size - 1)]


@njit(nogil=True, cache=True)
def _price_all(counts, probability, prices, begin, end):  # type: ignore[no-untyped-def]
    for x in range(begin, end):
        _price(counts[x], probability, prices[x])


@njit(nogil=True, cache=True)
def _price(count, probability, price):  # type: ignore[no-untyped-def]
    """price[0, i]: what one use more costs on worker i; price[1, i]: what the last of its uses costs."""
    most, second = 0, 0
    for i in range(count.size):
        if count[i] > most:
            most, second = count[i], most
        elif count[i] > second:
            second = count[i]
    at_home, without = _p(probability, most), _p(probability, max(second, most - 1))
    for i in range(count.size):
        now, with_it = _p(probability, count[i]), _p(probability, count[i] + 1)
        price[0, i] = with_it - now - max(np.float32(0.0), with_it - at_home)
        before = _p(probability, max(0, count[i] - 1))
        price[1, i] = now - before - (at_home - without if count[i] == most and most > second else np.float32(0.0))


@njit(nogil=True, cache=True)
def costs_on(state, v, scratch, costs):  # type: ignore[no-untyped-def]
    """costs[i]: what the rows of vertex v cost more with it on worker i than without it, but for a term that is the same for all i."""
    # Arrays are taken out of the state once: in a loop, each time would count references
    starts, rows, mult, _, row_starts, readers, times = state.level
    part, probability, counts, prices = state.part, state.probability, state.counts, state.prices
    num_counted, num_priced, at = counts.shape[0], prices.shape[0], part[v]
    links, is_flat = state.links, state.links.starts.size == 2
    found, touched, sums = scratch
    costs[:] = 0.0
    for e in range(starts[v], starts[v + 1]):
        x = rows[e]
        if x >= state.num_shared:
            continue  # nobody else reads it: its home goes with the vertex
        if x < num_priced:
            for i in range(costs.size):
                costs[i] += prices[x, 0, i]
            costs[at] += prices[x, 1, at] - prices[x, 0, at]
            continue
        num_touched = 0
        if x < num_counted:
            for i in range(found.size):
                found[i] = counts[x, i]
                touched[num_touched] = i
                num_touched += found[i] > 0
        else:
            for f in range(row_starts[x], row_starts[x + 1]):
                i = part[readers[f]]
                if found[i] == 0:
                    touched[num_touched] = i
                    num_touched += 1
                found[i] += times[f] if times.size else 1
        uses = mult[e] if mult.size else 1
        found[at] -= uses
        if is_flat:
            _add_costs(found, touched[:num_touched], uses, probability, costs)
        else:
            add_linked_costs(found, touched[:num_touched], uses, probability, links, sums, costs)
        for t in range(num_touched):
            found[touched[t]] = 0


@njit(nogil=True, cache=True)
def _add_costs(count, touched, uses, probability, costs):  # type: ignore[no-untyped-def]
    """Add what a row costs with `uses` more of it on each of the touched workers, beyond what it costs on any other. Others' counts are 0."""
    most = 0
    for i in touched:
        most = max(most, count[i])
    at_home, alone = _p(probability, most), _p(probability, uses)
    elsewhere = alone - max(np.float32(0.0), alone - at_home)
    for i in touched:
        with_it = _p(probability, count[i] + uses)
        costs[i] += with_it - _p(probability, count[i]) - max(np.float32(0.0), with_it - at_home) - elsewhere


@njit(nogil=True, cache=True)
def _move(state, v, target):  # type: ignore[no-untyped-def]
    starts, rows, mult, weight, _, _, _ = state.level
    counts, prices, at = state.counts, state.prices, state.part[v]
    state.part[v] = target
    state.room[target] -= weight[v]
    state.room[at] += weight[v]
    for e in range(starts[v], starts[v + 1]):
        x = rows[e]
        if x < counts.shape[0]:
            uses = mult[e] if mult.size else 1
            counts[x, at] -= uses
            counts[x, target] += uses
            if x < prices.shape[0]:
                _price(counts[x], state.probability, prices[x])


@njit(nogil=True, cache=True)
def _propose(state, block, targets, begin, end):  # type: ignore[no-untyped-def]
    """targets[j]: the worker with room on which vertex block[j] costs least, its own where none is better."""
    part, room, weight = state.part, state.room, state.level.weight
    num_workers = room.size
    scratch, costs = scratch_for(state.links), np.empty(num_workers)
    for j in range(begin, end):
        v = block[j]
        costs_on(state, v, scratch, costs)
        best = part[v]
        for i in range(num_workers):
            if costs[i] < costs[best] - _LEAST_GAIN and room[i] >= weight[v]:
                best = i
        targets[j] = best


@njit(nogil=True, cache=True)
def _sweep_alone(state, order, targets, awake):  # type: ignore[no-untyped-def]
    num_moved = 0
    for first in range(0, order.size, targets.size):
        block = order[first : first + targets.size]
        _propose(state, block, targets, 0, block.size)
        num_moved += _move_all(state, block, targets, awake)
    return num_moved


@njit(nogil=True, cache=True)
def _move_all(state, block, targets, awake):  # type: ignore[no-untyped-def]
    """Move vertices to their targets, one after another, while there is room. Returns how many have moved."""
    part, room, weight, num_moved = state.part, state.room, state.level.weight, 0
    for j in range(block.size):
        v, target = block[j], targets[j]
        if target != part[v] and room[target] >= weight[v]:
            _move(state, v, target)
            num_moved += 1
            _wake(state, v, awake)
    return num_moved


@njit(nogil=True, cache=True)
def _wake(state, v, awake):  # type: ignore[no-untyped-def]
    starts, rows, _, _, row_starts, readers, _ = state.level
    num_priced = state.prices.shape[0]
    awake[v] = True
    for e in range(starts[v], starts[v + 1]):
        x = rows[e]
        if x >= num_priced:
            for f in range(row_starts[x], min(row_starts[x + 1], row_starts[x] + _WOKEN)):
                awake[readers[f]] = True


@njit(nogil=True, cache=True)
def _find_ways_out(state, vertices, targets, losses, begin, end):  # type: ignore[no-untyped-def]
    """For each vertex the worker with room for it on which it costs least, and what it costs more there; nothing where none has room."""
    scratch, costs = scratch_for(state.links), np.empty(state.room.size)
    for j in range(begin, end):
        v = vertices[j]
        costs_on(state, v, scratch, costs)
        for i in range(costs.size):
            loss = costs[i] - costs[state.part[v]]
            if i != state.part[v] and state.room[i] >= state.level.weight[v] and loss < losses[j]:
                targets[j], losses[j] = i, loss


@njit(nogil=True, cache=True)
def _move_out(state, vertices, targets, crowded):  # type: ignore[no-untyped-def]
    """Move vertices, in their order, until `crowded` has no more samples than it may. Returns how many have moved."""
    num_moved = 0
    for j in range(vertices.size):
        if state.room[crowded] >= 0:
            break
        if state.room[targets[j]] >= state.level.weight[vertices[j]]:
            _move(state, vertices[j], targets[j])
            num_moved += 1
    return num_moved


@njit(nogil=True, cache=True)
def _cost(state):  # type: ignore[no-untyped-def]
    _, _, _, _, row_starts, readers, times = state.level
    part, probability, links, total = state.part, state.probability, state.links, 0.0
    found = np.zeros(state.room.size, np.int32)
    for x in range(row_starts.size - 1):
        for e in range(row_starts[x], row_starts[x + 1]):
            found[part[readers[e]]] += times[e] if times.size else 1
        total += linked_cost(found, probability, links)
        found[:] = 0
    return total
