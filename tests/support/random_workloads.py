"""Small random workloads: few enough placements to try them all."""

import random

import numpy as np
from hypothesis import strategies as st

from htrain.tagging.units import Unit
from htrain.tagging.workload import CPU, Workload


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
    base = np.zeros((places + 1, 4))
    base[:, CPU] = [chance.random() for _ in range(places + 1)]
    capacity = np.array([[chance.choice([1.0, 2.0]) for _ in range(4)] for _ in range(places + 1)])
    capacity[1:places] = capacity[1]  # group PSs are alike
    base[1:places] = 0.0
    memory = np.repeat(np.array([[chance.random()] for _ in range(units)]), places, 1) * (2.0 / units if tight else 0.2)
    return Workload(
        devices=tuple(f"d{d}" for d in range(places + 1)), num_places=places,
        units=tuple(Unit(f"u{u}", (u,), (f"u{u}",), (), 0) for u in range(units)),
        unit_cpu=np.array([chance.random() for _ in range(units)]), unit_memory=memory,
        allowed=allowed, base=base, capacity=capacity, host_cores=chance.choice([0.0, 0.0, 1.5]),
        values=tuple(f"v{v}" for v in range(num_values)), value_bytes=np.array([chance.random() for _ in range(num_values)]),
        value_cpu=np.array([0.1 * chance.random() for _ in range(num_values)]),
        maker=np.array(maker, np.int64), made_on=np.array(made_on, np.int64),
        read_on=same_for_alike(np.array(read_on, np.int64).reshape(num_values, places + 1), last=places),
        read=np.array(read, np.int64)[order], reader_of=np.array(reader_of, np.int64)[order],
    )  # fmt: skip


def same_for_alike(table: np.ndarray, *, last: int = 1 << 30) -> np.ndarray:
    """What holds for the first group PS (place 1) holds for all; fixed ops are never on a group PS."""
    table[:, 1:last] = table[:, 1:2] if table.dtype == bool else 0
    return table
