"""What a run is told of hosts, before it begins."""

from pathlib import Path

import pytest

import htrain
from htrain.errors import UsageError


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
