"""What a cluster and the options ask of each other, before anything is compiled."""

from dataclasses import replace

from htrain.errors import ClusterError
from htrain.spec.cache import HetCache, LookAheadCache
from htrain.spec.cluster import Cluster
from htrain.spec.dense_sync import AllReduce, Easgd, ParameterServer
from htrain.spec.options import Options
from htrain.spec.sparse_sync import AllGather


def compatible(cluster: Cluster, options: Options) -> tuple[Cluster, Options]:
    """Both as they will run: trainers in lockstep, or behind a cache, have one net replica, and dense PSs serve EASGD alone.

    Raises ClusterError for what cannot run together.
    """
    trainers = cluster.groups * cluster.trainers
    dense, sparse, cache = options.dense_sync, options.sparse_sync, options.cache
    if isinstance(dense, Easgd) and cluster.groups > 1 and cluster.dense_ps == 0:
        raise ClusterError(f"{cluster.groups} groups are synchronised through dense PSs: dense_ps must be at least 1")
    if isinstance(dense, AllReduce) and (cluster.trainers > 1 or cluster.group_ps):
        raise ClusterError(
            f"dense sync allreduce keeps all dense weights on every trainer: set groups: {trainers}, trainers: 1, group_ps: 0 "
            f"(now {cluster.groups} groups of {cluster.trainers} trainers and {cluster.group_ps} group PSs)"
        )
    if isinstance(dense, ParameterServer) and (cluster.groups > 1 or not cluster.group_ps):
        raise ClusterError(
            f"dense sync ps keeps the dense weights on the group PSs of one group: set groups: 1, trainers: {trainers}, group_ps: 1 or more"
        )
    if isinstance(sparse, AllGather) and (not isinstance(dense, AllReduce) or cache.kind != "none"):
        raise ClusterError("sparse sync allgather has all tables on every trainer: it wants dense sync allreduce, and no cache")
    if not isinstance(sparse, AllGather) and cluster.sparse_ps == 0 and trainers > 1:
        raise ClusterError(f"{trainers} trainers share the tables: sparse_ps must be at least 1")
    if isinstance(cache, HetCache) and not cluster.sparse_ps:
        raise ClusterError("a het cache stands between trainers and sparse PSs: sparse_ps must be at least 1")
    if isinstance(cache, LookAheadCache) and trainers > 1 and not isinstance(dense, AllReduce):
        raise ClusterError(
            f"several trainers keep their look-ahead caches alike step by step: {trainers} of them want dense sync allreduce, and groups: "
            f"{trainers}, trainers: 1, group_ps: 0"
        )
    if isinstance(cache, HetCache) and cache.staleness == 0 and trainers > 1 and not isinstance(dense, AllReduce):
        raise ClusterError("a cache without staleness makes all trainers step together: it wants dense sync allreduce")
    if not isinstance(dense, Easgd):
        cluster = replace(cluster, dense_ps=0)
    if isinstance(sparse, AllGather):
        cluster = replace(cluster, sparse_ps=0)
    if options.lockstep or cache.kind != "none":
        options = replace(options, net_replicas=1)
    return cluster, options
