"""Hosts of a cluster file: which roles are started on which, and what is refused by line."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.errors import ClusterError
from htrain.net.names import Role
from htrain.spec.cluster import Cluster, load_cluster
from htrain.spec.hosts_file import SSH, Hosts, load_hosts

PROCESSES = (("trainer:0:0",), ("trainer:1:0",), ("group_ps:0:0", "sparse_ps:0"), ("dense_ps:0",))
FILE = """groups: 2
hosts:
  ssh: ssh -p 2222
  roles:
    one: ["*:0:0"]
    two: [trainer:1:*, dense_ps:0]
    three: []
"""


def test_patterns_put_whole_processes_on_hosts_and_a_cluster_is_read_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    hosts = load_hosts(path)
    assert hosts.ssh == "ssh -p 2222"
    assert dict(hosts.assigned(PROCESSES)) == {
        "one": ("trainer:0:0", "group_ps:0:0", "sparse_ps:0"),
        "two": ("trainer:1:0", "dense_ps:0"),
    }
    assert load_cluster(path, {}).groups == 2


@settings(max_examples=60, derandomize=True)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.integers(1, 4), st.integers(0, 1), st.integers(1, 5))
def test_hosts_alone_share_all_roles_and_no_group_is_on_two(
    groups: int, trainers: int, group_ps: int, sparse_ps: int, dense_ps: int, hosts: int
) -> None:
    cluster = Cluster(groups, trainers, group_ps, sparse_ps=sparse_ps, dense_ps=dense_ps)
    names = [f"h{number}" for number in range(hosts)]
    roles = [(str(role),) for role in cluster.roles]
    found = Hosts(names).assigned(roles)
    assert sorted(role for mine in found.values() for role in mine) == sorted(role for (role,) in roles)
    of_group: dict[int, set[str]] = {}
    for host, mine in found.items():
        for role in mine:
            if (group := Role.parse(role).group) is not None:
                of_group.setdefault(group, set()).add(host)
    assert all(len(where) == 1 for where in of_group.values())
    assert len(found) == min(hosts, groups + sparse_ps + dense_ps)


REFUSED = {
    "groups: 2\n": "cluster.yaml: has no section 'hosts', such as hosts: {roles:",
    "hosts:\n  ssh: ssh\n  role: [a]\n": "cluster.yaml:3: hosts: role: unknown entry; hosts takes roles, ssh, command",
    "hosts:\n  ssh: ssh\n": "cluster.yaml:1: hosts: Object missing required field `roles`",
    "hosts: ssh\n": "cluster.yaml:1: hosts: Object missing required field `roles`",
    "hosts:\n  roles: 3\n": "cluster.yaml:1: hosts: Expected",
    "hosts:\n  roles: []\n": "cluster.yaml:1: hosts: roles: want the names of hosts, each once",
    "hosts:\n  roles: [a, a]\n": "cluster.yaml:1: hosts: roles: want the names of hosts, each once",
    "hosts:\n  roles: [-oProxyCommand=x]\n": "none that begins with '-'",
    "hosts:\n  roles: {a: ['trainer:7:*']}\n": "hosts: a: 'trainer:7:*' is no role of the plan, which has trainer:0:0, ",
    "hosts:\n  roles: {a: ['trainer:*', '*_ps:*'], b: ['dense_ps:*']}\n": "hosts: dense_ps:0 is on a and on b: name it",
    "hosts:\n  roles: {a: ['trainer:*'], b: ['dense_ps:*']}\n": "hosts: group_ps:0:0 is on no host: name it",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_assignment_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(ClusterError, match=re.escape(REFUSED[text])):
        load_hosts(path).assigned(PROCESSES)


def test_nobody_is_asked_for_a_password() -> None:
    assert Hosts(["a"]).ssh == SSH == "ssh -o BatchMode=yes"
