"""One process, one trainer, no PS, against plain PyTorch eager: the same model, batches, optimizer and threads.

    python tools/bench/single_process.py --batch 2048 --batch 128

A DLRM with 26 tables of 10^5 rows x 64 (bottom 13-512-256-64, top 512-256-1). Prints, per batch size,
the ratio of examples per second (htrain / eager) of alternating runs: median, minimum and maximum.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from baseline import build_model, optimizers, train_step

from htrain.cluster import this_machine
from htrain.compiler import compile_net
from htrain.data import START, Batch, Malformed, open_data
from htrain.executor.feed import Feed
from htrain.executor.port import Network
from htrain.executor.role import Role
from htrain.executor.settings import RunSettings
from htrain.frontend.load import load_model
from htrain.frontend.torch_model import capture
from htrain.options import Options
from htrain.plan import Plan

MODEL = str(Path(__file__).parents[2] / "models" / "dlrm.py:build_bench")
TABLE_ROWS = 100_000


def read(batch_size: int, num_batches: int) -> list[Batch]:
    """Batches in memory, so that neither side pays for reading."""
    data = open_data(f"synthetic:?rows={batch_size * num_batches}&table_rows={TABLE_ROWS}")
    return list(
        data.batches(batch_size=batch_size, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed())
    )


def make_plan(options: Options, folder: Path) -> Plan:
    loaded = load_model(MODEL, open_data(f"synthetic:?table_rows={TABLE_ROWS}").schema)
    captured = loaded.initialised(capture(loaded.module, loaded.example_inputs))
    plan = compile_net(captured, this_machine(group_ps=0, sparse_ps=0, dense_ps=0), options, name="dlrm")
    plan.save(folder)
    return plan


def time_htrain(plan: Plan, folder: Path, batches: list[Batch]) -> tuple[float, float]:
    """Wall and CPU seconds of training all batches by one trainer with one net replica."""
    settings = RunSettings(folder, "synthetic:", folder / "run", deterministic=True)
    network = Network("inproc")
    role = Role("trainer:0:0", plan, settings, network)
    role.fill()
    assert role.trainer
    wall, cpu = time.perf_counter(), time.process_time()
    role.trainer.start({}, Feed(iter(batches), START, len(batches)), 0, None)
    while not role.trainer.finished:
        time.sleep(0.001)
    spent = time.perf_counter() - wall, time.process_time() - cpu
    if role.error:
        raise role.error
    role.stop()
    network.close()
    return spent


def time_eager(options: Options, batches: list[Batch]) -> tuple[float, float]:
    """Wall and CPU seconds of plain PyTorch on the same batches; embeddings have sparse gradients."""
    model = build_model(MODEL, open_data(f"synthetic:?table_rows={TABLE_ROWS}").schema, 0)
    steps = optimizers(model, options)
    tensors = [{name: torch.from_numpy(column) for name, column in b.columns.items()} for b in batches]
    wall, cpu = time.perf_counter(), time.process_time()
    for batch in tensors:
        train_step(model, steps, batch)
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optimizer", default="sgd", choices=["sgd", "adagrad"])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for batch_size in arguments.batch or [2048, 128]:
        options = Options(
            batch_size=batch_size, dense_optimizer=arguments.optimizer, sparse_optimizer=arguments.optimizer
        )
        batches = read(batch_size, max(12, 25_000 // batch_size))
        examples = sum(b.num_examples for b in batches)
        with tempfile.TemporaryDirectory() as folder:
            plan = make_plan(options, Path(folder) / "plan")
            time_htrain(plan, Path(folder) / "plan", batches[:4])  # compiles the loops
            pairs = [
                (time_htrain(plan, Path(folder) / "plan", batches), time_eager(options, batches))
                for _ in range(arguments.runs)
            ]
        ratios = [eager[0] / ours[0] for ours, eager in pairs]
        cpu = [eager[1] / ours[1] for ours, eager in pairs]
        ours, eager = (statistics.median(examples / pair[side][0] for pair in pairs) for side in (0, 1))
        print(
            f"dlrm batch {batch_size:5d} {arguments.optimizer}  htrain {ours:,.0f} EPS  eager {eager:,.0f} EPS  ratio {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}, n={len(ratios)})  "
            f"CPU ratio {statistics.median(cpu):.2f}  {arguments.threads} threads of {os.cpu_count()}"
        )


if __name__ == "__main__":
    main()
