"""The section `options` of a cluster file, and the older sections dense and sparse."""

from pathlib import Path

import pytest
import yaml
from drawn_options import drawn_options
from hypothesis import given
from hypothesis import strategies as st

from htrain.errors import ClusterError, UsageError
from htrain.spec.cache import HetCache, LookAheadCache, capacity_rows
from htrain.spec.cluster import Cluster, load_cluster
from htrain.spec.cluster_file import load_options, said_in
from htrain.spec.dense_sync import AllReduce
from htrain.spec.options import Options
from htrain.spec.tree import document_of, with_flags


def written(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text)
    return path


@given(drawn_options())
def test_what_the_tree_says_is_read_back_from_a_file(
    tmp_path_factory: pytest.TempPathFactory, options: Options
) -> None:
    path = written(tmp_path_factory.mktemp("options"), yaml.safe_dump({"groups": 3, "options": document_of(options)}))
    assert load_options(path) == options
    assert load_cluster(path, {}) == Cluster(groups=3)


def test_what_is_not_said_is_as_by_default_and_a_kind_may_stand_alone(tmp_path: Path) -> None:
    path = written(
        tmp_path, "options:\n  dense_sync: allreduce\n  cache: {kind: het, tables: {C1: 50%, 'wide.*': none}}\n"
    )
    assert load_options(path) == Options(
        dense_sync=AllReduce(), cache=HetCache(tables=(("C1", "50%"), ("wide.*", "none")))
    )
    assert said_in(path) == {"dense_sync", "cache", "cache_table"}


def test_older_sections_mean_what_they_meant(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "groups: 3\ndense: {sync: allreduce, bucket_bytes: 4096}\nsparse:\n  cache: het\n  capacity: 12.5%\n"
        "  staleness: unbounded\n  policy: lru\n  window: 8\n  tables: {C1: 50%, 'wide.*': none}\n",
    )
    assert load_cluster(path, {}) == Cluster(groups=3)
    assert load_options(path) == with_flags(
        dense_sync="allreduce", bucket_bytes=4096, cache="het", cache_capacity="12.5%", cache_staleness="unbounded",
        cache_policy="lru", cache_window=8, cache_table=(("C1", "50%"), ("wide.*", "none")),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("sparse: {cache: het, window: 0, staleness: -1}", HetCache(window=64, staleness="unbounded")),
        ("sparse: {cache: lookahead, window: 0, sets: 0}", LookAheadCache(window="auto", sets="auto")),
        (
            "sparse: {cache: lookahead, window: 500, sets: 150000, ways: 8, patch: false}",
            LookAheadCache(window=500, sets=150_000, ways=8, patch=False),
        ),
    ],
)
def test_the_zeros_of_older_sections_are_words_today(
    tmp_path: Path, text: str, means: HetCache | LookAheadCache
) -> None:
    assert load_options(written(tmp_path, text)).cache == means


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "dense: {sync: foo}",
            r"c.yaml:1: options.dense_sync.kind: 'foo' is not one of easgd, model_averaging, bmuf, allreduce, ps",
        ),
        ("groups: 1\ndense: 3", r"c.yaml:2: dense: want entries such as {sync: allreduce}"),
        (
            "sparse: {stalness: 3}",
            r"c.yaml:1: sparse.stalness: unknown entry; sparse takes sync, store, cache, capacity",
        ),
        ("options: {}\ndense: {sync: ps}", r"c.yaml:2: dense: an older form of what `options` says too: leave it out"),
        ("groups: 1\noptions: 3", r"c.yaml:2: options: want entries such as {batch_size: 512}"),
        ("options:\n  batch: 3", r"c.yaml:2: options.batch: unknown entry; options are batch_size, net_replicas"),
        ("options: {cache: hat}", r"options.cache.kind: 'hat' is not one of none, het, lookahead"),
        ("options: {cache: [het]}", r"c.yaml:1: options.cache: want entries such as {kind: none}"),
        ("options: {numerics: float32}", r"c.yaml:1: options.numerics: want entries such as {fc_dtype: auto}"),
        (
            "options: {cache: {kind: het, capacity: 0%}}",
            r"cache.capacity: '0%' is not a capacity: want a share such as 10%, or a number of rows from 1 on, as text",
        ),
        ("options: {cache: {kind: het, capacity: 101%}}", r"cache.capacity: '101%' is not a capacity"),
        (
            "options: {cache: {kind: het, tables: [a]}}",
            r"cache.tables: \['a'\] is not tables and capacities, such as \*.C1.\*=50% or \*.C2.\*=none",
        ),
        ("options: {cache: {kind: het, tables: {C1: many}}}", r"cache.tables: 'C1=many' is not tables and capacities"),
        (
            "options: {cache: {kind: het, stalness: 3}}",
            r"cache.stalness: unknown entry; the cache het takes capacity, staleness",
        ),
        ("options: {cache: {capacity: 3%}}", r"cache.capacity: belongs to kind het, and the cache is none"),
        (
            "options: {cache: {kind: het, staleness: x}}",
            r"cache.staleness: 'x' is not a whole number of 0 to 999,999,999, or unbounded",
        ),
        (
            "options: {cache: {kind: het, staleness: -1}}",
            r"cache.staleness: -1 is not a whole number of 0 to 999,999,999, or unbounded",
        ),
        ("options: {prefetch: maybe}", r"options.prefetch: 'maybe' is not true or false"),
        ("options: {loss: {a: 1}}", r"options.loss: want one value"),
        ("options: {dense_optimizer: {lr: .nan}}", r"dense_optimizer.lr: '.nan' is not a finite number above 0"),
        (
            "options: {numerics: {fc_dtype: int8, fc_gradient_dtype: bfloat16}}",
            r"c.yaml: --fc-gradient-dtype: bfloat16 wants --fc-dtype bfloat16 too",
        ),
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


@given(st.one_of(st.text(max_size=6), st.from_regex(r"[0-9]{1,4}(\.[0-9]{1,2})?%?", fullmatch=True)))
def test_what_is_no_capacity_is_refused_wherever_it_is_asked(text: str) -> None:
    refused = []
    for ask in (
        lambda: capacity_rows(text, 10, where="--cache-capacity"),
        lambda: with_flags(cache="het", cache_capacity=text),
    ):
        try:
            ask()
        except UsageError as error:
            refused.append(str(error))
    assert refused in (
        [],
        [
            f"--cache-capacity: '{text}' is not a capacity: want a share such as 10%, or a number of rows from 1 on, as text"
        ]
        * 2,
    )
