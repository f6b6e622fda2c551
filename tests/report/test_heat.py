"""Heat maps over pairs of workers: each cell has its figure, one shade means one amount, and a large matrix is taken together."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.report.heat import Panel, heats


def drawn(seed: int, workers: int) -> np.ndarray:
    return np.random.default_rng(seed).gamma(1.0, 50.0, (workers, workers))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), workers=st.integers(1, 90), cuts=st.lists(st.integers(1, 30), max_size=4))
def test_cells_are_means_of_what_was_given_and_the_mean_of_all_is_kept(
    seed: int, workers: int, cuts: list[int]
) -> None:
    matrix = drawn(seed, workers)
    hosts = [size for size in cuts if size < workers]
    hosts = [*hosts, workers - sum(hosts)] if sum(hosts) < workers else []
    found = heats([Panel("a", "", matrix), Panel("b", "", 2 * matrix)], hosts)
    step = found.together
    assert len(found.heads) <= 64
    assert step == (1 if workers <= 64 else 2)
    for line in range(len(found.heads)):
        for column in range(len(found.heads)):
            pairs = [
                matrix[i, j]
                for i in range(line * step, min(workers, (line + 1) * step))
                for j in range(column * step, min(workers, (column + 1) * step))
                if i != j
            ]
            once, twice = (panel.lines[line][column] for panel in found.panels)
            assert once.own == (not pairs)
            if pairs:
                assert once.tip.endswith(f": {np.mean(pairs):,.2f}")
                assert twice.shade == pytest.approx(2 * once.shade)
                assert bool(once.text) == found.has_figures == (workers <= 16)
    off = matrix[~np.eye(workers, dtype=bool)]
    assert found.panels[0].of_others == pytest.approx(off.sum() / workers)


@pytest.mark.parametrize(("workers", "darkest"), [(2, 0.6), (16, 0.6), (17, 1.0), (64, 1.0)])
def test_the_largest_amount_is_the_darkest_and_figures_stay_readable(workers: int, darkest: float) -> None:
    found = heats([Panel("a", "", drawn(0, workers)), Panel("b", "", drawn(1, workers) / 3)], ())
    shades = [cell.shade for panel in found.panels for line in panel.lines for cell in line]
    assert max(shades) == pytest.approx(darkest)
    assert min(shades) == 0.0


def test_where_nothing_is_fetched_nothing_is_dark() -> None:
    found = heats([Panel("a", "", np.zeros((3, 3)))], ())
    assert found.most == 0.0
    assert {cell.shade for line in found.panels[0].lines for cell in line} == {0.0}


def test_hosts_begin_where_their_first_workers_stand_and_are_named_where_there_is_room() -> None:
    found = heats([Panel("a", "", drawn(0, 40))], (30, 2, 8))
    assert [head.name for head in found.heads if head.is_further] == ["worker 30", "worker 32"]
    assert [(host.name, host.span, host.text) for host in found.hosts] == [
        ("host 0", 30, "host 0"), ("host 1", 2, ""), ("host 2", 8, "host 2"),
    ]  # fmt: skip
    assert [head.text for head in found.heads if head.text] == ["0", "8", "16", "24", "32"]


def test_hosts_of_many_workers_are_told_apart_by_the_line_in_which_they_begin() -> None:
    found = heats([Panel("a", "", np.ones((130, 130)))], (65, 65))
    assert found.hosts == ()
    assert [head.name for head in found.heads if head.is_further] == ["workers 63-65"]
    assert found.heads[-1].name == "worker 129"
