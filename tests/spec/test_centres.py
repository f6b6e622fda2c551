"""Where centres are: hosts, the names of their nets and parameters, and who plays them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htrain.executor.roles.endpoints import centre_endpoint
from htrain.spec.centres import answers, centre_name, centre_net, device_at, hosts_of
from htrain.spec.cluster import Cluster
from htrain.spec.dense_sync import AllReduce, DenseSync, Easgd, ModelAveraging

DEVICES = ["trainer", *(f"group_ps:{k}" for k in range(12))]


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


@given(
    st.sampled_from(["dense_ps:0", "dense_ps:11", "group:0", "group:1", "group:11"]),
    st.sampled_from(DEVICES),
    st.sampled_from([*DEVICES, "dense_ps:1"]),
)
def test_a_net_is_that_of_the_device_that_plays_its_host(host: str, holder: str, device: str) -> None:
    name = centre_net(host, holder)
    assert answers(device, name) == answers(device, f"init_{name}") == (device == device_at(host, holder))
    assert not answers(device, f"sync_{name}")


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
