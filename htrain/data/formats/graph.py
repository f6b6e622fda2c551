"""Link prediction on a graph of users and items, for GraphSAGE (Hamilton et al. 2017): pairs with the neighbours sampled around them.

A node is a row of one table `nodes`: user u is row u, item i is row `users` + i. An example is a pair of a user and an item,
with label 1 for a pair of the file, and 0 for that user with an item drawn by popularity^0.75, other than the user's own ones unless
ten draws bring up none. Around each end F neighbours are sampled, and around each of these G, with replacement; a node without neighbours
samples itself. The edge of a pair is hidden from its example and from those of its negatives, as if the file did not have it.

A share `test` of the pairs is held out, chosen by a hash of the two ids alone. Their edges are no part of the graph, for either part;
no negatives of a user are, for `part=train`, the items of the user's training pairs, and for `part=test` those of all the user's pairs.

Pairs come in an order shuffled by `seed`, each followed by its negatives. Example e is a function of (options, file, e) alone: every
epoch brings the same draws. A line that cannot be read is counted with the first chunk, whose shard speaks for the file.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from htrain.data.address import AnyPath
from htrain.data.format import Format
from htrain.data.graph_file import Pairs, read_pairs
from htrain.data.graph_loops import Graph, Ints, held_out, sample
from htrain.data.malformed import Malformed
from htrain.data.reader import Dataset
from htrain.data.rows import Array, Rows
from htrain.data.schema import Input, Schema
from htrain.errors import DataError

_POPULARITY_POWER = 0.75  # of word2vec's negatives (Mikolov et al. 2013)
_CHUNK_EXAMPLES = 4096
_CHUNK_IDS = 1 << 19  # which hold a chunk to some MB, whatever the fanout
_MAX_SAMPLED = 10_000  # neighbours of an end: each is a row that an example looks up


@dataclass(frozen=True)
class GraphOptions:
    """Options of a graph: which pairs to read, how many negatives each has, and how many neighbours are sampled at each hop."""

    part: str = "train"
    test: float = 0.1
    fanout: tuple[int, int] = (10, 5)
    negatives: int = 1
    seed: int = 0
    users: int = 0  # room for so many; 0: for those of the file
    items: int = 0

    def __post_init__(self) -> None:
        """Raises DataError for options that make no examples."""
        if self.part not in ("train", "test"):
            raise DataError(f"option part={self.part}: want train or test")
        if not 0 <= self.test < 1:  # false for nan, too
            raise DataError(f"option test={self.test}: want a share from 0 to below 1")
        if min(self.fanout) < 1 or math.prod(self.fanout) > _MAX_SAMPLED:
            sizes = ",".join(map(str, self.fanout))
            raise DataError(f"option fanout={sizes}: want two whole numbers above 0, of a product up to {_MAX_SAMPLED}")
        if not 1 <= self.negatives <= 1000:
            raise DataError(f"option negatives={self.negatives}: want a whole number from 1 to 1000")
        for name in ("seed", "users", "items"):
            if not 0 <= getattr(self, name) <= 2**32:
                raise DataError(f"option {name}={getattr(self, name)}: want a whole number from 0 to {2**32}")


def graph_options(values: Mapping[str, str]) -> GraphOptions:
    """The options of a URI's query; what it leaves out has its default. Raises DataError."""
    default = GraphOptions()
    first, comma, second = values.get("fanout", ",".join(map(str, default.fanout))).partition(",")
    if not comma:
        raise DataError(f"option fanout={first}: want the neighbours of each hop, such as 10,5")
    try:
        share = float(values.get("test", default.test))
    except ValueError as error:
        raise DataError(f"option test={values['test']}: want a share from 0 to below 1") from error
    numbers = {name: _whole(name, values[name]) for name in ("negatives", "seed", "users", "items") if name in values}
    fanout = _whole("fanout", first), _whole("fanout", second)
    return GraphOptions(values.get("part", default.part), share, fanout, **numbers)


def _whole(key: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 19:
        raise DataError(f"option {key}: '{text}' is not a whole number")
    return int(text)


def open_graph(path: AnyPath, options: GraphOptions) -> Dataset:
    """A file of adjacency lists, read whole. Raises DataError for a file without pairs, or a part of it without any."""
    pairs = read_pairs(path)
    try:
        room = replace(
            pairs,
            num_users=_room("users", options.users, pairs.num_users),
            num_items=_room("items", options.items, pairs.num_items),
        )
        graph = build_graph(room, options)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    schema = graph_schema(room.num_users + room.num_items, options.fanout)
    return Dataset(GraphSource(path, options, graph, room), schema)


def _room(name: str, wanted: int, seen: int) -> int:
    if 0 < wanted < seen:
        raise DataError(f"has {name} up to {seen - 1}, more than {name}={wanted} makes room for")
    return wanted or seen


def graph_schema(num_nodes: int, fanout: tuple[int, int]) -> Schema:
    """`nodes`: int64[B,2], the user and the item; `neighbours`: int64[B,2*F]; `second_neighbours`: int64[B,2*F*G].

    The user's come before the item's, those of a neighbour together. All are rows of one table `nodes`.
    """
    near = tuple(f"{end}_{a + 1}" for end in ("user", "item") for a in range(fanout[0]))
    far = tuple(f"{name}_{b + 1}" for name in near for b in range(fanout[1]))
    return Schema(
        tuple(
            Input(
                name,
                "ids",
                len(columns),
                columns=columns,
                rows=(num_nodes,) * len(columns),
                tables=("nodes",) * len(columns),
            )
            for name, columns in (("nodes", ("user", "item")), ("neighbours", near), ("second_neighbours", far))
        )
    )


def build_graph(pairs: Pairs, options: GraphOptions) -> Graph:
    """The edges that may be sampled and the pairs to predict. Raises DataError when either would be none."""
    held = np.empty(pairs.users.size, np.bool_)
    held_out(pairs.users, pairs.items, options.test, held)
    chosen = ~held if options.part == "train" else held
    if held.all():
        raise DataError(f"test={options.test} holds out all of its {held.size} pairs: none is left to train on")
    if not chosen.any():
        raise DataError(f"test={options.test} holds out none of its {held.size} pairs: there is nothing to test on")
    user_ids, users = np.unique(pairs.users, return_inverse=True)
    item_ids, items = np.unique(pairs.items, return_inverse=True)
    popularity = np.bincount(items[~held], minlength=item_ids.size)
    names, items = np.concatenate([user_ids, pairs.num_users + item_ids]), items + user_ids.size
    starts, ends = _adjacency(users[~held], items[~held], names.size)
    owned = (starts, ends) if options.part == "train" else _adjacency(users, items, names.size)
    order = np.random.default_rng([options.seed, 1]).permutation(np.flatnonzero(chosen))
    reach = np.cumsum(popularity**_POPULARITY_POWER)
    return Graph(names, starts, ends, users[order], items[order], *owned, reach)


def _adjacency(users: Ints, items: Ints, num_nodes: int) -> tuple[Ints, Ints]:
    """starts[num_nodes+1] and ends[2*P] of edges in both directions; the pairs are ascending, so each node's ends are."""
    sources, targets = np.concatenate([users, items]), np.concatenate([items, users])
    counts = np.bincount(sources, minlength=num_nodes)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]), targets[np.argsort(sources, kind="stable")]


@dataclass(frozen=True, eq=False)
class GraphSource:
    """The examples of a graph; a chunk is a number of them."""

    path: AnyPath
    options: GraphOptions
    graph: Graph
    pairs: Pairs

    @property
    def name(self) -> str:
        """The file."""
        return str(self.path)

    def num_examples(self) -> int:
        """Pairs with their negatives."""
        return self.graph.users.size * (self.options.negatives + 1)

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """See `Source`. The lines that could not be read are reported with the first chunk."""
        size, total = self._chunk_examples(num_shards), self.num_examples()
        for number in range(first + (shard - first) % num_shards, -(-total // size), num_shards):
            if number == 0:
                malformed.saw(self.pairs.good + self.pairs.bad, self.pairs.bad, self.pairs.faults.__getitem__)
            start = number * size
            yield number, self.examples(start, min(total, start + size))

    def place(self, *, number: int, row: int, num_shards: int) -> str:
        """The number of the example."""
        return f"{self.path}: example {number * self._chunk_examples(num_shards) + row + 1}"

    def _chunk_examples(self, num_shards: int) -> int:
        """Chunks of bounded memory, and small enough that every shard gets several."""
        near, far = self.options.fanout[0], math.prod(self.options.fanout)
        most = min(_CHUNK_EXAMPLES, _CHUNK_IDS // (2 * (1 + near + far)))
        return max(1, min(most, self.num_examples() // (8 * num_shards)))

    def examples(self, start: int, end: int) -> Rows:
        """Examples `start` to `end` - 1, with the schema's inputs and `label`."""
        count, (near, far) = end - start, self.options.fanout
        nodes, neighbours = np.empty((count, 2), np.int64), np.empty((count, 2 * near), np.int64)
        second, label = np.empty((count, 2 * near * far), np.int64), np.empty(count, np.float32)
        sample(
            self.graph,
            self.options.seed,
            first=start,
            negatives=self.options.negatives,
            nodes=nodes,
            near=neighbours,
            far=second,
            label=label,
        )
        fixed: dict[str, Array] = {
            "nodes": nodes,
            "neighbours": neighbours,
            "second_neighbours": second,
            "label": label,
        }
        return Rows(count, fixed, {})


FORMATS = (
    Format(
        "graph",
        lambda path, values: open_graph(path, graph_options(values)),
        tuple(field.name for field in fields(GraphOptions)),
        is_joined=False,
    ),
)
