"""The knee: where more rows of a cache begin to save little.

Of a curve of bytes over rows, both from 0 to 1 between the ends, it is the point that is furthest below the line
between these (Satopaa et al. 2011).
"""

from collections.abc import Sequence

from htrain.advising.advice import Candidate

_AS_GOOD = 1.01  # times the bytes
_ROUNDING = 1e-9


def knee(sizes: Sequence[float], values: Sequence[float]) -> int:
    """The place of the knee of falling `values` over rising `sizes`; the least value where none is below the line, so
    that what is saved grows with the size, and the first where nothing falls. Requires: at least one."""
    width, height = sizes[-1] - sizes[0], values[0] - min(values)
    if width <= 0 or height <= 0:
        return 0
    below = [
        (values[0] - value) / height - (size - sizes[0]) / width for size, value in zip(sizes, values, strict=True)
    ]
    return below.index(max(below)) if max(below) > _ROUNDING else values.index(min(values))


def recommended(candidates: Sequence[Candidate], rows: Sequence[float], uncached_bytes: float) -> Candidate:
    """The candidate at the knee. `rows[i]` are those that candidates[i] holds. At every size the one with the fewest
    bytes is taken, or the first that has hardly more; a cache without a row would have `uncached_bytes`. Where none has
    fewer, it is the one with the fewest. Requires: at least one."""
    best: dict[float, Candidate] = {}
    for size in sorted(set(rows)):
        at_size = [each for each, held in zip(candidates, rows, strict=True) if held == size]
        least = min(each.traffic.bytes_per_example for each in at_size)
        best[size] = next(each for each in at_size if each.traffic.bytes_per_example <= _AS_GOOD * least)
    sizes = [0.0, *best]
    values = [uncached_bytes, *(each.traffic.bytes_per_example for each in best.values())]
    place = knee(sizes, values) or 1 + values[1:].index(min(values[1:]))
    return list(best.values())[place - 1]
