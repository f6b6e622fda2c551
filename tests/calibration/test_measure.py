"""Rates: fitted from timings whose truth is known, and measured here as far as a test can say anything about them."""

import math
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.calibration import measure
from htrain.calibration.cluster_file import cluster_yaml, write_cluster
from htrain.calibration.measure import BATCHES, LAYERS, fit_gemm, measure_host
from htrain.errors import ClusterError
from htrain.spec.cluster import Cluster, is_rate, load_cluster

SHAPES = [(batch, k, n) for batch in BATCHES for k, n in LAYERS]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.floats(1e9, 1e13), st.floats(1, 200), st.integers(0, 99))
def test_gemm_rates_are_recovered_from_noisy_timings(flops: float, half: float, seed: int) -> None:
    noise = np.random.default_rng(seed).uniform(0.97, 1.03, len(SHAPES))
    rates = {shape: flops * min(shape) / (min(shape) + half) * n for shape, n in zip(SHAPES, noise, strict=True)}
    found, at = fit_gemm(rates)
    for shape, rate in rates.items():
        assert found * min(shape) / (min(shape) + at) == pytest.approx(rate, rel=0.08)


def test_a_rate_that_does_not_fall_off_has_no_half_size() -> None:
    assert fit_gemm(dict.fromkeys(SHAPES, 5e10)) == (pytest.approx(5e10), 1.0)


def bytes_over_the_loopback() -> int:
    links = psutil.net_io_counters(pernic=True)
    return sum(link.bytes_sent for name, link in links.items() if name.startswith("lo"))


def test_a_quick_measurement_gives_every_rate_and_what_it_heard() -> None:
    heard: list[str] = []
    before = bytes_over_the_loopback()
    found = measure_host(seconds=1.0, on_step=heard.append)
    assert bytes_over_the_loopback() - before > 100 << 20  # messages went by way of sockets
    assert {*found.rates, "distinct_percent"} == {name for name in vars(Cluster()) if is_rate(name)}
    assert all(math.isfinite(rate) and rate >= 1 for rate in found.rates.values())
    assert found.rates["core_flops"] > 1e9
    assert found.rates["core_gather_bandwidth"] < 1e12  # memory that nobody has written is not memory
    assert {shape for table in found.gemms.values() for shape in table} == set(SHAPES)
    assert len(found.gemm_table().splitlines()) == 1 + len(SHAPES)
    assert all(len(rates) == len(SHAPES) for rates in found.gemms_by_name().values())
    assert len(heard) >= 9


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(),
        Cluster(groups=3, trainers=2, sparse_ps_memory=123, core_flops=7, host_cores=2),
        Cluster(trainers=2, group_ps=2, pin=(("top.*", "group_ps:1"),), together=(("a", "b"),)),
    ],
)
def test_cluster_file_is_read_back_as_it_was(cluster: Cluster, tmp_path: Path) -> None:
    write_cluster(tmp_path / "cluster.yaml", cluster_yaml(cluster, "measured\nby a test"))
    assert load_cluster(tmp_path / "cluster.yaml", {}) == cluster


def test_a_place_that_cannot_be_written_is_named_and_left_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"nowhere/cluster\.yaml: cannot be written: .*nowhere is not a folder$"):
        write_cluster(tmp_path / "nowhere" / "cluster.yaml", "groups: 1\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("budget", "calls"), [(1e-4, 2), (0.02, 5)])
def test_what_takes_longer_than_its_time_is_measured_once_behind_a_first_call(budget: float, calls: int) -> None:
    done: list[float] = []

    def run() -> None:
        began = time.thread_time()
        while time.thread_time() - began < 0.01:
            pass
        done.append(time.thread_time() - began)

    assert measure._seconds_of(run, budget) == pytest.approx(0.01, rel=0.5)
    assert len(done) == calls
