"""The planted model, its best figures, and the file it is written to."""

import gzip
import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.data.formats import synthetic
from htrain.data.formats.synthetic import BLOCK_ROWS, Synthetic, block, odd_step, planted, write_criteo
from htrain.errors import DataError

SMALL = Synthetic(rows=6000, table_rows=500, communities=10)


def test_a_block_is_a_function_of_options_and_number():
    rows, probability = block(SMALL, 1)
    again, same = block(SMALL, 1)
    np.testing.assert_array_equal(rows.fixed["sparse"], again.fixed["sparse"])
    np.testing.assert_array_equal(probability, same)
    other, _ = block(replace(SMALL, seed=1), 1)
    assert (rows.fixed["sparse"] != other.fixed["sparse"]).any()
    assert rows.count == 6000 - BLOCK_ROWS


def test_a_rows_probability_depends_on_its_own_features_alone():
    rows, probability = block(SMALL, 0)
    dense = np.log1p(rows.fixed["counts"])
    for part in (slice(0, 1), slice(100, 150)):
        logit = synthetic._logit(SMALL, dense[part], rows.fixed["sparse"][part])
        np.testing.assert_allclose(1 / (1 + np.exp(-logit)), probability[part], rtol=1e-9)


def test_labels_follow_the_planted_probabilities():
    rows, probability = block(Synthetic(rows=BLOCK_ROWS), 0)
    label = rows.fixed["label"]
    for low, high in ((0, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1)):
        chosen = (probability >= low) & (probability < high)
        spread = np.sqrt((probability[chosen] * (1 - probability[chosen])).sum())
        assert abs(label[chosen].sum() - probability[chosen].sum()) < 4 * spread


def test_planted_figures_agree_with_their_definitions():
    parts = [block(SMALL, b) for b in range(SMALL.num_blocks)]
    y = np.concatenate([rows.fixed["label"] for rows, _ in parts]).astype(float)
    p = np.concatenate([probability for _, probability in parts])
    figures = planted(SMALL)
    rate = y.mean()
    loss = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean()
    pairs = p[y == 1][:, None] - p[y == 0][None, :]
    assert figures.positive_rate == pytest.approx(rate)
    assert figures.best_ne == pytest.approx(loss / -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate)))
    assert figures.best_auc == pytest.approx(((pairs > 0) + (pairs == 0) / 2).mean())
    assert figures.best_ne < 0.9 < figures.best_auc + 0.2


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.3])
def test_ids_are_as_frequent_as_zipf_says(exponent):
    ranks = synthetic.zipf_ranks(np.random.default_rng(0).random(200_000), 1000, exponent)
    edges = np.array([0, 1, 3, 10, 30, 100, 300, 1000])
    if exponent == 1:
        mass = np.log(edges + 1) / np.log(1001)
    else:
        mass = ((edges + 1) ** (1 - exponent) - 1) / (1001 ** (1 - exponent) - 1)
    seen = np.array([np.mean((ranks >= a) & (ranks < b)) for a, b in pairwise(edges)])
    np.testing.assert_allclose(seen, np.diff(mass), atol=0.005)


def test_locality_makes_the_ids_of_an_example_come_from_one_community():
    def shared(locality):
        rows, _ = block(Synthetic(rows=2000, table_rows=6400, zipf=0.0, locality=locality), 0)
        step = odd_step(6400)
        inverse = pow(step, -1, 6400)
        ranks = (rows.fixed["sparse"] - np.arange(26) * 7919) * inverse % 6400
        community = ranks // 100
        return np.mean(community[:, :13] == community[:, 13:])

    assert shared(0.0) == pytest.approx(1 / 64, abs=0.005)
    assert shared(0.8) == pytest.approx(0.64, abs=0.03)


@settings(max_examples=30)
@given(st.integers(1, 10**6))
def test_the_shuffle_of_ranks_is_a_permutation(rows):
    assert np.gcd(odd_step(rows), rows) == 1


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_written_file_reads_back_as_the_generated_log(tmp_path, read, name):
    options = replace(SMALL, table_rows=100_000)
    figures = write_criteo(tmp_path / name, options)
    assert figures == planted(options)
    uri = "synthetic:?rows=6000&table_rows=100000&communities=10"
    assert read(f"criteo:{tmp_path / name}?rows=100000") == read(uri)
    meta = json.loads((tmp_path / f"{name}.meta.json").read_text())
    assert meta["options"]["table_rows"] == 100_000
    assert meta["planted"]["best_ne"] == figures.best_ne
    assert sorted(p.name for p in tmp_path.iterdir()) == [name, f"{name}.meta.json"]


def test_an_id_is_written_as_eight_hexadecimal_digits(tmp_path):
    write_criteo(tmp_path / "a.tsv.gz", replace(SMALL, rows=3))
    with gzip.open(tmp_path / "a.tsv.gz", "rt") as file:
        ids = [line.split("\t")[14:] for line in file.read().splitlines()]
    rows, _ = block(replace(SMALL, rows=3), 0)
    assert [[int(text, 16) for text in line] for line in ids] == rows.fixed["sparse"].tolist()
    assert {len(text) for line in ids for text in line} == {8}


def test_an_interrupted_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupted(rows):
        raise KeyboardInterrupt

    monkeypatch.setattr(synthetic, "_lines", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_criteo(tmp_path / "a.tsv", SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_one_error(tmp_path):
    with pytest.raises(DataError, match=r"a\.tsv: cannot be written: .*absent is not a folder$"):
        write_criteo(tmp_path / "absent" / "a.tsv", SMALL)


def test_the_figures_of_a_log_of_one_class_are_left_out_of_its_meta_file(tmp_path):
    write_criteo(tmp_path / "a.tsv", Synthetic(rows=1))
    assert json.loads((tmp_path / "a.tsv.meta.json").read_text())["planted"].keys() == {"positive_rate"}


def test_blocks_after_the_first_ones_are_other_rows_of_the_same_log():
    whole, _ = block(SMALL, 1)
    later, _ = block(replace(SMALL, rows=6000 - BLOCK_ROWS, first_block=1), 0)
    np.testing.assert_array_equal(whole.fixed["sparse"], later.fixed["sparse"])
