"""Which worker owns which row and trains which sample, by the graph of samples and rows (HET-GMP 5.1, 5.2; docs/decisions/bigraph.md).

Arrays in, arrays out: a `Bigraph` and how to cut it go in, a `Partition` comes out, the same for any number of threads. `partition` is the way in;
`at_random` is a control, and `algorithm1` the paper's own algorithm, kept as its baseline.
"""

from htrain.tagging.bigraph.fetches import Fetches, fetches
from htrain.tagging.bigraph.graph import Bigraph
from htrain.tagging.bigraph.partition import Partition, Request, at_random, partition

__all__ = ["Bigraph", "Fetches", "Partition", "Request", "at_random", "fetches", "partition"]
