"""A model of 10^12 parameters compiles on a laptop (acceptance of issue 2, line 4)."""

import json
import resource
import subprocess
import sys
from pathlib import Path

from forked import Commands

ROOT = Path(__file__).parents[2]
HTRAIN = str(Path(sys.executable).with_name("htrain"))
MODEL = """
import sys
sys.path.insert(0, {models!r})
import dlrm
from htrain.data import click_schema

def build():
    return dlrm.build(click_schema(13, (600_000_000,) * 26), dim=64)
"""


def test_twenty_six_tables_of_six_hundred_million_rows_compile_for_forty_sparse_pss(
    commands: Commands, tmp_path: Path
) -> None:
    (tmp_path / "huge.py").write_text(MODEL.format(models=str(ROOT / "models")))
    flags = ["--sparse-ps", "40", "--sparse-ps-memory", "512GiB", "--groups", "4", "--trainers", "4", "--group-ps", "4"]
    command = [HTRAIN, "compile", "huge.py", "--out", "plan", *flags, "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=250)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime  # of CPU: others compute here, too
    peak = used.ru_maxrss * 1024
    shown = json.loads(commands.run(["show", "plan", "--json"], tmp_path, timeout=100).stdout)
    rows = [sum(shard["num_rows"] for shard in shards) for shards in shown["tables"].values()]
    stored = [
        load["holds"]["weights"] + load["holds"]["state"]
        for device, load in shown["devices"].items()
        if device.startswith("sparse_ps")
    ]
    print(
        f"{sum(rows) * 64:.3g} parameters: {seconds:.1f} s, {peak / 2**30:.2f} GiB; sparse PSs hold {min(stored):.3g} to {max(stored):.3g} bytes"
    )
    assert rows == [600_000_000] * 26
    assert len(stored) == 40
    assert max(stored) <= 512 * 2**30
    assert max(stored) <= 1.25 * sum(stored) / 40
    assert seconds < 60
    assert peak < 2 * 2**30
