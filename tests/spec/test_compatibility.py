"""Clusters and options that cannot run together are refused, and say what would."""

import pytest

from htrain.errors import ClusterError
from htrain.spec.cluster import Cluster
from htrain.spec.compatibility import compatible
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

WORKERS = Cluster(groups=4, trainers=1, group_ps=0)


@pytest.mark.parametrize(
    ("cluster", "options", "says"),
    [
        (
            Cluster(groups=2, dense_ps=0),
            Options(),
            "2 groups are synchronised through dense PSs: dense_ps must be at least 1",
        ),
        (Cluster(groups=2, trainers=2), with_flags(dense_sync="allreduce"), "set groups: 4, trainers: 1, group_ps: 0"),
        (WORKERS, with_flags(dense_sync="ps"), "set groups: 1, trainers: 4, group_ps: 1 or more"),
        (Cluster(sparse_ps=0), with_flags(cache="het"), "sparse_ps must be at least 1"),
        (Cluster(trainers=2, sparse_ps=0), Options(), "2 trainers share the tables: sparse_ps must be at least 1"),
        (Cluster(trainers=2), with_flags(cache="het", cache_staleness=0), "it wants dense sync allreduce"),
        (
            Cluster(trainers=2),
            with_flags(cache="lookahead"),
            "2 of them want dense sync allreduce, and groups: 2, trainers: 1, group_ps: 0",
        ),
        (Cluster(sparse_ps_processes=2), with_flags(cache="het"), "sparse_ps_processes is 2: behind the het cache"),
        (
            Cluster(group_ps=2),
            with_flags(dense_clip="global_norm"),
            "dense_clip global_norm is about the dense weights of a step together, and 2 group PSs would have them apart from the trainers: set group_ps: 0",
        ),
        (
            Cluster(),
            with_flags(sparse_weight_decay=0.1),
            "sparse_optimizer.weight_decay is 0.1: it would change rows of tables that no example asks for: leave it out, say lazy_weight_decay, which is of "
            "the rows that a batch asks for, or say it of dense_optimizer",
        ),
        (
            Cluster(),
            with_flags(sparse_optimizer="sgd", sparse_momentum=0.1),
            "sparse_optimizer.momentum is 0.1: .* asks for: leave it out, choose sparse_optimizer lazy_momentum, which is of the rows that a batch asks",
        ),
        (
            Cluster(),
            with_flags(dense_lazy_weight_decay=0.1),
            "dense_optimizer.lazy_weight_decay is 0.1: a step changes all of a dense weight, so none of it is lazy: say weight_decay",
        ),
        (
            Cluster(),
            with_flags(cache="het", sparse_schedule="cosine"),
            "which the het cache does not count: choose sgd, adagrad, rowwise_adagrad or ftrl at a constant rate, or no cache$",
        ),
        (
            Cluster(),
            with_flags(cache="lookahead", sparse_optimizer="sparse_adam"),
            "sparse_adam steps rows by the number of a table's update, which the lookahead cache does not count",
        ),
        (
            Cluster(),
            with_flags(cache="het", sparse_optimizer="rowwise_adam"),
            "rowwise_adam steps rows by the number of a table's update, which the het cache does not count",
        ),
        (
            Cluster(),
            with_flags(cache="lookahead", sparse_optimizer="lazy_momentum"),
            "lazy_momentum keeps a share of a row's last update, and the lookahead cache adds several of them up to one",
        ),
        (
            Cluster(groups=2, trainers=1, group_ps=0),
            with_flags(dense_sync="allreduce", sparse_sync="gmp", partition="p", sparse_optimizer="lazy_momentum"),
            "and sparse sync gmp adds several of them up to one: choose .* or ftrl, or another --sparse-sync$",
        ),
        (
            Cluster(groups=2, trainers=1, group_ps=0),
            with_flags(dense_sync="allreduce", sparse_sync="gmp", partition="p", sparse_schedule="cosine"),
            "which sparse sync gmp does not count: choose .* or ftrl at a constant rate, or another --sparse-sync$",
        ),
        (
            Cluster(sparse_ps_processes=2),
            with_flags(sparse_optimizer="lazy_momentum"),
            "2 sparse_ps_processes would count apart",
        ),
        (
            Cluster(sparse_ps_processes=2),
            with_flags(sparse_schedule="linear"),
            "2 sparse_ps_processes would count apart",
        ),
        (Cluster(), with_flags(dense_optimizer="sgd", dense_dampening=0.5), "0.5, and there is no momentum to dampen"),
        (
            Cluster(),
            with_flags(dense_optimizer="sgd", dense_nesterov=True),
            "wants a momentum above 0 and no dampening, as in torch.optim.SGD; these are 0 and 0",
        ),
        (WORKERS, with_flags(sparse_sync="allgather"), "it wants dense sync allreduce, and no cache"),
        (WORKERS, with_flags(dense_sync="allreduce", sparse_sync="allgather", cache="het"), "and no cache"),
    ],
)
def test_what_cannot_run_together_is_refused(cluster: Cluster, options: Options, says: str) -> None:
    with pytest.raises(ClusterError, match=says):
        compatible(cluster, options)


def test_workers_in_lockstep_have_one_net_replica_and_no_idle_servers() -> None:
    cluster, options = compatible(WORKERS, with_flags(dense_sync="allreduce"))
    assert (cluster.dense_ps, cluster.sparse_ps, options.net_replicas) == (0, 1, 1)
    cluster, _ = compatible(WORKERS, with_flags(dense_sync="allreduce", sparse_sync="allgather"))
    assert cluster.sparse_ps == 0


def test_what_fits_stays_as_it_is() -> None:
    assert compatible(*compatible(WORKERS, with_flags(cache="het"))) == compatible(WORKERS, with_flags(cache="het"))
    assert compatible(Cluster(groups=2), Options()) == (Cluster(groups=2), Options())
