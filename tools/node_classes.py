"""A graph whose nodes are to be told apart, as examples of nodes with sampled neighbours: node classification, as GraphSAGE is measured with (HET 5).

    python tools/node_classes.py out/ [--nodes 100000] [--examples 200000] [--fanout 5] [--seed 0]

Degrees follow a power law, and `--alike` of a node's neighbours are of its own class, of two. An example is a node, `fanout` neighbours of it and as many of
each of those, all rows of one table, with its class as label: `models/graphsage.py:build_classes` learns it. A tenth of the nodes is held out for `test`.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import htrain
from htrain.errors import Error, UsageError

Ids = NDArray[np.int64]
_SKEW = 0.8  # of the power law: the k-th node of a class is a neighbour about k^-0.8 times as often as the first
_DEGREE = 20


class ClassedGraph:
    """`degree` neighbours of each of `nodes` nodes; node n is of class n % 2, popular nodes have small numbers."""

    def __init__(self, nodes: int, *, alike: float, seed: int) -> None:
        random = np.random.default_rng(seed)
        of_class = nodes // 2
        weights = np.arange(1, of_class + 1) ** -_SKEW
        reach = np.cumsum(weights / weights.sum())
        ranks = np.searchsorted(reach, random.random((nodes, _DEGREE))).clip(max=of_class - 1)
        own = np.arange(nodes)[:, None] % 2
        other = random.random((nodes, _DEGREE)) >= alike
        self.neighbours: Ids = 2 * ranks + (own ^ other)
        held_out = random.permutation(nodes)
        self.parts = {"test": held_out[: nodes // 10], "train": held_out[nodes // 10 :]}

    def examples(self, part: str, count: int, fanout: int, random: np.random.Generator) -> Ids:
        """ids[count, 1 + F + F F]: nodes of a part, again and again in another order, with neighbours drawn anew each time."""
        nodes = self.parts[part]
        rounds = -(-count // nodes.size)
        first = np.concatenate([random.permutation(nodes) for _ in range(rounds)])[:count]
        near = self._drawn(first, fanout, random)
        far = self._drawn(near.reshape(-1), fanout, random).reshape(count, -1)
        return np.concatenate([first[:, None], near, far], axis=1)

    def _drawn(self, nodes: Ids, fanout: int, random: np.random.Generator) -> Ids:
        return self.neighbours[nodes[:, None], random.integers(0, _DEGREE, (nodes.size, fanout))]


def written(folder: Path, part: str, *, nodes: int, examples: int, fanout: int, alike: float, seed: int) -> str:
    """The URI of a packed file of examples. Raises UsageError where there are fewer than 20 nodes."""
    if nodes < 20:
        raise UsageError(f"--nodes {nodes}: want 20 at least")
    ids = ClassedGraph(nodes, alike=alike, seed=seed).examples(part, examples, fanout, np.random.default_rng(seed + 1))
    text, packed = folder / f"{part}.libfm", folder / f"{part}.packed"
    with text.open("w") as file:
        for row in ids.tolist():
            file.write(f"{row[0] % 2} " + " ".join(f"{each}:1" for each in row) + "\n")
    htrain.pack(f"libfm:{text}?rows={nodes}", out=packed)
    text.unlink()
    return f"packed:{packed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--examples", type=int, default=200_000)
    parser.add_argument("--fanout", type=int, default=5)
    parser.add_argument("--alike", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    try:
        for part, count in (("train", asked.examples), ("test", max(asked.examples // 10, 1))):
            sizes = {"nodes": asked.nodes, "fanout": asked.fanout, "alike": asked.alike, "seed": asked.seed}
            print(written(asked.out, part, examples=count, **sizes))
    except Error as error:
        print(f"node_classes: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
