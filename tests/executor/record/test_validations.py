"""validations.jsonl: written and read back, cut off, damaged, and what it says of the best checkpoint."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.errors import CheckpointError
from htrain.executor.record.validations import (
    VALIDATIONS,
    Validation,
    best_checkpoint,
    kept_checkpoint,
    read_validations,
    write_validations,
)

numbers = st.floats(allow_infinity=False)
all_validations = st.builds(
    Validation,
    examples=st.integers(0, 2**62),
    ne=numbers,
    auc=numbers,
    log_loss=numbers,
    seconds=st.floats(0, 1e6),
    checkpoint=st.text(),
    data=st.text(),
    is_best=st.booleans(),
    kept=st.booleans(),
)


def found(checkpoint: str = "examples_000000000100", *, kept: bool = False) -> Validation:
    return Validation(
        100, 0.9, math.nan, 0.5, seconds=1.5, checkpoint=checkpoint, data="csv:v", is_best=True, kept=kept
    )


@given(st.lists(all_validations, max_size=4))
@settings(deadline=None)
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, validations: list[Validation]) -> None:
    folder = tmp_path_factory.mktemp("run")
    write_validations(folder, validations)
    assert repr(read_validations(folder)) == repr(tuple(validations))  # nan is not nan
    assert (folder / VALIDATIONS).read_bytes().count(b"\n") == len(validations)
    assert [path.name for path in folder.iterdir()] == [VALIDATIONS]


def test_a_run_without_validations_has_none(tmp_path: Path) -> None:
    assert read_validations(tmp_path) == ()


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    write_validations(tmp_path, [found("a"), found("b")])
    path = tmp_path / VALIDATIONS
    path.write_bytes(path.read_bytes()[:-5])
    assert [each.checkpoint for each in read_validations(tmp_path)] == ["a"]


@pytest.mark.parametrize("text", ["{}\n", "nonsense\n", '{"examples":"many"}\n', "[" * 100_000 + "\n", "\udcff\n"])
def test_a_damaged_file_is_refused_with_its_cure(tmp_path: Path, text: str) -> None:
    (tmp_path / VALIDATIONS).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match=r"validations\.jsonl: damaged: .*: remove it to go on without"):
        read_validations(tmp_path)


def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / VALIDATIONS).mkdir()
    with pytest.raises(CheckpointError, match=r"validations\.jsonl: cannot be read: Is a directory"):
        read_validations(tmp_path)


def test_the_best_checkpoint_is_the_last_that_is_kept(tmp_path: Path) -> None:
    validations = [found("a", kept=True), found("b"), found("c", kept=True), found("d")]
    assert kept_checkpoint(validations) == "c"
    write_validations(tmp_path, validations)
    assert best_checkpoint(tmp_path) == "c"


def test_a_run_that_keeps_no_best_checkpoint_says_so(tmp_path: Path) -> None:
    write_validations(tmp_path, [found()])
    with pytest.raises(CheckpointError, match="keeps no best checkpoint: it was not trained with --keep-best"):
        best_checkpoint(tmp_path)
