"""Tables in files that are mapped into memory: larger than the memory that a process may have, and the same training (cDLRM)."""

import json
import os
import resource
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from harness import relative_differences, run_roles, torch_losses
from small_wide_deep import BATCH, DATA, MODELS, small_plan

import htrain
from htrain.errors import PlacementError, RunError
from htrain.executor.engine.store import allocate
from htrain.executor.settings import RunSettings
from htrain.ops import OPS
from htrain.plan.plan import load_plan
from htrain.spec.cluster import GIB, this_machine
from htrain.spec.footprint import ROLE_BYTES
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

MAPPED = with_flags(batch_size=BATCH, cache="lookahead", table_store="mapped", cache_sets=3, cache_ways=2)
ROOM = 128 << 20  # bytes that the process may take once it has all its code
WIDTH, TABLES = 16 + 1, 26
ROWS = 2 * ROOM // (4 * WIDTH * TABLES)
BIG_DATA = f"synthetic:?rows=640&table_rows={ROWS}"
CACHED = with_flags(
    batch_size=32,
    sparse_optimizer="sgd",
    cache="lookahead",
    cache_window=4,
    cache_sets=ROWS // 64,
    cache_ways=8,
    table_store="mapped",
)


HET = with_flags(batch_size=BATCH, cache="het", table_store="mapped", cache_staleness=4, sparse_optimizer="sgd")


@pytest.mark.parametrize("options", [MAPPED, HET])
def test_training_on_mapped_tables_is_training_on_tables(options: Options, tmp_path: Path) -> None:
    model, plan = small_plan(options)
    roles = run_roles(
        plan, tmp_path / "plan", RunSettings(tmp_path / "plan", DATA, tmp_path / "run", deadline_seconds=10)
    )
    trainer = roles["trainer:0:0"].trainer
    assert trainer
    assert max(relative_differences(trainer.losses, torch_losses(model, DATA, options))) < 1e-4
    assert list((tmp_path / "run" / "tables").iterdir()) == []  # nothing stays, whatever ends the process


def test_tables_of_twice_the_memory_and_eight_times_the_cache_train_to_the_same_losses(tmp_path: Path) -> None:
    plan = htrain.compile(
        str(MODELS / "wide_deep.py"), data=BIG_DATA, cluster=this_machine(group_ps=0, sparse_ps=0), options=CACHED
    )
    tables = sum(p.num_bytes for p in plan.nets["train"].parameters.values() if p.kind == "table")
    cached = sum(
        p.num_bytes for n, p in plan.nets["train"].parameters.items() if p.kind == "cache" and n.endswith(":rows")
    )
    assert tables > 1.99 * ROOM
    assert tables > 7.9 * cached
    plan.save(tmp_path / "plan")
    command = [sys.executable, __file__, str(tmp_path / "plan")]
    support = {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2] / "support"), os.environ.get("PYTHONPATH", "")])
    }
    limited = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **support}
    )
    assert limited.returncode == 0, limited.stderr[-2000:]
    whole = with_flags(
        batch_size=CACHED.batch_size, sparse_optimizer=CACHED.sparse_optimizer.kind, net_replicas=1, prefetch=False
    )
    plan = htrain.compile(
        str(MODELS / "wide_deep.py"), data=BIG_DATA, cluster=this_machine(group_ps=0, sparse_ps=0), options=whole
    )
    plan.save(tmp_path / "whole")
    assert max(relative_differences(json.loads(limited.stdout), losses_of(tmp_path / "whole"))) < 1e-5


def losses_of(folder: Path) -> list[float]:
    roles = run_roles(load_plan(folder), folder, RunSettings(folder, BIG_DATA, folder / "run", deadline_seconds=20))
    trainer = roles["trainer:0:0"].trainer
    assert trainer
    return trainer.losses


def test_mapped_tables_may_be_larger_than_what_the_cluster_says_of_memory() -> None:
    for sparse_ps in (0, 1):
        small = replace(
            this_machine(group_ps=0, sparse_ps=sparse_ps),
            sparse_ps_memory=ROLE_BYTES + GIB // 16,
            trainer_memory=ROLE_BYTES + GIB // 8,
        )
        plan = htrain.compile(str(MODELS / "wide_deep.py"), data=BIG_DATA, cluster=small, options=CACHED)
        assert plan.options.sparse_sync.store == "mapped"
        with pytest.raises(PlacementError, match=r"the tables need|'trainer' needs .* weights and rows"):
            htrain.compile(
                str(MODELS / "wide_deep.py"),
                data=BIG_DATA,
                cluster=small,
                options=with_flags(CACHED, table_store="memory"),
            )


def test_a_disk_without_room_is_an_error_that_names_it(tmp_path: Path) -> None:
    _, plan = small_plan(MAPPED)
    train = plan.net_of("sparse_ps:0")
    endless = {n: replace(p, shape=(1 << 50, *p.shape[1:])) for n, p in train.parameters.items()}
    with pytest.raises(RunError, match=r"no room for a table of [\d,]+ bytes"):
        allocate(replace(train, parameters=endless), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_memory_without_room_is_an_error_that_says_how_much_was_wanted() -> None:
    _, plan = small_plan(MAPPED)
    train = plan.net_of("sparse_ps:0")
    endless = {n: replace(p, shape=(1 << 50, *p.shape[1:])) for n, p in train.parameters.items()}
    with pytest.raises(RunError, match=r"no memory for a parameter of [\d,]+ bytes: .* --table-store mapped"):
        allocate(replace(train, parameters=endless))


def _limited(folder: Path) -> None:
    """Train where no more than ROOM can be allocated; print the losses."""
    threading.stack_size(1 << 20)  # stacks are what is allocated, too
    torch.set_num_threads(1)
    small_plan(MAPPED)  # all code is in memory
    for side in (2, 64, 256):  # and what each BLAS takes once, whatever it multiplies
        x, w = torch.ones(128, side), torch.ones(side, side)
        OPS["FCRelu"].kernel(x, w)
        OPS["FCSgd"].kernel(w, x, x, lr=0.0)
    leaf = torch.ones(1, requires_grad=True)
    torch.autograd.grad(
        leaf * 2, leaf
    )  # begins threads, as many as the build of torch knows kinds of devices, whose stacks count too
    used = (
        next(
            int(line.split()[1])
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("VmData")
        )
        << 10
    )
    resource.setrlimit(resource.RLIMIT_DATA, (used + ROOM, used + ROOM))
    with pytest.raises(RuntimeError):
        torch.empty(ROOM * 3 // 2, dtype=torch.uint8)
    print(json.dumps(losses_of(folder)))


if __name__ == "__main__":
    _limited(Path(sys.argv[1]))
