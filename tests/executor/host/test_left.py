"""What roles leave to their next processes, and where they cannot."""

import os

import pytest

from htrain.executor.host.left import NOTHING_LEFT, left_by


def test_a_trainer_leaves_a_journal_and_a_group_ps_its_weights_once_it_has_some() -> None:
    for role in ("trainer:0:0", "sparse_ps:1"):
        left = left_by(role)
        assert left.journal
        assert left.is_whole
        left.close()
    left = left_by("group_ps:0:1")
    assert left.kept
    assert not left.is_whole
    left.kept.fill()
    assert left.is_whole
    left.close()
    assert NOTHING_LEFT.is_whole


@pytest.mark.parametrize("who", ["the system", "Python"])
def test_where_there_is_no_memory_that_outlives_a_process_a_group_ps_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    def refused(name: str) -> int:
        raise OSError(38, "Function not implemented")

    if who == "Python":
        monkeypatch.delattr(os, "memfd_create")
    else:
        monkeypatch.setattr(os, "memfd_create", refused)
    left = left_by("group_ps:0:1")
    assert left.kept is None
    assert not left.is_whole
    left.close()
