"""What kernels find out when they are first called is known to the processes that are forked behind `call_first`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "support" / "without_cpuid.py"
THREADS = """
import os, torch
from htrain.executor.host.first_calls import call_first
threads = torch.get_num_threads()
before = len(os.listdir("/proc/self/task"))
call_first()
print(threads, torch.get_num_threads(), len(os.listdir("/proc/self/task")) - before)
"""


def said(*command: str, **environment: str) -> list[str]:
    paths = [str(SCRIPT.parent), str(SCRIPT.parents[1] / "ops"), *filter(None, [os.environ.get("PYTHONPATH")])]
    known = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
    run = subprocess.run([sys.executable, *command], env=known, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, (run.stdout[-200:], run.stderr[-2000:])  # the op that asked is the last that was said
    return run.stdout.split()


@pytest.mark.parametrize("capability", ["avx2", "default"])
def test_no_kernel_asks_for_the_processor_in_a_role(capability: str) -> None:
    """The kernel of Linux ends a process that asks; on a CPU, or under a hypervisor, that does not let it, nothing can be seen."""
    found = said(str(SCRIPT), ATEN_CPU_CAPABILITY=capability)
    if found[0] != "asks":
        pytest.skip("no process can be forbidden to ask here")
    assert found[-1] == "done"
    assert len(found) > 300


@pytest.mark.skipif(
    sys.platform != "linux" or os.cpu_count() == 1, reason="threads are counted in /proc, and one core has one"
)
def test_no_thread_begins() -> None:
    threads, after, begun = said("-c", THREADS, OMP_NUM_THREADS="4", MKL_NUM_THREADS="4", OPENBLAS_NUM_THREADS="1")
    assert int(threads) > 1
    assert (after, begun) == (threads, "0")
