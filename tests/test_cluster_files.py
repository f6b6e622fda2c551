"""The files of docs/how-to/on-a-cluster.md: what reads them takes their syntax, and htrain the flags of their commands."""

import configparser
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
import yaml

from htrain.cli.app import run

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "on-a-cluster.md").read_text()
FILES = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


def service() -> list[str]:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(FILES["htrain-ads.service"])
    assert set(unit) == {"DEFAULT", "Unit", "Service", "Install"}
    return shlex.split(unit["Service"]["ExecStart"])


def script() -> list[str]:
    assert not subprocess.run(["bash", "-n"], input=FILES["ads.slurm.sh"], text=True, check=False).returncode
    (line,) = re.findall(r"^mpiexec .*htrain .*$", FILES["ads.slurm.sh"], re.MULTILINE)
    return shlex.split(line.removesuffix(" &"))


def job() -> list[str]:
    read = yaml.safe_load(FILES["ads.job.yaml"])
    assert (read["apiVersion"], read["kind"]) == ("batch/v1", "Job")
    pod = read["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert pod["restartPolicy"] == "OnFailure"
    return list(container["command"])


@pytest.mark.parametrize("command_of", [service, script, job])
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
