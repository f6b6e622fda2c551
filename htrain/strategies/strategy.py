"""What a strategy may do to a plan while it is made. The pipeline asks all that are chosen at each of these places, and knows none by name."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Generic, TypeVar

from htrain.errors import UsageError
from htrain.net.net import Net
from htrain.net.placement import Shard
from htrain.spec.cluster import Cluster
from htrain.spec.fields import Section
from htrain.spec.halves import HALVES
from htrain.spec.options import Options
from htrain.spec.row_holder import RowHolder
from htrain.transform.shard_lookups import shard_lookups

S = TypeVar("S", bound=Section)
Gradients = Mapping[str, str]  # of each parameter, the blob that is its gradient
Tags = Mapping[int, str]  # of ops by position, their device


class Strategy(Generic[S]):
    """The compile half of one section of the options, which by itself changes nothing.

    `section` is what the user said, `cluster` and `options` are as they will run.
    """

    def __init__(self, section: S, cluster: Cluster, options: Options) -> None:
        self.section, self.cluster, self.options = section, cluster, options

    def gradients(self, net: Net, gradients: Gradients) -> tuple[Net, Gradients]:
        """Change the gradients of parameters. Requires: no optimizer steps yet."""
        return net, gradients

    def steps(self, net: Net) -> Net:
        """Change optimizer steps, and what reads parameters. Requires: every trained parameter has its step; tables are whole."""
        return net

    def tags(self, net: Net, fixed: Tags) -> Tags:
        """The devices of ops that have no choice. Requires: tables have their devices."""
        return fixed

    def encoded(self, net: Net) -> Net:
        """Encode what travels. Requires: every op is tagged."""
        return net

    def nets(self, parts: Mapping[str, Net]) -> Mapping[str, Net]:
        """The nets that roles run besides those of a step, by name. Requires: `parts` by device, as they will run."""
        return {}

    def centers(self, parts: Mapping[str, Net]) -> Mapping[str, str]:
        """The dense PS of each weight that has a centre there."""
        return {}

    def notes(self, train: Net) -> Iterator[str]:
        """What was decided that the user may want to know, a sentence each."""
        yield from ()


class HoldsRows(Strategy[S]):
    """The compile half of what stands between trainers and tables."""

    def shards(self, net: Net) -> dict[str, tuple[Shard, ...]] | None:
        """The shards of every table in row order, where it is not the compiler's to say. Requires: tables are whole."""
        return None

    def lookups(self, net: Net, shards: Mapping[str, Sequence[Shard]]) -> Net:
        """Cut tables, and put their lookups and optimizer steps where rows are. Requires: `shards` of each table in row order."""
        return shard_lookups(net, shards)

    def evaluated(self, net: Net, train: Net) -> Net:
        """A net that only evaluation runs, of the ids that data for such a plan has. Requires: tables are whole in both, and lookups lowered."""
        return net

    def require_tables(self, tables: Collection[str]) -> None:
        """Raises UsageError where the cache stands before no table of the model: nothing of it would run."""
        if not tables:
            raise UsageError(
                f"--cache {self.section.kind} has no effect: it is of tables that are trained, but for those that --cache-table leaves out; there are none"
            )


def strategies_of(cluster: Cluster, options: Options) -> tuple[Strategy[Section], ...]:
    """The compile halves of what the options choose besides, in the order in which they change a net."""
    chosen: tuple[Section, ...] = (options.dense_sync, options.sparse_sync)
    return tuple(_half(section, cluster, options) for section in chosen if section is not options.holder)


def cache_of(cluster: Cluster, options: Options) -> HoldsRows[Section]:
    """The compile half of what stands between trainers and tables."""
    half = _half(options.holder, cluster, options)
    assert isinstance(half, HoldsRows)
    return half


def _half(section: Section, cluster: Cluster, options: Options) -> Strategy[Section]:
    own = HALVES.get(type(section))
    found = own.compile if own else import_module(f"htrain.strategies.{section.home}").COMPILE if section.home else None
    half: type[Strategy[Section]] = found or (HoldsRows if isinstance(section, RowHolder) else Strategy)
    return half(section, cluster, options)
