"""What a run is told of hosts, and of roles that are lost, before it begins."""

from pathlib import Path
from typing import Any

import pytest

import htrain
from htrain.errors import PlanError, PublishError, UsageError


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"network": "127.0.0.0/8"}, "--network 127.0.0.0/8 has no effect on one machine"),
        (
            {"trainer_network": "10.2.0.0/16", "hosting": "threads"},
            "--trainer-network 10.2.0.0/16 has no effect on one",
        ),
        ({"network": "eth0", "hosting": "mpi"}, "--network eth0: want a network of IPv4"),
    ],
)
def test_networks_are_for_hosts_that_reach_each_other(said: dict[str, str], why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=why):
        htrain.run(tmp_path, data="synthetic:", out=tmp_path / "run", **said)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"hosting": "threads"}, "--retry partial: roles cannot be started again as threads of one process"),
        ({"hosting": "mpi"}, "--retry partial: roles cannot be started again under mpiexec, which ends all ranks"),
        ({"hosting": "mpi", "retries": 2}, "--retries 2: roles cannot be started again under mpiexec, which ends all"),
        ({"retries": 0}, "--retry partial has no effect with --retries 0, which ends the run with the first role"),
        (
            {"hosting": htrain.Elsewhere("127.0.0.1:0", secret="none"), "retries": 0},
            "--retry partial has no effect with --retries 0",
        ),
    ],
)
def test_roles_are_not_to_go_back_alone_where_none_is_begun_again(
    said: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=why):
        htrain.run(tmp_path, data="synthetic:", out=tmp_path / "run", retry="partial", **said)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("hosting", ["processes", htrain.Elsewhere("127.0.0.1:0", secret="none")])
def test_versions_in_the_memory_of_one_process_are_for_roles_that_are_its_threads(hosting: Any, tmp_path: Path) -> None:
    said = "--publish memory://ads: is memory of one process, where nobody sees what roles write that are others: name a folder"
    with pytest.raises(UsageError, match=said):
        htrain.run(tmp_path, data="synthetic:", out=tmp_path / "run", hosting=hosting, publish="memory://ads")
    with pytest.raises(PlanError):
        htrain.run(tmp_path, data="synthetic:", out=tmp_path / "run", hosting="threads", publish="memory://ads")


def test_an_address_of_versions_that_nobody_means_is_refused_before_a_plan_is_read(tmp_path: Path) -> None:
    elsewhere = htrain.Elsewhere("127.0.0.1:0", secret="none")  # whose folders are told by their whole paths
    for hosting in ("processes", elsewhere):
        with pytest.raises(PublishError, match=r"^~/pub: nothing has put your home folder"):
            htrain.run(tmp_path, data="synthetic:", out=tmp_path / "run", hosting=hosting, publish="~/pub")
