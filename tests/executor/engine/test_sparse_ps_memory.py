"""What a sparse PS holds beside its rows and their optimizer's state: seen in a process of its own."""

import subprocess
import sys
from pathlib import Path

MODEL = str(Path(__file__).parents[3] / "models" / "dlrm.py:build_bench")
SCRIPT = """
import sys
from pathlib import Path

import psutil
import torch

import htrain
from htrain.spec.cluster import this_machine
from htrain.executor.host.memory import keep_pages
from htrain.executor.transport.port import Network
from htrain.executor.launch.role import RunningRole
from htrain.executor.settings import RunSettings
from htrain.ops import OPS

keep_pages()
cluster = this_machine(groups=1, trainers=1, group_ps=1, sparse_ps=1)
plan = htrain.compile(sys.argv[1], data="synthetic:?table_rows=20000", cluster=cluster)
network = Network("tcp")
OPS["NormalFill"].kernel(torch.empty(1, 1), seed=0, first_row=0, mean=0.0, std=1.0)  # Numba imports itself at its first loop
bare = psutil.Process().memory_info().rss
role = RunningRole("sparse_ps:0", plan, RunSettings(Path(), "synthetic:", Path()), network)
role.fill()
stored = sum(tensor.nbytes for tensor in role.store.values())
print(stored, psutil.Process().memory_info().rss - bare)
role.stop()
network.close()
"""


def test_a_filled_sparse_ps_holds_its_rows_and_state_once() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT, MODEL], check=True, capture_output=True, text=True, timeout=120)
    stored, held = map(int, run.stdout.split())
    assert stored == 2 * 26 * 20_000 * 64 * 4  # Adagrad
    assert held < 1.05 * stored
