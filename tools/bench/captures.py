"""CPU seconds to capture a model and to check what was captured against PyTorch: of small models, and of layers over sequences of several lengths.

    python tools/bench/captures.py [--runs 5] [--steps 20,80,200]

In one process, each once before it is measured; medians, with the least and the most.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from htrain.data import CRITEO
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options


class Tower(nn.Module):
    """Numbers through a layer, beside the rows of ids."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(30, 4)
        self.below, self.top = nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 4)), nn.Linear(8, 1)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.top(torch.cat([self.below(dense), self.rows(ids)], 1)).squeeze(1)


class Sequences(nn.Module):
    """What a layer makes of sequences[B,T] of ids."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.rows, self.layer, self.top = nn.Embedding(30, 8), layer, nn.Linear(8, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made = self.layer(self.rows(ids))
        return self.top((made[0] if isinstance(made, tuple) else made).mean(1)).squeeze(1)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "GRU": lambda: nn.GRU(8, 8, batch_first=True),
    "LSTM, 2 layers both ways": lambda: nn.LSTM(8, 4, num_layers=2, bidirectional=True, batch_first=True),
    "Transformer, 3 layers": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3),
}


def seconds_of(model: nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[float, float]:
    """CPU seconds of the capture, and of the check behind it."""
    began = time.process_time()
    captured = capture_model(model, schema=CRITEO, example_inputs=inputs, logit="", label="")
    between = time.process_time()
    captured.compare(Options())
    return between - began, time.process_time() - between


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", default="20,80,200")
    asked = parser.parse_args()
    ids = torch.zeros(3, dtype=torch.int64)
    cases: dict[str, tuple[Callable[[], nn.Module], dict[str, torch.Tensor]]] = {
        "a tower": (Tower, {"dense": torch.rand(3, 13), "ids": ids})
    }
    for steps in map(int, asked.steps.split(",")):
        for name, make in LAYERS.items():
            inputs = {"ids": torch.zeros(3, steps, dtype=torch.int64)}
            cases[f"{name}, {steps} steps"] = (lambda make=make: Sequences(make())), inputs
    print(f"{'CPU seconds':<36}{'capture':>28}{'check':>28}")
    for name, (make_model, inputs) in cases.items():
        seconds_of(make_model(), inputs)
        found = [seconds_of(make_model(), inputs) for _ in range(asked.runs)]
        shown = [
            f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in zip(*found, strict=True)
        ]
        print(f"{name:<36}{shown[0]:>28}{shown[1]:>28}", flush=True)


if __name__ == "__main__":
    main()
