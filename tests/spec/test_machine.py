"""What of a machine a process may use: control groups as containers, services and hosts write them, of both versions."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from htrain.spec.machine import core_limit, memory_limit

GIB = 1 << 30
CASES = {
    "a container of version 2": (
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "4294967296\n",
            "sys/fs/cgroup/cpu.max": "250000 100000\n",
        },
        4 * GIB,
        2.5,
    ),
    "a service of version 2 without limits of its own": (
        {
            "proc/self/cgroup": "0::/system.slice/htrain.service\n",
            "sys/fs/cgroup/system.slice/htrain.service/memory.max": "max\n",
            "sys/fs/cgroup/system.slice/htrain.service/cpu.max": "max 100000\n",
            "sys/fs/cgroup/system.slice/memory.max": "8589934592\n",
            "sys/fs/cgroup/system.slice/cpu.max": "100000 100000\n",
        },
        8 * GIB,
        1.0,
    ),
    "a container of version 1 that sees its host's names": (
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/0a1b\n4:memory:/docker/0a1b\n1:name=systemd:/docker/0a1b\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        2 * GIB,
        0.5,
    ),
    "a host of version 1": (
        {
            "proc/self/cgroup": "4:memory:/\n1:cpu:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        9223372036854771712,
        math.inf,
    ),
    "no control groups": ({}, math.inf, math.inf),
    "files of another kind": ({"proc/self/cgroup": "\xff\n0\n", "sys/fs/cgroup/cpu.max": ""}, math.inf, math.inf),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_least_limit_from_the_own_group_upwards_counts(case: str, tmp_path: Path) -> None:
    files, memory, cores = CASES[case]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    assert (memory_limit(tmp_path), core_limit(tmp_path)) == (memory, cores)


def test_a_cluster_of_this_machine_has_the_cores_that_its_process_may_run_on() -> None:
    """As in a pod of whole cores, under taskset or a batch system: others' cores are no use to its roles."""
    script = (
        "import json, os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "from htrain.spec.cluster import this_machine; c = this_machine(); print(json.dumps([c.host_cores, c.trainer_cores]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [1, 1]
