"""What code asks of values only to raise an error, by `assert` or by an `if` before a `raise`: the answer with which it goes on.

No net raises errors. PyTorch ends a training where such an error is raised, so that what the code does otherwise is all that is ever trained.
"""

from collections.abc import Iterator, Mapping
from dis import Instruction, get_instructions
from functools import lru_cache
from types import CodeType, FrameType

_ENDING = ("RETURN", "YIELD", "FOR_ITER", "SEND")
_FARTHEST = 400  # instructions of what is said in an error


def answer_that_goes_on(frame: FrameType | None) -> bool | None:
    """The truth value of what is asked where `frame` is, for which its code does not raise an error; None where it does so for neither, or for both."""
    if frame is None:
        return None
    instructions = _instructions(frame.f_code)
    jump = _branch_at(instructions, frame.f_lasti)
    if jump is None:
        return None
    raises_on, raises_there = _raises(instructions, _after(instructions, jump)), _raises(instructions, jump.argval)
    if raises_on == raises_there:
        return None
    jumps_if = jump.opname.endswith("IF_TRUE")
    return jumps_if if raises_on else not jumps_if


@lru_cache(maxsize=64)
def _instructions(code: CodeType) -> Mapping[int, Instruction]:
    """By their places, in order."""
    return {each.offset: each for each in get_instructions(code)}


def _branch_at(instructions: Mapping[int, Instruction], place: int) -> Instruction | None:
    """The jump that what is asked at `place` decides: there, or behind what makes a truth value of it or calls .item()."""
    for each in _from(instructions, place):
        if each.opname.startswith("POP_JUMP") and each.opname.endswith(("IF_TRUE", "IF_FALSE")):
            return each
        if each.opname != "TO_BOOL" and not (each.offset == place and each.opname.startswith("CALL")):
            return None
    return None


def _from(instructions: Mapping[int, Instruction], place: int) -> Iterator[Instruction]:
    return (each for offset, each in instructions.items() if offset >= place)


def _after(instructions: Mapping[int, Instruction], jump: Instruction) -> int:
    return next((offset for offset in instructions if offset > jump.offset), jump.offset)


def _raises(instructions: Mapping[int, Instruction], place: int) -> bool:
    """Whether what begins at `place` ends in an error, and goes no other way."""
    for _ in range(_FARTHEST):
        each = instructions.get(place)
        if each is None or each.opname.startswith(_ENDING):
            return False
        if each.opname in ("RAISE_VARARGS", "RERAISE"):
            return each.opname == "RAISE_VARARGS"
        if "JUMP" in each.opname:
            if "IF_" in each.opname:
                return False
            place = each.argval
        else:
            place = _after(instructions, each)
    return False
