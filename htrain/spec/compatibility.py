"""What a cluster and the options ask of each other, before anything is compiled."""

from dataclasses import replace

from htrain.errors import ClusterError
from htrain.spec.cluster import Cluster
from htrain.spec.optimizers import OF_DENSE, OF_ROWS, LazyMomentum, RowwiseAdam, Sgd, SparseAdam
from htrain.spec.options import Options
from htrain.spec.schedules import ConstantRate


def compatible(cluster: Cluster, options: Options) -> tuple[Cluster, Options]:
    """The cluster and the options as they will run: trainers in lockstep, or behind a cache, have one net replica, and
    PSs that nobody would ask are left out.

    Raises ClusterError for a cluster and options that cannot run together.
    """
    for section in (options.dense_sync, options.sparse_sync, options.cache, options.dense_clip):
        section.require(cluster, options)
    if cluster.sparse_ps_processes > 1 and options.holder.holds_rows:
        raise ClusterError(
            f"sparse_ps_processes is {cluster.sparse_ps_processes}: behind {options.holder.words}, requests change clocks and rows together, and one "
            "process serves them: leave it out"
        )
    _require_steps(options)
    _require_row_counts(cluster, options)
    if not options.dense_sync.uses_dense_ps:
        cluster = replace(cluster, dense_ps=0)
    if not options.sparse_sync.served:
        cluster = replace(cluster, sparse_ps=0)
    elif options.sparse_sync.beside:
        cluster = replace(cluster, sparse_ps=cluster.groups * cluster.trainers)
    if options.lockstep or options.holder.holds_rows:
        options = replace(options, net_replicas=1)
    return cluster, options


def _require_steps(options: Options) -> None:
    """Raises ClusterError for optimizers that torch.optim refuses: of the rows that a batch asks for, and of Nesterov's momentum."""
    for name in OF_DENSE:
        if getattr(options.sparse_optimizer, name, 0):
            raise ClusterError(
                f"sparse_optimizer.{name} is {getattr(options.sparse_optimizer, name)}: it would change rows of tables that no example asks for: leave it "
                f"out, {_INSTEAD.get(name, '')}or say it of dense_optimizer"
            )
    for name in OF_ROWS:
        if getattr(options.dense_optimizer, name, 0):
            raise ClusterError(
                f"dense_optimizer.{name} is {getattr(options.dense_optimizer, name)}: a step changes all of a dense weight, so none of it is lazy: say "
                "weight_decay, or say it of sparse_optimizer"
            )
    dense = options.dense_optimizer
    if isinstance(dense, Sgd) and dense.dampening and not dense.momentum:
        raise ClusterError(
            f"dense_optimizer.dampening is {dense.dampening:g}, and there is no momentum to dampen: set momentum, or leave it out"
        )
    if isinstance(dense, Sgd) and dense.nesterov and (dense.dampening or not dense.momentum):
        raise ClusterError(
            f"dense_optimizer.nesterov wants a momentum above 0 and no dampening, as in torch.optim.SGD; these are {dense.momentum:g} and {dense.dampening:g}"
        )


_INSTEAD = {
    "weight_decay": "say lazy_weight_decay, which is of the rows that a batch asks for, ",
    "momentum": "choose sparse_optimizer lazy_momentum, which is of the rows that a batch asks for, ",
}


def _require_row_counts(cluster: Cluster, options: Options) -> None:
    """Raises ClusterError where rows step by the number of the update, and are stepped by who cannot know it."""
    optimizer = options.sparse_optimizer
    counts = isinstance(optimizer, SparseAdam | RowwiseAdam | LazyMomentum)
    by_number = f"sparse_optimizer {optimizer.kind}" if counts else ""
    if options.sparse_schedule != ConstantRate():
        by_number = f"sparse_schedule {options.sparse_schedule.kind}"
    without = "no cache" if options.cache.holds_rows else "another --sparse-sync"
    if isinstance(optimizer, LazyMomentum) and options.holder.holds_rows:
        raise ClusterError(
            f"{by_number} keeps a share of a row's last update, and {options.holder.words} adds several of them up to one: choose sgd, adagrad, "
            f"rowwise_adagrad or ftrl, or {without}"
        )
    if by_number and options.holder.holds_rows:
        raise ClusterError(
            f"{by_number} steps rows by the number of a table's update, which {options.holder.words} does not count: choose sgd, adagrad, "
            f"rowwise_adagrad or ftrl at a constant rate, or {without}"
        )
    if by_number and cluster.sparse_ps_processes > 1:
        raise ClusterError(
            f"{by_number} steps rows by the number of a table's update, and {cluster.sparse_ps_processes} sparse_ps_processes would count apart: leave it out"
        )
