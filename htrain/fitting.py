"""What a cluster and the options ask of each other, before anything is compiled."""

from dataclasses import replace

from htrain.cluster import Cluster
from htrain.errors import ClusterError
from htrain.options import Options


def fitting(cluster: Cluster, options: Options) -> tuple[Cluster, Options]:
    """Both as they will run: trainers in lockstep, or behind a cache, have one net replica, and dense PSs serve EASGD alone.

    Raises ClusterError for what cannot run together.
    """
    trainers = cluster.groups * cluster.trainers
    if options.dense_sync == "easgd" and cluster.groups > 1 and cluster.dense_ps == 0:
        raise ClusterError(f"{cluster.groups} groups are synchronised through dense PSs: dense_ps must be at least 1")
    if options.dense_sync == "allreduce" and (cluster.trainers > 1 or cluster.group_ps):
        raise ClusterError(
            f"dense sync allreduce keeps all dense weights on every trainer: set groups: {trainers}, trainers: 1, group_ps: 0 "
            f"(now {cluster.groups} groups of {cluster.trainers} trainers and {cluster.group_ps} group PSs)"
        )
    if options.dense_sync == "ps" and (cluster.groups > 1 or not cluster.group_ps):
        raise ClusterError(
            f"dense sync ps keeps the dense weights on the group PSs of one group: set groups: 1, trainers: {trainers}, group_ps: 1 or more"
        )
    if options.sparse_sync == "allgather" and (options.dense_sync != "allreduce" or options.cache != "none"):
        raise ClusterError("sparse sync allgather has all tables on every trainer: it wants dense sync allreduce, and no cache")
    if options.sparse_sync == "ps" and cluster.sparse_ps == 0 and trainers > 1:
        raise ClusterError(f"{trainers} trainers share the tables: sparse_ps must be at least 1")
    if options.cache == "het" and not cluster.sparse_ps:
        raise ClusterError("a het cache stands between trainers and sparse PSs: sparse_ps must be at least 1")
    if options.cache == "lookahead" and trainers > 1 and options.dense_sync != "allreduce":
        raise ClusterError(
            f"several trainers keep their look-ahead caches alike step by step: {trainers} of them want dense sync allreduce, and groups: "
            f"{trainers}, trainers: 1, group_ps: 0"
        )
    if options.cache_device != "cpu" and options.cache != "lookahead":
        raise ClusterError(f"a trainer computes on a {options.cache_device} device out of a look-ahead cache: it wants --cache lookahead")
    if options.cache == "het" and options.cache_staleness == 0 and trainers > 1 and options.dense_sync != "allreduce":
        raise ClusterError("a cache without staleness makes all trainers step together: it wants dense sync allreduce")
    if options.dense_sync != "easgd":
        cluster = replace(cluster, dense_ps=0)
    if options.sparse_sync == "allgather":
        cluster = replace(cluster, sparse_ps=0)
    if options.lockstep or options.cache != "none":
        options = replace(options, net_replicas=1)
    return cluster, options
