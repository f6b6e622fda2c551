"""Where centres are: hosts, the names of their nets and parameters, and who plays them."""

import pytest

from htrain.executor.roles.endpoints import centre_endpoint
from htrain.spec.centres import centre_name, hosts_of
from htrain.spec.cluster import Cluster
from htrain.spec.dense_sync import AllReduce, DenseSync, Easgd, ModelAveraging


@pytest.mark.parametrize(
    ("sync", "cluster", "hosts"),
    [
        (Easgd(), Cluster(groups=2, dense_ps=2), ("dense_ps:0", "dense_ps:1")),
        (Easgd(through="groups"), Cluster(groups=3), ("group:0", "group:1", "group:2")),
        (ModelAveraging(through="groups"), Cluster(groups=1), ()),
        (AllReduce(), Cluster(groups=3), ()),
    ],
)
def test_hosts(sync: DenseSync, cluster: Cluster, hosts: tuple[str, ...]) -> None:
    assert hosts_of(sync, cluster) == hosts


def test_a_centre_beside_its_weight_has_a_name_of_its_own() -> None:
    assert (centre_name("top.weight", "dense_ps:1"), centre_name("top.weight", "group:1")) == (
        "top.weight",
        "top.weight:centre",
    )


@pytest.mark.parametrize(
    ("host", "holder", "endpoint"),
    [
        ("dense_ps:1", "group_ps:0:2", "dense_ps:1"), ("group:3", "group_ps:0:2", "group_ps:3:2/centre"), ("group:3", "trainer:0:0", "trainer:3:0/centre"),
    ],
)  # fmt: skip
def test_where_a_host_answers(host: str, holder: str, endpoint: str) -> None:
    assert centre_endpoint(host, holder) == endpoint
