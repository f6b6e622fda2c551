"""Whole runs with faults, simulated: in each history what must hold does, and the run ends with all trained (docs/decisions/recovery.md).

`python tools/histories.py --histories 100000` plays more of them; `--seed N --replay` prints one.
"""

import pytest
from fault_histories.history import play
from fault_histories.planted import BUGS

HISTORIES, AT_ONCE = 1000, 125


@pytest.mark.parametrize("first", range(0, HISTORIES, AT_ONCE))
def test_whatever_fails_every_example_counts_once_and_the_run_comes_to_its_end(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        told = play(seed)
        assert told.broken == "", f"python tools/histories.py --seed {seed} --replay"


# A search may begin at any seed: these find something soon. By effects: what is trained, or what the product itself asserts.
BEGIN = {
    "a lost dedupe": 50, "a stale incarnation is taken": 0, "a cut that is no cut": 0, "a rest that is over counts": 225, "a server that does not forget": 0,
    "a journal of positions": 0, "a trainer that does not wait to be known": 940, "a PS that goes back to no checkpoint": 0,
    "a PS that does not know whose steps are gone": 3500, "a group PS that goes on with other weights": 0, "a group PS that counts its rounds anew": 2250,
    "a group PS that goes on in the middle of a round": 550,
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_that_is_planted_is_found_by_its_effects_within_10_000_histories(bug: str) -> None:
    effects = (
        " is no cut: ",
        "were counted",
        "begins beside",
        "a try fails, though nothing goes wrong",
        "knows more than it",
        "steps have changed weights by",
    )
    seeds = range(BEGIN[bug], BEGIN[bug] + 10_000)
    assert any(any(effect in told.broken for effect in effects) for told in (play(seed, BUGS[bug]) for seed in seeds))


def test_a_seed_is_one_history() -> None:
    first, again, other = (play(seed, keep_lines=True) for seed in (5, 5, 6))
    assert first.lines == again.lines
    assert first.seen == again.seen
    assert first.lines != other.lines
