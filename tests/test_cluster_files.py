"""The files of docs/how-to/on-a-cluster.md: what reads them takes their syntax, and htrain the flags of their commands."""

import configparser
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from htrain.cli.app import run
from htrain.cli.role import role
from htrain.net.names import Role
from htrain.spec.cluster import load_cluster
from htrain.spec.hosts_file import load_hosts

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "on-a-cluster.md").read_text()
FILES = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


def unit_of(name: str) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(FILES[name])
    assert set(unit) == {"DEFAULT", "Unit", "Service", "Install"}
    return unit


def service() -> list[str]:
    return shlex.split(unit_of("htrain-ads.service")["Service"]["ExecStart"])


def script() -> list[str]:
    assert not subprocess.run(["bash", "-n"], input=FILES["ads.slurm.sh"], text=True, check=False).returncode
    (line,) = re.findall(r"^mpiexec .*htrain .*$", FILES["ads.slurm.sh"], re.MULTILINE)
    return shlex.split(line.removesuffix(" &"))


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    for volume in pod["volumes"]:
        assert volume.get("secret", {}).get("defaultMode", 0) & 0o077 == 0
    assert pod["restartPolicy"] == "OnFailure"
    return dict(container)


def job() -> list[str]:
    return list(container_of(yaml.safe_load(FILES["ads.job.yaml"]))["command"])


def pods() -> dict[str, dict[str, Any]]:
    """What is described for Kubernetes where roles have pods of their own, by name."""
    return {each["metadata"]["name"]: each for each in yaml.safe_load_all(FILES["ads-roles.job.yaml"])}


def launcher_job() -> list[str]:
    found = pods()
    assert found["ads"]["spec"]["selector"] == found["ads-launcher"]["spec"]["template"]["metadata"]["labels"]
    words = list(container_of(found["ads-launcher"])["command"])
    assert words[words.index("--listen") + 1] == "eth0:7070", "what roles are told"
    return words


@pytest.mark.parametrize("command_of", [service, script, job, launcher_job])
def test_a_file_is_read_and_its_command_is_one_of_htrains(command_of: "object") -> None:
    words = command_of()  # type: ignore[operator]
    begin = next(n for n, word in enumerate(words) if word.rpartition("/")[2] == "htrain")
    assert words[begin + 1] == "run"
    with click.Context(run) as parent:
        given = run.make_context("run", words[begin + 2 :], parent=parent).params
    assert given["or_resume"]
    assert given["out"]
    assert not given["resume"]


@pytest.mark.parametrize(("status", "requeued"), [(130, True), (1, False), (0, False)])
def test_the_script_is_queued_again_after_a_stop_that_left_data(status: int, requeued: bool, tmp_path: Path) -> None:
    for name, text in {"mpiexec": f"exit {status}", "scontrol": f'echo "$@" > {tmp_path}/said'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_NTASKS": "14", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", "-c", FILES["ads.slurm.sh"]], env=environment, check=False, timeout=20)
    assert done.returncode == status
    assert (tmp_path / "said").exists() == requeued


def role_given(words: list[str]) -> dict[str, Any]:
    begin = next(n for n, word in enumerate(words) if word.rpartition("/")[2] == "htrain")
    assert words[begin + 1] == "role"
    with click.Context(role) as parent:
        return role.make_context("role", words[begin + 2 :], parent=parent).params


def is_begun_again(service: configparser.SectionProxy, status: int) -> bool:
    """What systemd makes of a process that has ended with this status, by systemd.service(5)."""
    statuses = {name: set(map(int, service.get(name, "").split())) for name in service if name.endswith("ExitStatus")}
    assert service["Restart"] == "on-failure"
    is_success = status == 0 or status in statuses["SuccessExitStatus"]
    return not is_success and status not in statuses["RestartPreventExitStatus"]


@pytest.mark.parametrize(
    ("name", "again"),
    [("htrain-ads.service", {1}), ("htrain-role@.service", {1, 130})],  # a role ends with the status of its run
)
def test_what_ends_by_a_failure_that_passes_is_begun_again_and_what_was_stopped_or_drained_stays_away(
    name: str, again: set[int]
) -> None:
    unit = unit_of(name)
    stops = {130} if name == "htrain-ads.service" else {143}
    assert {status for status in (0, 1, 2, 130, *stops) if is_begun_again(unit["Service"], status)} == again
    assert unit["Unit"]["Wants"] == unit["Unit"]["After"] == "network-online.target", "addresses are there by then"


def test_the_unit_of_a_role_is_one_for_every_name() -> None:
    unit = unit_of("htrain-role@.service")
    given = role_given(shlex.split(unit["Service"]["ExecStart"].replace("%i", "trainer:0:0")))
    assert given["roles"] == ("trainer:0:0",)
    assert given["launcher"] == "10.1.0.1:7070"


def test_each_pod_of_roles_plays_a_line_of_names(tmp_path: Path) -> None:
    found = pods()
    names = found["ads-names"]["data"]["names"].splitlines()
    spec = found["ads-roles"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (len(names), len(names), "Indexed")
    shell, flag, line = container_of(found["ads-roles"])["command"]
    (tmp_path / "names").write_text("\n".join(names) + "\n")
    (tmp_path / "htrain").write_text('#!/bin/sh\nprintf "%s\\n" htrain "$@"\n')
    (tmp_path / "htrain").chmod(0o755)
    for index, of_pod in enumerate(names):
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "JOB_COMPLETION_INDEX": str(index)}
        words = [shell, flag, line.replace("/names/names", str(tmp_path / "names"))]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=20)
        given = role_given(done.stdout.splitlines())
        assert given["roles"] == tuple(of_pod.split())
        assert all(str(Role.parse(name)) == name for name in given["roles"])
        assert given["launcher"] == f"{found['ads']['metadata']['name']}:7070"


def test_hosts_are_read_as_the_page_says(tmp_path: Path) -> None:
    path = tmp_path / "on-hosts.yaml"
    path.write_text(FILES["on-hosts.yaml"])
    cluster = load_cluster(path, {})
    found = load_hosts(path).assigned([(str(role),) for role in cluster.roles])
    assert sorted(role for roles in found.values() for role in roles) == sorted(map(str, cluster.roles))
    assert found["ads-2"] == ("trainer:1:0", "trainer:1:1", "group_ps:1:0", "group_ps:1:1")
