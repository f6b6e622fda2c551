"""Roles that the launcher starts on hosts by ssh, of which a script stands in for: what it is told, it does here."""

import os
import signal
import time
from pathlib import Path

import pytest
from launched import Launched
from ledger import DATA, counted, ledger_plan, owed

import htrain
from htrain.errors import RunError, UsageError
from htrain.executor.record.kept import find_checkpoints
from htrain.spec.cluster import this_machine

COUNTS = {"groups": 2, "trainers": 1, "group_ps": 0, "sparse_ps": 1, "dense_ps": 1}
STAND_IN = """#!/bin/sh
echo "$1 $*" >>'{log}'
shift
exec sh -c "$*"
"""


def hosts_file(folder: Path, roles: str, ssh: str = "") -> Path:
    script = folder / "ssh.sh"
    script.write_text(ssh or STAND_IN.format(log=folder / "started"))
    script.chmod(0o755)
    path = folder / "cluster.yaml"
    path.write_text(f"hosts:\n  ssh: '{script}'\n  roles: {roles}\n")
    return path


def test_an_agent_that_is_killed_is_started_again_and_every_example_is_trained_once(tmp_path: Path) -> None:
    ledger_plan(this_machine(**COUNTS)).save(tmp_path / "plan")
    launched = Launched(tmp_path, "--listen", "127.0.0.1", "--hosts", str(hosts_file(tmp_path, "[one, two]")))
    try:
        (pid,) = launched.wait_for(r"trainer:1:0, dense_ps:0: process (\d+) on")
        checkpoints = len(launched.wait_for(r"(?m)^checkpoint "))
        os.kill(int(pid), signal.SIGKILL)
        launched.wait_for("two' has ended with status -9")
        launched.wait_for(r"trainer:1:0, dense_ps:0: process", 2)
        launched.wait_for(r"(?m)^checkpoint ", checkpoints + 2)
        launched.process.send_signal(signal.SIGINT)
        assert launched.process.wait(60) == 130, launched.log.read_text()
    finally:
        launched.process.kill()
    said = launched.log.read_text()
    assert "Traceback" not in said
    assert "one is to play trainer:0:0, sparse_ps:0; two is to play trainer:1:0, dense_ps:0" in said
    assert find_checkpoints(launched.run).complete
    assert (counted(tmp_path / "plan", launched.run) == owed(launched.run)).all()
    started = (tmp_path / "started").read_text().splitlines()
    assert sorted(line.split()[0] for line in started) == ["one", "two", "two"]
    assert all("--secret - " in line for line in started)  # it travels by standard input


def test_a_host_that_is_not_there_ends_the_run_at_once(tmp_path: Path) -> None:
    plan = ledger_plan(this_machine(**COUNTS))
    hosts = hosts_file(tmp_path, "[one]", "#!/bin/sh\necho 'connect to host one: No route to host' >&2\nexit 255\n")
    began = time.monotonic()
    with pytest.raises(
        RunError, match=r"one: .*ssh\.sh one' has ended with status 255: connect to host one: No route to"
    ):
        htrain.run(plan, data=DATA, out=tmp_path / "run", hosting=htrain.Elsewhere("127.0.0.1", hosts=hosts))
    assert time.monotonic() - began < 30


def test_without_a_secret_somebody_has_to_start_roles() -> None:
    with pytest.raises(UsageError, match="Elsewhere: secret: name a file of mode 0600"):
        htrain.run("plan", data=DATA, out="run", hosting=htrain.Elsewhere("127.0.0.1"))
