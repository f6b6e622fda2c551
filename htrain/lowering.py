"""From a captured model to the train net that a placement is found for: lookups, loss, splits, gradients, steps, table shards."""

from collections.abc import Mapping

from htrain.frontend.captured import Captured
from htrain.net import Net
from htrain.placement import Shard, Split
from htrain.spec.cache import LookAheadCache
from htrain.spec.cluster import Cluster
from htrain.spec.dense_sync import AllReduce, ParameterServer
from htrain.spec.options import Options
from htrain.spec.sparse_sync import AllGather
from htrain.spec.tree import checked
from htrain.tagging.constraints import kept_together, pinned_tables
from htrain.tagging.shards import held_by_steps, place_tables, without_limits
from htrain.tagging.units import Unit, find_units, fixed_tags, pulled_tags, table_owners
from htrain.transform.all_reduce import all_gather_rows, all_reduce_gradients
from htrain.transform.cache_lookups import cache_lookups, choose_caches
from htrain.transform.constants import copy_constants
from htrain.transform.fc_split import split_fcs
from htrain.transform.fuse import fuse_forward
from htrain.transform.gradient import add_gradients
from htrain.transform.look_ahead import choose_lookahead, look_ahead
from htrain.transform.lookups import lower_lookups
from htrain.transform.loss import add_loss
from htrain.transform.low_precision import lower_fcs, narrow_fcs
from htrain.transform.modules import name_modules
from htrain.transform.optimizer import add_optimizers
from htrain.transform.padding import read_padding_rows
from htrain.transform.pull_weights import pull_weights
from htrain.transform.shard_lookups import shard_lookups

NO_SPLITS: Mapping[str, int] = {}
NO_FC_SPLITS: Mapping[str, Split] = {}


def lowered(
    captured: Captured,
    cluster: Cluster,
    options: Options,
    *,
    table_splits: Mapping[str, int] = NO_SPLITS,
    fc_splits: Mapping[str, Split] = NO_FC_SPLITS,
) -> tuple[Net, list[Unit], dict[int, str], dict[str, tuple[Shard, ...]]]:
    """The train net before tagging: lookups, loss, gradients and steps are in it, and tables have their devices.

    Also its units, the tags of the ops that have no choice, and the shards of every table.
    """
    mean = isinstance(options.cache, LookAheadCache)  # a trainer's own rows take its own gradient; then they are averaged, as dense gradients are
    workers = cluster.groups * cluster.trainers if options.lockstep and not mean else 1
    forward = fuse_forward(split_fcs(forward_net(captured, options), fc_splits), options)
    net, gradients = add_gradients(narrow_fcs(forward, options), 1 / workers)
    if isinstance(options.dense_sync, AllReduce):
        net, gradients = all_reduce_gradients(net, gradients, options.dense_sync.bucket_bytes, mean=mean)
    net = add_optimizers(net, gradients, options)
    if isinstance(options.sparse_sync, AllGather):
        net = all_gather_rows(net)
    if isinstance(options.dense_sync, ParameterServer):
        net = pull_weights(net)
    caches = choose_caches(net, options)
    owners = pinned_tables((n for n, p in net.parameters.items() if p.kind == "table"), net, cluster)
    if options.sparse_sync.store == "mapped":
        shards = place_tables(net, without_limits(cluster), table_splits, owners)
    else:
        shards = place_tables(net, cluster, table_splits, owners, held_by_steps(net, cluster, options))
    ahead = choose_lookahead(net, options, cluster)
    cached = {table for spec in caches for table in spec.tables} | {cache.table for cache in ahead}
    net = shard_lookups(net, {table: parts for table, parts in shards.items() if table not in cached})
    net = look_ahead(cache_lookups(net, shards, caches, options), shards, ahead)
    net = copy_constants(net, fixed_tags(net, table_owners(shards)))
    fixed = fixed_tags(net, table_owners(shards))
    if isinstance(options.dense_sync, ParameterServer):
        fixed = pulled_tags(net, fixed, cluster.group_ps)
    return net, find_units(net, fixed, kept_together(net, fixed, cluster)), fixed, shards


def forward_net(captured: Captured, options: Options) -> Net:
    """The net with its loss, in modules, FCs in the precision that is asked for: what splits are made of."""
    forward = lower_lookups(read_padding_rows(captured.net, captured.values))
    net = name_modules(add_loss(forward, checked(options).loss))
    return lower_fcs(net, options)
