"""How many roles play a device, how many steps may be under way on one of them at once, and the threads that carry them out."""

from htrain.net.names import WORKERS, role_of
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.spec.settings import Workers


def roles_of(device: str, cluster: Cluster) -> int:
    """How many roles of a run share the examples of a device: every trainer, a group PS of each group; sparse and dense PSs see them all."""
    counts = {
        "trainer": cluster.groups * cluster.trainers,
        WORKERS: cluster.groups * cluster.trainers,
        "group_ps": cluster.groups,
    }
    return counts.get(role_of(device), 1)


def contexts_of(device: str, cluster: Cluster, options: Options) -> int:
    """The most steps that are under way on one role of a device: a trainer's net replicas, those of a group, or those of all."""
    replicas = options.net_replicas
    counts = {"trainer": replicas, WORKERS: replicas, "group_ps": cluster.trainers * replicas}
    return counts.get(role_of(device), cluster.groups * cluster.trainers * replicas)


def staleness_bound(cluster: Cluster, options: Options, net_replicas: int) -> int:
    """Steps under way at once in a group, which is HT 3.1.1's bound on staleness; 0 for no bound, and where there is none but one's own."""
    steps = cluster.trainers * net_replicas
    return steps if options.bounded_staleness and steps > 1 else 0


def server_threads(device: str, cluster: Cluster, options: Options, workers: Workers = "auto") -> int:
    """The threads of each process of a PS that run ops: `workers`, where `auto` is one for each of its cores, and no more than there are steps to serve."""
    if workers != "auto":
        return workers
    return max(1, min(cluster.cores_of(device), contexts_of(device, cluster, options)) // cluster.processes_of(device))


def busy_cores(device: str, cluster: Cluster, options: Options) -> int:
    """The most cores that a role can keep busy: the threads of its processes that run ops, the one that receives, and the one that moves bytes."""
    beside = 1 if role_of(device) == "trainer" else 2
    threads = options.net_replicas if role_of(device) == "trainer" else server_threads(device, cluster, options)
    return min(cluster.cores_of(device), cluster.processes_of(device) * (threads + beside))


def batches_read_ahead(options: Options) -> int:
    """Batches that a trainer holds beside those of its steps: the reader's queue, and those that a cache is told of."""
    return 2 * options.net_replicas + 1 + (options.window if options.holder.holds_rows else 0)
