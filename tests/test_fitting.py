"""Clusters and options that cannot run together are refused, and say what would."""

import pytest

from htrain.cluster import Cluster
from htrain.errors import ClusterError
from htrain.fitting import fitting
from htrain.options import Options

WORKERS = Cluster(groups=4, trainers=1, group_ps=0)


@pytest.mark.parametrize(
    ("cluster", "options", "says"),
    [
        (
            Cluster(groups=2, dense_ps=0),
            Options(),
            "2 groups are synchronised through dense PSs: dense_ps must be at least 1",
        ),
        (Cluster(groups=2, trainers=2), Options(dense_sync="allreduce"), "set groups: 4, trainers: 1, group_ps: 0"),
        (WORKERS, Options(dense_sync="ps"), "set groups: 1, trainers: 4, group_ps: 1 or more"),
        (Cluster(sparse_ps=0), Options(cache="het"), "sparse_ps must be at least 1"),
        (Cluster(trainers=2, sparse_ps=0), Options(), "2 trainers share the tables: sparse_ps must be at least 1"),
        (Cluster(trainers=2), Options(cache="het", cache_staleness=0), "it wants dense sync allreduce"),
        (Cluster(trainers=2), Options(cache="lookahead"), "2 of them want dense sync allreduce, and groups: 2, trainers: 1, group_ps: 0"),
        (WORKERS, Options(sparse_sync="allgather"), "it wants dense sync allreduce, and no cache"),
        (WORKERS, Options(dense_sync="allreduce", sparse_sync="allgather", cache="het"), "and no cache"),
    ],
)
def test_what_cannot_run_together_is_refused(cluster: Cluster, options: Options, says: str) -> None:
    with pytest.raises(ClusterError, match=says):
        fitting(cluster, options)


def test_workers_in_lockstep_have_one_net_replica_and_no_idle_servers() -> None:
    cluster, options = fitting(WORKERS, Options(dense_sync="allreduce"))
    assert (cluster.dense_ps, cluster.sparse_ps, options.net_replicas) == (0, 1, 1)
    cluster, _ = fitting(WORKERS, Options(dense_sync="allreduce", sparse_sync="allgather"))
    assert cluster.sparse_ps == 0


def test_what_fits_stays_as_it_is() -> None:
    assert fitting(*fitting(WORKERS, Options(cache="het"))) == fitting(WORKERS, Options(cache="het"))
    assert fitting(Cluster(groups=2), Options()) == (Cluster(groups=2), Options())
