"""Small random workloads: few enough placements to try them all."""

import random
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from htrain.costs.loads import MemoryUse
from htrain.tagging.units import Unit
from htrain.tagging.workload import CPU, MEMORY, Workload

MIB = 1 << 20


@st.composite
def workloads(draw: st.DrawFn, *, most_units: int = 5, tight: bool = False) -> Workload:
    """Up to `most_units` units, 2 or 3 places, one device beside them, values between all of them."""
    chance = random.Random(draw(st.integers(0, 1 << 30)))
    units, places = chance.randint(1, most_units), chance.randint(2, 3)
    num_values = chance.randint(0, 8)
    read, reader_of, maker, made_on, read_on = [], [], [], [], []
    for v in range(num_values):
        made_by = chance.choice([-1, *range(units)])
        maker.append(made_by)
        made_on.append(-1 if made_by >= 0 else chance.choice([0, places]))
        read_on.append([chance.choice([0, 0, 0, 1]) for _ in range(places + 1)])
        for u in range(units):
            if u != made_by and chance.random() < 0.4:
                read.append(v)
                reader_of.append(u)
    order = np.argsort(np.array(reader_of, np.int64), kind="stable")
    allowed = np.array([[chance.random() < 0.8 for _ in range(places)] for _ in range(units)])
    allowed[np.arange(units), [chance.randrange(places) for _ in range(units)]] = True
    allowed = same_for_alike(allowed)
    allowed[~allowed.any(1), 0] = True
    base = np.zeros((places + 1, MEMORY))
    base[:, CPU] = [chance.random() for _ in range(places + 1)]
    capacity = np.array([[chance.choice([1.0, 2.0]) for _ in range(5)] for _ in range(places + 1)])
    capacity[:, MEMORY] *= MIB
    capacity[1:places] = capacity[1]  # group PSs are alike
    base[1:places] = 0.0
    own = [int(0.2 * MIB * chance.random()) for _ in range(3)]
    most = MIB * (2.0 / units if tight else 0.2)
    steps = np.array([1, *[2] * places], np.int64)
    return Workload(
        devices=tuple(f"d{d}" for d in range(places + 1)), num_places=places,
        units=tuple(Unit(f"u{u}", (u,), (f"u{u}",), (), 0) for u in range(units)),
        unit_load=np.array([[chance.random(), *[chance.choice([0.0, 0.2 * chance.random()])] * 2, chance.random()] for _ in range(units)]),
        unit_holds=tuple(MemoryUse(weights=int(most * chance.random())) for _ in range(units)),
        unit_made=np.array([float(int(most * 0.3 * chance.random())) for _ in range(units)]), steps=steps,
        allowed=allowed, base=base, base_holds=tuple(MemoryUse(own=own[min(d, 1 + d // places)]) for d in range(places + 1)),
        capacity=capacity, host_cores=chance.choice([0.0, 0.0, 1.5]),
        values=tuple(f"v{v}" for v in range(num_values)), value_bytes=np.array([chance.random() for _ in range(num_values)]),
        value_cpu=np.array([0.1 * chance.random() for _ in range(num_values)]),
        value_lock=np.array([0.1 * chance.random() for _ in range(num_values)]),
        value_memory=np.array([[int(0.1 * MIB * chance.random())] * (places + 1) for _ in range(num_values)], float).reshape(num_values, places + 1) * steps,
        maker=np.array(maker, np.int64), made_on=np.array(made_on, np.int64),
        read_on=same_for_alike(np.array(read_on, np.int64).reshape(num_values, places + 1), last=places),
        read=np.array(read, np.int64)[order], reader_of=np.array(reader_of, np.int64)[order],
    )  # fmt: skip


def same_for_alike(table: np.ndarray, *, last: int = 1 << 30) -> np.ndarray:
    """What holds for the first group PS (place 1) holds for all; fixed ops are never on a group PS."""
    table[:, 1:last] = table[:, 1:2] if table.dtype == bool else 0
    return table


@st.composite
def workloads_with_twins(draw: st.DrawFn, *, most_units: int = 4, tight: bool = False) -> Workload:
    """A workload whose last unit is a copy of its first: it reads the same values, and makes values of the same costs for the same readers."""
    one = draw(workloads(most_units=most_units, tight=tight))
    made = np.flatnonzero(one.maker == 0)
    per_value = {
        name: getattr(one, name)
        for name in ("value_bytes", "value_cpu", "value_lock", "value_memory", "made_on", "read_on")
    }
    copied = {name: np.concatenate([array, array[made]]) for name, array in per_value.items()}
    twin, number = len(one.units), {int(v): len(one.values) + i for i, v in enumerate(made)}
    reads = [(u, v) for u, v in zip(one.reader_of.tolist(), one.read.tolist(), strict=True)]
    reads += [(u, number[v]) for u, v in reads if v in number] + [(twin, v) for u, v in reads if u == 0]
    reads.sort(key=lambda pair: pair[0])

    def again(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array, array[:1]])

    return replace(
        one, units=(*one.units, Unit("twin", (twin,), ("twin",), (), 0)), unit_load=again(one.unit_load),
        unit_holds=(*one.unit_holds, one.unit_holds[0]), unit_made=again(one.unit_made), allowed=again(one.allowed),
        values=(*one.values, *(f"twin of {one.values[v]}" for v in made)), maker=np.concatenate([one.maker, np.full(len(made), twin)]),
        read=np.array([v for _, v in reads], np.int64), reader_of=np.array([u for u, _ in reads], np.int64), **copied,
    )  # fmt: skip
