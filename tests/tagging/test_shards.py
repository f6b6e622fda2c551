"""Tables onto sparse PSs: balanced, whole or in row ranges, within memory, or refused with what would fit."""

import re
import time
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.errors import PlacementError
from htrain.net.net import Init, Net, Parameter
from htrain.net.placement import Shard
from htrain.spec.cluster import GIB, Cluster
from htrain.spec.footprint import ROLE_BYTES
from htrain.tagging.shards import place_tables, table_bytes

DIM = 16
ROW_BYTES = 2 * 4 * DIM  # with Adagrad's state
ZERO = Init("constant", (0.0,))
MIB = 2**20


def net_of(rows: Mapping[str, int], dim: int = DIM) -> Net:
    """Tables that are only declared, each with an accumulator of its size."""
    parameters = {}
    for name, count in rows.items():
        parameters[name] = Parameter(name, (count, dim), "float32", "table", ZERO)
        parameters[f"{name}:a"] = Parameter(f"{name}:a", (count, dim), "float32", "state", ZERO, of=name)
    return Net("tables", (), (), (), {}, parameters)


def cluster_of(sparse_ps: int, *, memory: int = 256 * GIB) -> Cluster:
    return Cluster(sparse_ps=sparse_ps, sparse_ps_memory=memory)


def loads(shards: Mapping[str, Sequence[Shard]], num_devices: int) -> list[int]:
    """Rows on each sparse PS."""
    held = [0] * num_devices
    for shard in (s for parts in shards.values() for s in parts):
        held[int(shard.device.removeprefix("sparse_ps:"))] += shard.num_rows
    return held


def covers(parts: Sequence[Shard], rows: int) -> bool:
    """Whether the shards are row ranges that follow on each other, from 0 to the end, none empty."""
    ends = [s.first_row + s.num_rows for s in parts]
    return [s.first_row for s in parts] == [0, *ends[:-1]] and ends[-1] == rows and all(s.num_rows > 0 for s in parts)


tables = st.lists(st.integers(1, 5000), min_size=1, max_size=30).map(
    lambda sizes: {f"t{i}": n for i, n in enumerate(sizes)}
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(rows=tables, num_devices=st.integers(1, 12), data=st.data())
def test_every_table_is_covered_and_no_device_has_much_more_than_its_share(rows, num_devices: int, data) -> None:
    forced = data.draw(st.dictionaries(st.sampled_from(sorted(rows)), st.integers(1, 5)))
    shards = place_tables(net_of(rows), cluster_of(num_devices), forced)
    assert list(shards) == list(rows)
    assert all(covers(shards[name], count) for name, count in rows.items())
    assert all(len(shards[name]) == min(count, rows[name]) for name, count in forced.items())
    largest = max(s.num_rows for parts in shards.values() for s in parts)
    assert max(loads(shards, num_devices)) <= sum(rows.values()) / num_devices + largest


def test_equal_tables_are_dealt_evenly() -> None:
    shards = place_tables(net_of(dict.fromkeys("abcdefgh", 100)), cluster_of(4), {})
    assert all(len(parts) == 1 for parts in shards.values())
    assert loads(shards, 4) == [200] * 4


def test_a_table_above_an_even_share_is_cut_into_shares_and_a_rest() -> None:
    shards = place_tables(net_of({"big": 900, "small": 300}), cluster_of(4), {})
    assert [s.num_rows for s in shards["big"]] == [300, 300, 300]
    assert loads(shards, 4) == [300] * 4


def test_forced_pieces_are_equal_and_never_empty() -> None:
    shards = place_tables(net_of({"a": 10, "b": 2}), cluster_of(2), {"a": 3, "b": 5})
    assert [(s.first_row, s.num_rows) for s in shards["a"]] == [(0, 3), (3, 3), (6, 4)]
    assert [s.num_rows for s in shards["b"]] == [1, 1]


def test_the_optimizers_state_counts() -> None:
    assert table_bytes(net_of({"a": 10})) == {"a": 10 * ROW_BYTES}


def test_the_same_tables_are_placed_the_same_way() -> None:
    net = net_of({f"t{i}": 100 + i % 3 for i in range(20)})
    assert place_tables(net, cluster_of(7), {}) == place_tables(net, cluster_of(7), {})


def test_without_sparse_ps_tables_are_whole_on_the_trainer() -> None:
    shards = place_tables(net_of({"a": 10, "b": 20}), cluster_of(0), {"a": 2})
    assert shards == {"a": (Shard("a", 0, 10, "trainer"),), "b": (Shard("b", 0, 20, "trainer"),)}


def test_tables_that_do_not_fit_are_refused_with_the_number_of_devices_that_would_do() -> None:
    net = net_of({"user": 6 * MIB, "item": 2 * MIB})
    message = (
        "the tables need 1.0 GiB with optimizer state and what steps hold (largest: 'user', 768.0 MiB), 2 sparse PSs of 576.0 MiB have room for "
        "512.0 MiB beside their processes of 320.0 MiB: 4 sparse PSs of this size would do"
    )
    with pytest.raises(PlacementError, match=f"^{re.escape(message)}$"):
        place_tables(net, cluster_of(2, memory=ROLE_BYTES + GIB // 4), {})
    shards = place_tables(net, cluster_of(4, memory=ROLE_BYTES + GIB // 4), {})
    assert max(loads(shards, 4)) * ROW_BYTES <= GIB / 4


def test_what_steps_hold_of_a_table_takes_room_beside_its_rows() -> None:
    net, cluster = net_of({"user": 2 * MIB}), cluster_of(1, memory=ROLE_BYTES + GIB // 4)
    place_tables(net, cluster, {})
    with pytest.raises(PlacementError, match=r"^the tables need 256.0 MiB .* 2 sparse PSs of this size would do$"):
        place_tables(net, cluster, {}, held={"user": 1})


@pytest.mark.parametrize("memory", [1 << 10, ROLE_BYTES, ROLE_BYTES + 100])
def test_a_sparse_ps_that_holds_no_row_is_refused_at_once(memory: int) -> None:
    start = time.process_time()
    with pytest.raises(PlacementError, match=r"beside their processes of 320.0 MiB: raise sparse_ps_memory"):
        place_tables(net_of({"user": 10**9}), cluster_of(2, memory=memory), {})
    assert time.process_time() - start < 0.5


def test_the_number_of_devices_that_would_do_does() -> None:
    net = net_of({"t0": 237194, "t1": 384135, "t2": 355979, "t3": 1514385, "t4": 709189, "t5": 2809053, "t6": 1292418})
    with pytest.raises(PlacementError, match=r"sparse PSs of this size would do$") as refusal:
        place_tables(net, cluster_of(1, memory=ROLE_BYTES + GIB // 4), {})
    number = re.search(r"(\d+) sparse PSs of this size would do", str(refusal.value))
    assert number
    place_tables(net, cluster_of(int(number[1]), memory=ROLE_BYTES + GIB // 4), {})


def test_a_piece_that_does_not_fit_is_refused_with_the_room_that_is_left() -> None:
    message = (
        "rows 0 to 2097151 of table 'user' need 256.0 MiB with optimizer state and what steps hold, the emptiest sparse PS that may hold them "
        "(sparse_ps:0) has 200.0 MiB left: add a sparse PS, or raise sparse_ps_memory"
    )
    with pytest.raises(PlacementError, match=f"^{re.escape(message)}$"):
        place_tables(net_of({"user": 2 * MIB}), cluster_of(2, memory=ROLE_BYTES + 200 * MIB), {"user": 1})


def test_ten_to_the_twelve_parameters_are_placed_at_once() -> None:
    net, cluster = net_of({f"t{i}": 600_000_000 for i in range(26)}, dim=64), cluster_of(40, memory=512 * GIB)
    assert sum(p.shape[0] * 64 for p in net.parameters.values() if p.kind == "table") > 0.99e12
    start = time.process_time()
    shards = place_tables(net, cluster, {})
    assert time.process_time() - start < 0.5
    rows = loads(shards, 40)
    assert max(rows) * 2 * 4 * 64 <= 512 * GIB - ROLE_BYTES
    assert max(rows) <= 1.1 * sum(rows) / 40
