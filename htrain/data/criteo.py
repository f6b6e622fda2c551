"""Criteo TSV: a label, 13 counts, 26 categories as hexadecimal numbers; a missing value is empty.

A count x becomes log1p(max(x, 0)), missing 0. A category becomes its number modulo the rows of its table, missing 0.
"""

# mypy: disable-error-code=assignment
# Numba infers the types of its functions; their numpy scalars are not mypy's ints.

from collections.abc import Sequence

import numpy as np
from numba import njit

from htrain.data.rows import Rows
from htrain.data.text import Fault

NUM_DENSE, NUM_SPARSE = 13, 26
_REASONS = (
    "",
    "the label is not 0 or 1",
    "column {} is not a whole number",
    "column {} is not a hexadecimal number of at most 16 digits",
    "has {} columns, want 40",
)


def parse_criteo(data: np.ndarray, rows_per_field: int) -> tuple[Rows, Sequence[Fault]]:
    """Parse whole lines. Rows hold `dense`: float32[n,13], `sparse`: int64[n,26], `label`: float32[n]."""
    lines = int(np.count_nonzero(data == 10)) + 1
    label = np.empty(lines, np.float32)
    dense = np.zeros((lines, NUM_DENSE), np.float32)
    sparse = np.zeros((lines, NUM_SPARSE), np.int64)
    faults = np.empty((lines, 3), np.int64)
    count, bad = _parse(data, rows_per_field, label, dense, sparse, faults)
    rows = Rows(count, {"dense": dense[:count], "sparse": sparse[:count], "label": label[:count]}, {})
    return rows, [(int(line), _REASONS[code].format(column)) for line, code, column in faults[:bad]]


@njit(nogil=True, cache=True)
def _parse(data, modulus, label, dense, sparse, faults):  # type: ignore[no-untyped-def]
    """One pass over the bytes: `column` counts tabs, `value` is the number so far. Returns good and bad rows."""
    count, bad, line, i = 0, 0, 0, 0
    while i < data.size:
        code, fault_column = 0, 0
        column, value, digits, negative = 0, np.uint64(0), 0, False
        start = i
        while True:
            byte = data[i] if i < data.size else np.uint8(10)
            if byte == 9 or byte == 10:
                if column == 0:
                    if digits != 1 or value > np.uint64(1):
                        code = 1
                    label[count] = value
                elif column <= 13:
                    if code == 0 and ((negative and digits == 0) or digits > 18):
                        code, fault_column = 2, column + 1
                    dense[count, column - 1] = np.log1p(np.float64(value)) if digits and not negative else 0.0
                elif column <= 39:
                    if code == 0 and digits > 16:
                        code, fault_column = 3, column + 1
                    sparse[count, column - 14] = np.int64(value % np.uint64(modulus))
                if byte == 10:
                    break
                column += 1
                value, digits, negative = np.uint64(0), 0, False
            elif byte != 13:
                if column <= 13:
                    if byte >= 48 and byte <= 57:
                        value = value * np.uint64(10) + np.uint64(byte - 48)
                        digits += 1
                    elif byte == 45 and digits == 0 and column > 0 and not negative:
                        negative = True
                    elif code == 0:
                        code, fault_column = (2, column + 1) if column else (1, 1)
                else:
                    nibble = -1
                    if byte >= 48 and byte <= 57:
                        nibble = byte - 48
                    elif byte >= 97 and byte <= 102:
                        nibble = byte - 87
                    elif byte >= 65 and byte <= 70:
                        nibble = byte - 55
                    if nibble < 0:
                        if code == 0:
                            code, fault_column = 3, column + 1
                    else:
                        value = value * np.uint64(16) + np.uint64(nibble)
                        digits += 1
            i += 1
        blank = i == start or (i == start + 1 and data[start] == 13)
        if not blank:
            if column != 39:
                code, fault_column = 4, column + 1
            if code:
                faults[bad, 0], faults[bad, 1], faults[bad, 2] = line, code, fault_column
                bad += 1
            else:
                count += 1
        line += 1
        i += 1
    return count, bad
