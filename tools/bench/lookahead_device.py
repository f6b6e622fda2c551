"""Examples per second on a CUDA device: out of look-ahead caches, against PyTorch with (a) all tables on the device, (b) tables on the host.

    python tools/bench/lookahead_device.py [--batches 2048,4096,8192,16384,32768] [--steps 100] [--rows 1000000] [--runs 3] [--device cuda] [--out FILE]

A DLRM with 26 tables of `--rows` x 64 (bottom 13-512-256-64, top 512-512-256-1), SGD, one trainer; the three in turn, medians of the runs (cDLRM
7.1, Figure 3). PyTorch trains eagerly with sparse gradients on batches that are in memory beforehand; in (b) the rows of each batch go to the device
and their gradients back. Batches behind the first half of a run count. With `--device cpu` the host stands in for the device: that the script runs.
`--out` appends a line of JSON with the machine.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from lookahead_step import MODEL, measure
from torch import nn

from htrain.data import START, Malformed, click_schema, open_data
from htrain.frontend.load import load_model
from htrain.spec.tree import with_flags


class OnHost(nn.Module):
    """A table on the host: rows travel to the device, gradients back."""

    def __init__(self, table: nn.Embedding, device: str) -> None:
        super().__init__()
        self.table, self._device = [table], device  # in a list: not moved with the module

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.table[0](ids)
        return rows.to(self._device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="2048,4096,8192,16384,32768")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    machine = (
        torch.cuda.get_device_name()
        if asked.device == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    print(
        f"{machine}, torch {torch.__version__}, 26 tables of {asked.rows:,} rows x 64, EPS, medians of {asked.runs} runs"
    )
    print(f"{'batch':>6}{'cached':>12}{'(a) device':>12}{'(b) host':>12}{'to (a)':>9}{'to (b)':>9}", flush=True)
    for batch in map(int, asked.batches.split(",")):
        found: dict[str, list[float]] = {"cached": [], "device": [], "host": []}
        for _ in range(asked.runs):
            found["cached"].append(_cached(batch, asked))
            for place in ("device", "host"):
                found[place].append(_torch(batch, asked, on_host=place == "host"))
        mid = {name: statistics.median(values) for name, values in found.items()}
        ratios = f"{mid['cached'] / mid['device']:>8.2f}x{mid['cached'] / mid['host']:>8.2f}x"
        print(f"{batch:>6}{mid['cached']:>12,.0f}{mid['device']:>12,.0f}{mid['host']:>12,.0f}{ratios}", flush=True)
        if asked.out:
            with asked.out.open("a") as file:
                file.write(
                    json.dumps(
                        {
                            "machine": machine,
                            "torch": torch.__version__,
                            "batch": batch,
                            "rows": asked.rows,
                            "eps": found,
                        }
                    )
                    + "\n"
                )


def _data(batch: int, asked: argparse.Namespace) -> str:
    return f"synthetic:?rows={batch * asked.steps}&table_rows={asked.rows}"


def _cached(batch: int, asked: argparse.Namespace) -> float:
    options = with_flags(
        batch_size=batch, sparse_optimizer="sgd", dense_optimizer="sgd", sparse_lr=0.05, dense_lr=0.01, cache="lookahead",
        cache_device=asked.device,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        return batch / measure(options, _data(batch, asked), Path(folder)).seconds


def _torch(batch: int, asked: argparse.Namespace, *, on_host: bool) -> float:
    torch.manual_seed(0)
    model = load_model(MODEL, click_schema(13, (asked.rows,) * 26)).module.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.0, 0.01)
    tables: list[nn.Parameter] = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Embedding):
                child.sparse = True
                if on_host:
                    tables.append(child.weight)
                    setattr(parent, name, OnHost(child, asked.device))
    model.to(asked.device)
    step = torch.optim.SGD(
        [{"params": model.parameters(), "lr": 0.01}, *([{"params": tables, "lr": 0.05}] if tables else [])]
    )
    return batch / _seconds_of_a_step(
        model, step, _batches(batch, asked), asked.device, ids_device="cpu" if on_host else asked.device
    )


def _batches(batch: int, asked: argparse.Namespace) -> list[dict[str, torch.Tensor]]:
    reader = open_data(_data(batch, asked)).batches(
        batch_size=batch, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()
    )
    return [{name: torch.from_numpy(column) for name, column in each.columns.items()} for each in reader]


def _seconds_of_a_step(
    model: nn.Module,
    step: torch.optim.Optimizer,
    batches: Sequence[dict[str, torch.Tensor]],
    device: str,
    *,
    ids_device: str,
) -> float:
    loss_of = nn.BCEWithLogitsLoss()
    began = 0.0
    for number, batch in enumerate(batches):
        if number == len(batches) // 2:
            _finish(device)
            began = time.monotonic()
        places = {name: ids_device if value.dtype == torch.int64 else device for name, value in batch.items()}
        columns = {name: value.to(places[name], non_blocking=True) for name, value in batch.items()}
        label = columns.pop("label")
        step.zero_grad()
        loss = loss_of(model(**columns).reshape(-1), label)
        loss.backward()
        step.step()
    _finish(device)
    return (time.monotonic() - began) / (len(batches) - len(batches) // 2)


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
