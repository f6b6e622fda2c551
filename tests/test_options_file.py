"""The sections dense and sparse of a cluster file."""

from pathlib import Path

import pytest

from htrain.cluster import Cluster, load_cluster
from htrain.errors import ClusterError, UsageError
from htrain.options import Options, capacity_rows, checked
from htrain.options_file import load_options


def written(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text)
    return path


def test_sections_become_options_and_are_no_fields_of_the_cluster(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "groups: 3\ndense: {sync: allreduce, bucket_bytes: 4096}\nsparse:\n  cache: het\n  capacity: 12.5%\n"
        "  staleness: unbounded\n  policy: lru\n  window: 8\n  tables: {C1: 50%, 'wide.*': none}\n",
    )
    assert load_cluster(path, {}) == Cluster(groups=3)
    options = checked(Options(**load_options(path)))
    assert options == Options(
        dense_sync="allreduce", bucket_bytes=4096, cache="het", cache_capacity="12.5%", cache_staleness=-1,
        cache_policy="lru", cache_window=8, cache_tables=(("C1", "50%"), ("wide.*", "none")),
    )  # fmt: skip


def test_the_form_of_a_lookahead_cache(tmp_path: Path) -> None:
    path = written(tmp_path, "sparse: {cache: lookahead, window: 500, sets: 150000, ways: 8, patch: false}")
    wanted = Options(cache="lookahead", cache_window=500, cache_sets=150_000, cache_ways=8, cache_patch=False)
    assert checked(Options(**load_options(path))) == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dense: {sync: foo}", r"c.yaml:1: dense.sync: 'foo' is not one of easgd, allreduce, ps"),
        ("groups: 1\ndense: 3", r"c.yaml:2: dense: want entries such as {sync: allreduce}"),
        (
            "sparse: {capacity: 0%}",
            r"sparse.capacity: '0%' is not a capacity: want a share such as 10%, or a number of rows",
        ),
        ("sparse: {capacity: 101%}", r"sparse.capacity: '101%' is more than all rows"),
        ("sparse: {tables: [a]}", r"sparse.tables: want tables and capacities, such as {C1: 50%, C2: none}"),
        ("sparse: {tables: {C1: many}}", r"sparse.tables.C1: 'many' is not a capacity"),
        ("sparse: {stalness: 3}", r"sparse.stalness: unknown entry; sparse takes sync, store, cache, capacity"),
        ("sparse: {staleness: x}", r"sparse.staleness: 'x' is not a whole number or unbounded"),
        ("sparse: {patch: maybe}", r"sparse.patch: 'maybe' is neither true nor false"),
        ("sparse: {policy: {a: 1}}", r"sparse.policy: want one value"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(text: str, says: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ClusterError, match=says):
        load_options(path)


@pytest.mark.parametrize(
    ("text", "rows", "wanted"),
    [("10%", 1000, 100), ("0.01%", 1000, 1), ("100%", 7, 7), ("5000", 9999, 5000), ("5000", 70, 70)],
)
def test_a_capacity_is_a_share_or_a_number_of_rows(text: str, rows: int, wanted: int) -> None:
    assert capacity_rows(text, rows, where="") == wanted


@pytest.mark.parametrize(
    "options", [Options(cache_staleness=-2), Options(cache_window=-1), Options(cache_ways=0), Options(cache_capacity="-3")]
)
def test_options_that_cannot_be_are_refused(options: Options) -> None:
    with pytest.raises(UsageError):
        checked(options)
