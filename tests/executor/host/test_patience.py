"""How long is waited: for as long as the process runs, and no longer."""

import time

import pytest

from htrain.executor.host.patience import Patience


def test_a_wait_is_over_after_its_seconds_and_not_for_those_in_which_the_process_was_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    patience = Patience(deadline_seconds=3.0, warm_up_seconds=60.0)
    assert patience.begin().seconds == 60.0
    patience.warm()
    wait = patience.begin()
    assert wait.until_next_look == 0.5
    now += 1000  # frozen
    assert not wait.is_over
    now += 0.5
    assert not wait.is_over
    now += 1.0
    assert not wait.is_over
    assert wait.until_next_look == 0.5
    now += 0.25
    assert not wait.is_over
    assert wait.until_next_look == 0.25
    now += 0.25
    assert wait.is_over


def test_waits_begin_anew_where_a_role_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    patience = Patience(deadline_seconds=1.0, warm_up_seconds=1.0)
    wait = patience.begin()
    now += 0.5
    assert not wait.is_over
    patience.renew()
    for _ in range(2):
        assert not wait.is_over
        now += 0.4
    later = patience.begin()
    now += 0.5
    assert wait.is_over
    assert not later.is_over
