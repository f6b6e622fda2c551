"""Short fields of a text, eight bytes at a time: a field of up to eight bytes is one number, which a dozen operations on all of its
bytes turn into its value, where a loop over the bytes would branch at each.

A word holds the byte that comes first in its lowest eight bits, on any machine.
"""

from typing import Any

import numpy as np

from htrain.jit import njit

Word = np.uint64
TABS, NEWLINES, RETURNS = Word(0x0909090909090909), Word(0x0A0A0A0A0A0A0A0A), Word(0x0D0D0D0D0D0D0D0D)
_ZEROS = Word(0x3030303030303030)  # the digit 0 in each byte
_ONES, _HIGHS = Word(0x0101010101010101), Word(0x8080808080808080)
_0, _1, _4, _6, _8, _16, _32, _56 = (Word(n) for n in (0, 1, 4, 6, 8, 16, 32, 56))


@njit(nogil=True, cache=True)
def word_at(data: Any, i: Any) -> Any:
    """The eight bytes from i on. LLVM makes one load of it; `i` is unsigned, or it would look for negative ones."""
    low = (
        Word(data[i]) | Word(data[i + _1]) << _8 | Word(data[i + Word(2)]) << _16 | Word(data[i + Word(3)]) << Word(24)
    )
    high = (
        Word(data[i + _4])
        | Word(data[i + Word(5)]) << _8
        | Word(data[i + _6]) << _16
        | Word(data[i + Word(7)]) << Word(24)
    )
    return low | high << _32


@njit(nogil=True, cache=True)
def places(word: Any, byte: Any) -> Any:
    """A word whose lowest bit that is set is the highest bit of the first byte like `byte` (one of TABS, ...); 0 where
    no byte is like it.
    """
    differences = word ^ byte
    return (differences - _ONES) & ~differences & _HIGHS


@njit(nogil=True, cache=True)
def bytes_before(found: Any) -> Any:
    """How many bytes stand before the first of `places`; 8 where there is none."""
    below = (
        found & (~found + _1)
    ) - _1  # all bits below the lowest one: the highest of the byte itself is not among them
    return ((below & _ONES) * _ONES >> _56) - (_1 if found else _0)


@njit(nogil=True, cache=True)
def flush_right(word: Any, count: Any) -> Any:
    """The first `count` bytes with so many digits 0 before them that they are eight. Shifts by halves: none is by 64 bits."""
    end, gap = _4 * count, _4 * (_8 - count)
    return word << gap << gap | _ZEROS >> end >> end


@njit(nogil=True, cache=True)
def decimal_value(word: Any) -> Any:
    """Whether the word is eight decimal digits, and their value: pairs of digits, then of pairs, then of fours."""
    x = word ^ _ZEROS
    good = (x | x + Word(0x0606060606060606)) & Word(0xF0F0F0F0F0F0F0F0) == _0
    x = x * Word(10 << 8 | 1) >> _8 & Word(0x00FF00FF00FF00FF)
    x = x * Word(100 << 16 | 1) >> _16 & Word(0x0000FFFF0000FFFF)
    return good, x * Word(10_000 << 32 | 1) >> _32


@njit(nogil=True, cache=True)
def hexadecimal_value(word: Any) -> Any:
    """Whether the word is eight hexadecimal digits, and their value.

    A byte below 128 is at least n when adding 128 - n sets its highest bit, and no sum reaches the next byte.
    """
    lower = word | Word(0x2020202020202020)
    digits = (word + Word(0x5050505050505050)) & ~(word + Word(0x4646464646464646))  # from 0x30 to 0x39
    letters = (lower + Word(0x1F1F1F1F1F1F1F1F)) & ~(lower + Word(0x1919191919191919))  # from 0x61 to 0x66
    good = (digits | letters) & ~word & _HIGHS == _HIGHS
    x = (word & Word(0x0F0F0F0F0F0F0F0F)) + Word(9) * (word >> _6 & _ONES)
    x = (x << _4 | x >> _8) & Word(0x00FF00FF00FF00FF)
    x = (x << _8 | x >> _16) & Word(0x0000FFFF0000FFFF)
    return good, (x << _16 | x >> _32) & Word(0xFFFFFFFF)
