"""What a cluster and the options ask of each other, before anything is compiled."""

from dataclasses import replace

from htrain.errors import ClusterError
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options


def compatible(cluster: Cluster, options: Options) -> tuple[Cluster, Options]:
    """The cluster and the options as they will run: trainers in lockstep, or behind a cache, have one net replica, and
    PSs that nobody would ask are left out.

    Raises ClusterError for a cluster and options that cannot run together.
    """
    for section in (options.dense_sync, options.sparse_sync, options.cache):
        section.require(cluster, options)
    if cluster.sparse_ps_processes > 1 and options.holder.holds_rows:
        raise ClusterError(
            f"sparse_ps_processes is {cluster.sparse_ps_processes}: behind {options.holder.words}, requests change clocks and rows together, and one "
            "process serves them: leave it out"
        )
    if not options.dense_sync.uses_dense_ps:
        cluster = replace(cluster, dense_ps=0)
    if not options.sparse_sync.served:
        cluster = replace(cluster, sparse_ps=0)
    elif options.sparse_sync.beside:
        cluster = replace(cluster, sparse_ps=cluster.groups * cluster.trainers)
    if options.lockstep or options.holder.holds_rows:
        options = replace(options, net_replicas=1)
    return cluster, options
