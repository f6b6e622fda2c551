"""From a captured model to the train net that a placement is found for: lookups, loss, splits, gradients, steps, table shards."""

from collections.abc import Mapping
from dataclasses import replace

from htrain.compiler.fusing import fuse_forward
from htrain.errors import UsageError
from htrain.frontend.captured import Captured
from htrain.net.net import Net
from htrain.net.placement import Shard, Split
from htrain.net.rewriting import with_heads
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.spec.tree import checked
from htrain.strategies.strategy import Tags, cache_of, strategies_of
from htrain.tagging.constraints import kept_together, pinned_tables
from htrain.tagging.shards import held_by_steps, place_tables, without_limits
from htrain.tagging.units import Unit, find_units, fixed_tags, table_owners
from htrain.transform.bounds import bound_tables, bounds_of
from htrain.transform.clipping import clip_together
from htrain.transform.constants import copy_constants
from htrain.transform.dropout import seed_dropouts
from htrain.transform.evaluation import as_evaluated, reading_padding, with_loss_of
from htrain.transform.fc_split import split_fcs
from htrain.transform.gradient import add_gradients
from htrain.transform.heads import Parted, part
from htrain.transform.lookups import lower_lookups
from htrain.transform.loss import add_loss, final_sigmoid
from htrain.transform.low_precision import lower_fcs, narrow_fcs
from htrain.transform.modules import name_modules
from htrain.transform.optimizer import add_optimizers
from htrain.transform.padding import read_padding_rows
from htrain.transform.rates import freeze, shares_of
from htrain.transform.row_decay import decay_rows

NO_SPLITS: Mapping[str, int] = {}
NO_FC_SPLITS: Mapping[str, Split] = {}


def lowered(
    captured: Captured,
    cluster: Cluster,
    options: Options,
    *,
    table_splits: Mapping[str, int] = NO_SPLITS,
    fc_splits: Mapping[str, Split] = NO_FC_SPLITS,
) -> tuple[Net, list[Unit], Tags, dict[str, tuple[Shard, ...]]]:
    """The train net before tagging: lookups, loss, gradients and steps are in it, and tables have their devices.

    Also its units, the tags of the ops that have no choice, and the shards of every table. Raises UsageError for splits of tables that are not the compiler's
    to cut.
    """
    shares = shares_of(captured.net, options.rates)
    captured = replace(captured, net=freeze(captured.net, shares))
    strategies, cache = strategies_of(cluster, options), cache_of(cluster, options)
    workers = cluster.groups * cluster.trainers if options.lockstep and not options.holder.averages_rows else 1
    forward = fuse_forward(split_fcs(forward_net(captured, options), fc_splits), options)
    net, gradients = add_gradients(narrow_fcs(forward, options), 1 / workers)
    for strategy in strategies:
        net, gradients = strategy.gradients(net, gradients)
    net, gradients = clip_together(net, gradients, options.dense_clip)
    net, gradients = decay_rows(net, gradients, getattr(options.sparse_optimizer, "lazy_weight_decay", 0.0) / workers)
    net = add_optimizers(net, gradients, options, shares)
    for strategy in strategies:
        net = strategy.steps(net)
    net = bound_tables(net, bounds_of(captured.net), cluster, options)
    shards = cache.shards(net)
    if shards is None:
        shards = _placed(net, cluster, options, table_splits)
    elif table_splits:
        raise UsageError(
            f"--split-table {next(iter(table_splits))} has no effect: {options.holder.words} says where rows are"
        )
    net = cache.lookups(net, shards)
    net = as_trained(copy_constants(net, fixed_tags(net, table_owners(shards))))
    fixed: Tags = fixed_tags(net, table_owners(shards))
    for strategy in strategies:
        fixed = strategy.tags(net, fixed)
    return net, find_units(net, fixed, kept_together(net, fixed, cluster)), fixed, shards


def _placed(
    net: Net, cluster: Cluster, options: Options, table_splits: Mapping[str, int]
) -> dict[str, tuple[Shard, ...]]:
    """The shards of every table on sparse PSs."""
    owners = pinned_tables((n for n, p in net.parameters.items() if p.kind == "table"), net, cluster)
    if options.sparse_sync.store == "mapped":
        return place_tables(net, without_limits(cluster), table_splits, owners)
    return place_tables(net, cluster, table_splits, owners, held_by_steps(net, cluster, options))


def forward_net(captured: Captured, options: Options) -> Net:
    """The net with its loss, in modules, FCs in the precision that is asked for: what splits are made of. Its outputs are (loss, logit), and what heads
    are made of."""
    forward = _parted(captured, options).trained
    net = name_modules(add_loss(seed_dropouts(forward, options.seed), checked(options).loss))
    return lower_fcs(net, options)


def as_trained(net: Net) -> Net:
    """The net with the outputs that a step has, its loss and its logit: heads are of evaluation."""
    return replace(net, outputs=net.outputs[:2])


def net_of_heads(captured: Captured, options: Options) -> Net | None:
    """The net that makes heads of the forward net's last outputs, if the model has any."""
    return _parted(captured, options).heads if captured.heads else None


def evaluation_net(captured: Captured, options: Options) -> Net | None:
    """The net of evaluation, (loss, logit) and heads, where the model does something else there: of whole tables and weights. One that returns no loss there
    has that of training, with nothing dropped."""
    if captured.evaluation is None:
        return None
    # What starts parameters says which rows start as zeros: that is of the trained net
    own = {name: captured.net.parameters[name] for name in captured.evaluation.net.parameters}
    found = replace(captured.evaluation, values=captured.values)
    found = replace(found, net=reading_padding(replace(found.net, parameters=own)))
    if captured.has_own_loss and not found.has_own_loss:
        parted = _parted(found, options)
        scored = replace(parted.trained, outputs=parted.trained.outputs[:1])
        lowered = lower_fcs(as_evaluated(with_heads(scored, parted.heads)), options)
        return with_loss_of(lowered, forward_net(captured, options))
    return as_evaluated(with_heads(as_trained(forward_net(found, options)), net_of_heads(found, options)))


def _parted(captured: Captured, options: Options) -> Parted:
    forward = lower_lookups(read_padding_rows(captured.net, captured.values))
    return part(forward, captured.heads, final_sigmoid(forward, options.loss))
