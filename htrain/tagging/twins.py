"""Units that can be exchanged: equal parts of a cut FC, branches of one shape (HT 3.2.1).

A placement has the same loads as the one with two such units exchanged, so a search needs to see only one of the two.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from htrain.tagging.workload import Workload

Readers = Sequence[frozenset[int]]
_SELF, _OTHER, _NO_UNIT = -1, -2, -3  # names of the two units that are compared, and of a maker that is fixed


def twins(workload: Workload) -> list[list[int]]:
    """The units in classes of two or more, each ascending: exchanging any two of a class leaves the loads of every device as they were.

    Two units are alike where they ask for the same, may be on the same places, and every value that one makes or reads has a counterpart of the
    same cost that the other makes or reads, with the same units and devices at its other ends.
    """
    readers, touches = _ends(workload)
    alike: dict[Hashable, list[list[int]]] = {}
    for u, values in enumerate(touches):
        classes = alike.setdefault(_form(workload, u, values), [])
        for members in classes:  # one member speaks for all: to be exchangeable is an equivalence
            if _exchangeable(workload, members[0], u, readers, touches):
                members.append(u)
                break
        else:
            classes.append([u])
    return [members for classes in alike.values() for members in classes if len(members) > 1]


def _ends(workload: Workload) -> tuple[Readers, Sequence[Sequence[int]]]:
    """The units that read each value, and the values that each unit makes or reads."""
    readers: list[set[int]] = [set() for _ in workload.values]
    touches: list[list[int]] = [[] for _ in workload.units]
    for v, u in zip(workload.read.tolist(), workload.reader_of.tolist(), strict=True):
        readers[v].add(u)
        touches[u].append(v)
    for v, u in enumerate(workload.maker.tolist()):
        if u >= 0:
            touches[u].append(v)
    return [frozenset(units) for units in readers], touches


def _form(workload: Workload, u: int, values: Sequence[int]) -> Hashable:
    """Properties that exchangeable units have in common and that are quick to compare."""
    own = (workload.unit_load[u].tobytes(), workload.unit_memory[u].tobytes(), workload.allowed[u].tobytes())
    return own, frozenset(Counter((_cost(workload, v), bool(workload.maker[v] == u)) for v in values).items())


def _cost(workload: Workload, v: int) -> Hashable:
    """What a message of value v costs, and the devices at its ends that no placement changes."""
    message = (
        workload.value_bytes[v],
        workload.value_cpu[v],
        workload.value_lock[v],
        workload.value_memory[v].tobytes(),
    )
    return message, int(workload.made_on[v]), (workload.read_on[v] > 0).tobytes()


def _exchangeable(workload: Workload, u: int, w: int, readers: Readers, touches: Sequence[Sequence[int]]) -> bool:
    """Whether the values around two units stay the same ones when the units exchange their names."""
    around = {*touches[u], *touches[w]}

    def seen(names: Mapping[int, int]) -> Counter[Hashable]:
        ends = ((v, int(workload.maker[v])) for v in around)
        return Counter(
            (
                _cost(workload, v),
                names.get(maker, maker) if maker >= 0 else _NO_UNIT,
                frozenset(names.get(r, r) for r in readers[v]),
            )
            for v, maker in ends
        )

    return seen({u: _SELF, w: _OTHER}) == seen({w: _SELF, u: _OTHER})
