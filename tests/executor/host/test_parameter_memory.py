"""Memory that outlives the process of a role: what one has written, the next finds."""

import multiprocessing
import os
import resource
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from htrain.errors import RunError
from htrain.executor.host.parameter_memory import ParameterMemory

SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=6)
DTYPES = st.sampled_from([torch.float32, torch.int64, torch.bfloat16])


@pytest.fixture
def kept() -> Iterator[ParameterMemory]:
    made = ParameterMemory("group_ps:0:0")
    yield made
    made.close()


def killed(work: Callable[[], None]) -> None:
    """A process that works, and then is killed."""

    def run() -> None:
        work()
        os.kill(os.getpid(), 9)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == -9


def room(shapes: list[tuple[int, ...]]) -> tuple[int, int]:
    """For so many numbers of 8 bytes."""
    return sum(8 * torch.Size(shape).numel() for shape in shapes), len(shapes)


@given(SHAPES, st.data())
def test_the_next_process_finds_parameters_as_the_last_left_them(
    shapes: list[tuple[int, ...]], data: st.DataObject
) -> None:
    kept = ParameterMemory("group_ps:0:0")
    dtypes = [data.draw(DTYPES) for _ in shapes]
    kept.open(*room(shapes))
    pieces = [kept.piece(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    for number, piece in enumerate(pieces):
        assert piece.data_ptr() % 64 == 0 or not piece.numel()
        piece.fill_(number + 1)
    kept.open(*room(shapes))
    again = [kept.piece(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    for number, (piece, dtype) in enumerate(zip(again, dtypes, strict=True)):
        assert torch.equal(piece, torch.full_like(piece, number + 1)), dtype
    kept.close()
    assert all(bool((piece == 1 + number).all()) for number, piece in enumerate(again)), "they hold on to it"


def test_a_process_that_is_killed_leaves_what_it_has_written(kept: ParameterMemory) -> None:
    def train() -> None:
        kept.open(80, 2)
        weights, count = kept.piece((3, 2), torch.float32), kept.piece((), torch.int64)
        weights.copy_(torch.arange(6.0).reshape(3, 2))
        count.fill_(7)
        kept.fill()

    assert not kept.is_filled
    killed(train)
    assert kept.is_filled
    assert kept.is_whole
    kept.open(80, 2)
    assert torch.equal(kept.piece((3, 2), torch.float32), torch.arange(6.0).reshape(3, 2))
    assert int(kept.piece((), torch.int64)) == 7


def test_whoever_is_killed_in_a_round_leaves_nothing_whole_and_behind_it_the_number_of_the_next(
    kept: ParameterMemory,
) -> None:
    def train(*, ends: bool) -> None:
        kept.fill()
        for number in range(3, 6):
            kept.begins_round(number)
            if number < 5 or ends:
                kept.ends_round()

    killed(lambda: train(ends=False))
    assert not kept.is_whole
    killed(lambda: train(ends=True))
    assert kept.is_whole
    assert kept.next_round == 6


def test_nobody_goes_on_with_what_was_not_filled(kept: ParameterMemory) -> None:
    killed(lambda: kept.open(8, 1))
    assert not kept.is_whole
    assert kept.next_round == 0


def test_memory_that_the_system_takes_for_too_large_a_file_is_named_with_what_helps(kept: ParameterMemory) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        wanted = r"^no memory of 1,004,160 bytes for parameters that outlive .*: File too large; .*\(ulimit -f\)"
        with pytest.raises(RunError, match=wanted):
            kept.open(1_000_000, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
