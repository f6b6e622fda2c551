"""The graph reader against the graph itself, in plain Python."""

import gzip
from collections import defaultdict
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.data import START, Malformed, Position, open_data
from htrain.data.formats.graph import GraphOptions, graph_schema, open_graph
from htrain.errors import DataError

GOWALLA = Path(__file__).parents[3] / ".." / "shared" / "data" / "gowalla.txt.gz"
VISITS = "".join(f"{user} {' '.join(str(user * k % 31) for k in range(1, 2 + user % 9))}\n" for user in range(40))
lists = st.dictionaries(st.integers(0, 12), st.sets(st.integers(0, 9), max_size=6), min_size=1, max_size=8)
options = st.builds(
    GraphOptions,
    part=st.sampled_from(["train", "test"]),
    test=st.sampled_from([0.0, 0.1, 0.4, 0.8]),
    fanout=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    negatives=st.integers(1, 3),
    seed=st.integers(0, 5),
)


def whole(dataset):
    """All examples: nodes[n,2], neighbours[n,2,F], second_neighbours[n,2,F,G], label[n]."""
    (batch,) = dataset.batches(
        batch_size=1 << 30, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed(share=1.0)
    )
    nodes, near, far, label = (batch.columns[name] for name in ("nodes", "neighbours", "second_neighbours", "label"))
    near = near.reshape(label.size, 2, -1)
    return nodes, near, far.reshape(*near.shape, -1), label


def positives(dataset):
    nodes, _, _, label = whole(dataset)
    return [(user, item) for (user, item), y in zip(nodes.tolist(), label.tolist(), strict=True) if y]


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "visits.txt"
    path.write_text(VISITS)
    return path


def adjacency_of(pairs, hidden):
    """The neighbours of every node, by all edges but one."""
    neighbours = defaultdict(set)
    for user, item in set(pairs) - {hidden}:
        neighbours[user].add(item)
        neighbours[item].add(user)
    return neighbours


def positives_if_any(path, chosen, part):
    try:
        return positives(open_graph(path, replace(chosen, part=part)))
    except DataError as error:
        message = str(error)
    assert any(text in message for text in ("holds out none of its", "holds out all of its", "has an item"))
    return []


@settings(max_examples=80, deadline=None)
@given(graph=lists, chosen=options)
def test_every_sampled_node_is_a_neighbour_in_the_training_graph_without_the_pairs_edge(
    tmp_path_factory, graph, chosen
):
    path = tmp_path_factory.getbasetemp() / "sampled.txt"
    path.write_text("".join(f"{user} {' '.join(map(str, items))}\n" for user, items in graph.items()))
    train, test = (positives_if_any(path, chosen, part) for part in ("train", "test"))
    if not train or (chosen.part == "test" and not test):
        return
    offset = max(graph) + 1
    assert sorted(train + test) == sorted((u, offset + i) for u, items in graph.items() for i in items)
    nodes, near, far, label = (values.tolist() for values in whole(open_graph(path, chosen)))
    turns = chosen.negatives + 1
    assert label == ([1.0] + [0.0] * chosen.negatives) * (len(label) // turns)
    for row, ends in enumerate(nodes):
        neighbours = adjacency_of(train, hidden=tuple(nodes[row - row % turns]))
        assert ends[0] == nodes[row - row % turns][0]
        for end in range(2):
            assert set(near[row][end]) <= (neighbours[ends[end]] or {ends[end]})
            for between, beyond in zip(near[row][end], far[row][end], strict=True):
                assert set(beyond) <= (neighbours[between] or {between})


def test_neighbours_are_drawn_alike_and_negatives_by_the_power_of_their_popularity(tmp_path):
    popular = [1, 2, 4, 8, 16]  # users of items 0 to 4; user 16 has other items
    lines = [f"{user} {' '.join(str(i) for i, count in enumerate(popular) if user < count)}" for user in range(16)]
    (tmp_path / "a.txt").write_text("\n".join([*lines, "16 5 6 7 8"]))
    nodes, near, _, label = whole(open_data(f"graph:{tmp_path}/a.txt?test=0&fanout=30,1&negatives=1000"))
    his = (nodes[:, 0] == 16) & (label == 0)
    counts = np.bincount(nodes[his, 1] - 17, minlength=9)
    assert counts[5:].tolist() == [0] * 4  # never his own
    wanted = np.power(popular, 0.75) / np.power(popular, 0.75).sum()
    np.testing.assert_allclose(counts[:5] / 4000, wanted, atol=0.02)
    around = near[his & (nodes[:, 1] == 17 + 3), 1]
    np.testing.assert_allclose(np.bincount(around.ravel(), minlength=8) / around.size, [1 / 8] * 8, atol=0.01)


def test_the_draws_of_an_example_know_nothing_of_each_other(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"{user} {' '.join(map(str, range(20)))}\n" for user in range(20)))
    nodes, near, far, _ = whole(open_data(f"graph:{tmp_path}/a.txt?test=0&fanout=4,2"))
    assert nodes.shape == (800, 2)
    near, far = near % 20, far % 20  # users and items: both are numbered up to 20
    for one, other in (
        (near[:, 0], near[:, 1]),
        (near[..., :2], near[..., 2:]),
        (far[..., 0], far[..., 1]),
        (far[..., 0], near),
    ):
        assert (one == other).mean() == pytest.approx(1 / 20, abs=0.012)


def test_a_node_without_neighbours_samples_itself_and_the_only_item_is_its_own_negative(tmp_path, read):
    (tmp_path / "a.txt").write_text("0 0")
    assert read(f"graph:{tmp_path}/a.txt?test=0&fanout=2,1") == [
        ((label,), (0, 0, 1, 1), (0, 1), (0, 0, 1, 1)) for label in (1.0, 0.0)
    ]


def test_pairs_are_held_out_by_their_two_ids_whatever_else_there_is(visits, tmp_path):
    lines = VISITS.splitlines(keepends=True)
    (tmp_path / "part.txt").write_text("".join(reversed(lines[20:])))
    held = positives(open_data(f"graph:{visits}?part=test"))
    again = positives(open_data(f"graph:{visits}?part=test&seed=7&negatives=2"))
    part = positives(open_data(f"graph:{tmp_path}/part.txt?part=test"))
    assert sorted(held) == sorted(again)
    assert held != again  # in another order
    assert sorted(part) == sorted(pair for pair in held if pair[0] >= 20)


def test_another_share_holds_out_about_so_many_pairs_and_more_of_them_hold_the_fewer(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"{u} {' '.join(map(str, range(100)))}\n" for u in range(100)))
    small, large = (set(positives(open_data(f"graph:{tmp_path}/a.txt?part=test&test={t}"))) for t in (0.1, 0.3))
    assert small < large
    assert len(small) == pytest.approx(1000, abs=100)
    assert len(large) == pytest.approx(3000, abs=150)


def test_a_held_out_item_may_be_a_negative_of_its_user_in_training_but_not_in_the_test(tmp_path):
    lines = (" ".join(str(user * k % 61) for k in range(8, 20)) for user in range(1, 61))
    (tmp_path / "a.txt").write_text("".join(f"{user} {items}\n" for user, items in enumerate(lines)))
    train, test = (open_data(f"graph:{tmp_path}/a.txt?part={part}&negatives=5") for part in ("train", "test"))
    own, held = set(positives(train)), set(positives(test))
    in_training, in_test = ({tuple(pair) for pair in whole(d)[0][whole(d)[3] == 0].tolist()} for d in (train, test))
    assert not in_training & own
    assert in_training & held
    assert not in_test & (own | held)


def test_a_batch_holds_the_pairs_of_many_users(visits):
    nodes, _, _, label = whole(open_data(f"graph:{visits}"))
    users = nodes[label == 1, 0]
    assert (users[:-1] == users[1:]).mean() < 0.2


@settings(max_examples=12, deadline=None)
@given(num_shards=st.integers(1, 9), batch_size=st.integers(1, 200), seed=st.integers(0, 3))
def test_every_example_comes_exactly_once_over_any_number_of_shards(visits, read, num_shards, batch_size, seed):
    uri = f"graph:{visits}?fanout=3,2&seed={seed}"
    shards = [read(uri, batch_size=batch_size, shard=s, num_shards=num_shards) for s in range(num_shards)]
    assert sorted(chain(*shards)) == sorted(read(uri))
    assert sum(map(len, shards)) == open_data(uri).num_examples()
    assert max(map(len, shards)) <= 2 * min(map(len, shards))


@settings(max_examples=12, deadline=None)
@given(data=st.data(), num_shards=st.integers(1, 3), batch_size=st.integers(1, 60))
def test_resuming_at_any_batch_gives_the_batches_that_would_have_followed(
    visits, examples, data, num_shards, batch_size
):
    def batches(start):
        dataset = open_data(f"graph:{visits}?fanout=3,2&negatives=2")
        return list(
            dataset.batches(
                batch_size=batch_size, shard=0, num_shards=num_shards, epochs=2, start=start, malformed=Malformed()
            )
        )

    all_of_them = batches(START)
    stop = data.draw(st.integers(0, len(all_of_them) - 1))
    rest = batches(Position.from_dict(all_of_them[stop].position.to_dict()))
    assert [(examples(b), b.position) for b in rest] == [(examples(b), b.position) for b in all_of_them[stop + 1 :]]


def test_another_seed_draws_other_neighbours_and_the_same_seed_the_same(visits, read):
    first, again, other = (read(f"graph:{visits}?seed={seed}") for seed in (0, 0, 1))
    assert first == again
    assert len(set(first) & set(other)) < 0.1 * len(first)  # few nodes have one neighbour only


def test_wide_neighbourhoods_come_in_small_chunks(visits):
    source = open_data(f"graph:{visits}?fanout=100,100&negatives=50").source
    _, rows = next(source.chunks(shard=0, num_shards=1, first=0, malformed=Malformed()))
    assert rows.count * 2 * (1 + 100 + 10_000) <= 1 << 19


def test_items_come_behind_the_users_in_one_table_also_behind_those_that_have_none(tmp_path):
    (tmp_path / "a.txt").write_text("0 3\n9\n2 0\n")
    dataset = open_data(f"graph:{tmp_path}/a.txt?test=0&fanout=2,3")
    assert dataset.schema == graph_schema(14, (2, 3))
    assert sorted(positives(dataset)) == [(0, 13), (2, 10)]
    assert {i.tables + i.rows for i in dataset.schema.inputs} == {("nodes",) * n + (14,) * n for n in (2, 4, 12)}
    assert dataset.schema.input("second_neighbours").columns[3:7] == ("user_2_1", "user_2_2", "user_2_3", "item_1_1")


def test_room_for_more_users_and_items_keeps_the_rows_of_a_file_that_grows(tmp_path):
    rows = {}
    for name, text in (("a.txt", "0 1\n2 0\n"), ("b.txt", "0 1\n2 0\n7 3\n")):
        (tmp_path / name).write_text(text)
        dataset = open_data(f"graph:{tmp_path}/{name}?test=0&users=10&items=5")
        assert dataset.schema == graph_schema(15, (10, 5))
        rows[name] = set(positives(dataset))
    assert rows == {"a.txt": {(0, 11), (2, 10)}, "b.txt": {(0, 11), (2, 10), (7, 13)}}


def test_ids_may_be_large_and_far_apart(tmp_path):
    (tmp_path / "a.txt").write_text("2147483647 2147483647 5\n")
    dataset = open_data(f"graph:{tmp_path}/a.txt?test=0")
    assert dataset.schema.input("nodes").rows == (2**32, 2**32)
    nodes, near, far, _ = whole(dataset)
    assert set(np.concatenate([nodes, near, far], axis=None).tolist()) == {2**31 - 1, 2**31 + 5, 2**32 - 1}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("part=test", "a.txt: test=0.1 holds out none of its 1 pairs: there is nothing to test on$"),
        ("test=0.999", "a.txt: test=0.999 holds out all of its 1 pairs: none is left to train on$"),
        ("part=valid", "option part=valid: want train or test$"),
        ("test=nan", "option test=nan: want a share from 0 to below 1$"),
        ("test=1", "option test=1.0: want a share from 0 to below 1$"),
        ("test=much", "option test=much: want a share from 0 to below 1$"),
        ("fanout=10", "option fanout=10: want the neighbours of each hop, such as 10,5$"),
        ("fanout=5,-1", "option fanout: '-1' is not a whole number$"),
        ("fanout=5,5,5", "option fanout: '5,5' is not a whole number$"),
        ("fanout=0,5", "option fanout=0,5: want two whole numbers above 0, of a product up to 10000$"),
        ("fanout=1000,1000", "option fanout=1000,1000: want two whole numbers above 0, of a product up to "),
        ("negatives=0", "option negatives=0: want a whole number from 1 to 1000$"),
        ("seed=99999999999", "option seed=99999999999: want a whole number from 0 to 4294967296$"),
        ("users=1", "a.txt: has users up to 1, more than users=1 makes room for$"),
        ("items=2", "a.txt: has items up to 2, more than items=2 makes room for$"),
        ("items=many", "option items: 'many' is not a whole number$"),
        (
            "fanout1=3",
            "unknown option 'fanout1'; graph takes part, test, fanout, negatives, seed, users, items, test_from, test_until, shuffle, shuffle_seed, order$",
        ),
    ],
)
def test_a_wrong_option_is_refused_in_one_line_that_says_why(tmp_path, query, message):
    (tmp_path / "a.txt").write_text("1 2\n")
    with pytest.raises(DataError, match=message) as caught:
        open_data(f"graph:{tmp_path}/a.txt?{query}")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not GOWALLA.is_file(), reason="../shared/data is absent")
def test_gowalla_is_split_into_two_parts_that_make_up_the_file():
    with gzip.open(GOWALLA, "rt") as file:
        rows = [np.array(line.split(), np.int64) for line in file]
    wanted = np.concatenate([(row[0] << 32) + 29_858 + row[1:] for row in rows])
    keys = []
    for part in ("train", "test"):
        dataset = open_data(f"graph:{GOWALLA}?part={part}&fanout=1,1")
        assert dataset.schema.input("nodes").rows == (29_858 + 40_981,) * 2
        nodes, _, _, label = whole(dataset)
        keys.append((nodes[label == 1, 0] << 32) + nodes[label == 1, 1])
    np.testing.assert_array_equal(np.sort(np.concatenate(keys)), np.sort(wanted))
    assert keys[1].size / wanted.size == pytest.approx(0.1, abs=0.003)
