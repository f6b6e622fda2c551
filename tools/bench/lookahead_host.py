"""What the host does of a batch ahead of a step on an accelerator, in milliseconds of wall time (cDLRM 5.2).

    python tools/bench/lookahead_host.py [--batch 32768] [--rows 500000] [--window 8]

A DLRM with 26 tables of `--rows` x 64, SGD, batches that are in memory: `ids` finds the distinct ids of all tables when a batch has been read, `slots` where
they stand when their window has been placed, `pack` joins the slots, finds which row each id of the batch reads, and copies all that a step needs to one
buffer. With few
rows caches hold their tables whole, where slots are not searched; with 5,000,000 they have 16 ways. Medians over three windows, behind one that does
not count; no rows are moved, and nothing is trained.
"""

import argparse
import statistics
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import htrain
from htrain.data import START, Batch, Malformed, open_data
from htrain.executor.engine.context import Context
from htrain.executor.engine.engine import Engine
from htrain.executor.engine.program import build_program
from htrain.executor.host.memory import keep_pages
from htrain.executor.roles.replica import inputs_of
from htrain.executor.strategies.lookahead.joint_caches import JointCaches
from htrain.executor.strategies.lookahead.joint_tables import join_tables
from htrain.executor.strategies.lookahead.slot_rows import HostRows
from htrain.executor.strategies.lookahead.table_cache import TableCache
from htrain.executor.transport.peers import Peers
from htrain.net.placement import CacheGeometry
from htrain.ops.lookahead import apart
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags
from htrain.sync.lookahead.averaging import EverySteps
from htrain.transform.accelerate import accelerate

MODEL = str(Path(__file__).parents[2] / "models" / "dlrm.py:build_64")
_BATCHES, _WINDOWS = 6, 4


class Host:
    """The stages of a trainer's step that come before it, over caches without rows."""

    def __init__(self, asked: argparse.Namespace, data: str) -> None:
        options = with_flags(
            batch_size=asked.batch, sparse_optimizer="sgd", dense_optimizer="sgd", cache="lookahead", cache_device="cuda",
            cache_window=asked.window,
        )  # fmt: skip
        cluster = replace(this_machine(groups=1, trainers=1, group_ps=0, sparse_ps=0), trainer_memory=64 << 30)
        plan = htrain.compile(MODEL, data=data, cluster=cluster, options=options, self_check=False)
        net = accelerate(join_tables(apart(plan.net_of("trainer"))[0]), "cpu")
        (slots,) = (op for op in net.ops if op.type == "JointSlots")
        sets, ways, rows = (slots.attrs[name] for name in ("sets", "ways", "num_rows"))
        self.caches = {
            name: TableCache(
                CacheGeometry(s, w), HostRows((torch.zeros(1, 1),)), patch=True, is_whole=s == r and w == 1
            )
            for name, s, w, r in zip(slots.inputs, sets, ways, rows, strict=False)  # type: ignore[call-overload,arg-type]
        }
        nothing = {n: torch.zeros(1) if p.kind == "cache" else torch.zeros(p.shape) for n, p in net.parameters.items()}
        self.engine = Engine(build_program(net, {**nothing, **self.caches}, gated=False))
        self.joint = JointCaches(self.caches, Peers(None), EverySteps(1))
        self.spent: dict[str, list[float]] = defaultdict(list)

    def window(self, batches: list[Batch]) -> None:
        """One window, from batches to packets."""
        opened = []
        for batch in batches:
            state = self.engine.begin(Context(0, 0, 0, -1), "", batch.num_examples, inputs_of(batch))
            ready = self.engine.start(state)
            began = time.perf_counter()
            for stage in [stage for stage in ready if stage.announces]:
                ready += self.engine.run(state, stage, _nobody)
            self.spent["ids"].append(time.perf_counter() - began)
            opened.append((state, [stage for stage in ready if stage.prepares]))
        for cache in self.caches.values():
            made = cache.plan([cache.announced()])
            cache.begin_read(made)
            made.rows = np.empty((made.fresh_keys.size, 0), np.float32)
            cache.put_right_since(made)
            cache.enter(made)
        for state, stages in opened:
            began = time.perf_counter()
            self.joint.prepare_step()
            found = time.perf_counter()
            for stage in stages:
                self.engine.run(state, stage, _nobody)
            self.spent["slots"].append(found - began)
            self.spent["pack"].append(time.perf_counter() - found)
            self.joint.begin_step()


def _nobody(*_: object) -> None:
    raise AssertionError("nothing is sent ahead of a step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32768)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--window", type=int, default=8)
    asked = parser.parse_args()
    keep_pages()  # as every role does, whose ops have one thread each
    torch.set_num_threads(1)
    data = f"synthetic:?rows={asked.batch * _BATCHES}&table_rows={asked.rows}"
    batches = list(
        open_data(data).batches(
            batch_size=asked.batch, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()
        )
    )
    host = Host(asked, data)
    for number in range(_WINDOWS):
        host.window(batches)
        if not number:
            host.spent.clear()
    medians = {name: 1e3 * statistics.median(each) for name, each in host.spent.items()}
    geometry = next(iter(host.caches.values())).geometry
    told = "  ".join(f"{name} {value:.2f}" for name, value in medians.items())
    print(
        f"batch {asked.batch:,}, {geometry.sets:,} sets of {geometry.ways}: {told}  in all {sum(medians.values()):.2f} ms"
    )


if __name__ == "__main__":
    main()
