"""Recurrent layers over packed sequences are trained as by PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.torch_model import capture
from htrain.self_check.capture import capture_model
from htrain.self_check.ours import Ours
from htrain.self_check.values import draw_values
from htrain.spec.options import Options

IDS = {"ids": torch.zeros(3, 3, dtype=torch.int64), "end": torch.zeros(3, dtype=torch.int64)}
Forward = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]
ENDS = 3


class Sequences(nn.Module):
    """rows[B,L,K] of ids[B,L], the first end[B] + 1 of which count."""

    def __init__(self, then: Forward, layer: nn.Module) -> None:
        super().__init__()
        self.rows, self.lengths, self.top = nn.Embedding(30, 4), nn.Embedding(ENDS, 4), nn.Linear(6, 1)
        self.layer, self.then = layer, then

    def forward(self, ids: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        made = self.then(self, self.rows(ids), (end + 1).cpu())
        return (self.top(made.reshape(len(ids), -1, 6).tanh().sum(1)) + self.lengths(end)[:, :1]).squeeze(1)


def pack(rows: torch.Tensor, lengths: torch.Tensor) -> PackedSequence:
    return pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)


def padded(model: Any, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    outputs, _ = model.layer(pack(rows, lengths))
    return pad_packed_sequence(outputs, batch_first=True, padding_value=0.5, total_length=3)[0]


def last(model: Any, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    _, state = model.layer(pack(rows, lengths))
    return (state[0] if isinstance(state, tuple) else state).transpose(0, 1)


def both(model: Any, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Padded with the batch second, from a state that is given, and counted."""
    packed = pack_padded_sequence(rows.transpose(0, 1), lengths, enforce_sorted=False)
    outputs, state = model.layer(packed, rows.new_ones(2, rows.shape[0], 3))
    unpacked, counted = pad_packed_sequence(outputs, total_length=rows.shape[1])
    return unpacked.transpose(0, 1) * counted[:, None, None] + state.transpose(0, 1).reshape(-1, 1, 6)


def chained(model: Any, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return model.layer[1](model.layer[0](pack(rows, lengths))[0])[1].transpose(0, 1)


CASES: dict[str, tuple[Forward, Callable[[], nn.Module]]] = {
    "layers and directions": (padded, lambda: nn.GRU(4, 3, 2, bidirectional=True)),
    "last of both": (last, lambda: nn.RNN(4, 3, bidirectional=True, bias=False)),
    "a state": (both, lambda: nn.GRU(4, 3, bidirectional=True)),
    "lstm": (last, lambda: nn.LSTM(4, 6, batch_first=True)),
    "a chain": (chained, lambda: nn.ModuleList([nn.RNN(4, 6, nonlinearity="relu"), nn.GRU(6, 6)])),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_packed_is_trained_as_by_pytorch(name: str) -> None:
    then, layer = CASES[name]
    model = capture_model(Sequences(then, layer()), schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert model.compare(Options()) == ()


def test_a_length_that_pytorch_refuses_is_an_error() -> None:
    class Given(Sequences):
        def forward(self, ids: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
            return super().forward(ids, torch.ones_like(end)) + self.then(self, self.rows(ids), end).sum((1, 2))

    captured = capture(Given(padded, nn.GRU(4, 6)), IDS)
    ours, values = Ours(captured, Options()), draw_values(captured, torch.Generator(), positive=False, scale=1.0)
    ends = torch.tensor([1, 3, 2])
    assert ours.run(values, {"ids": IDS["ids"], "end": ends}, torch.zeros(3)).loss > 0
    for length in (0, 4):
        ends[2] = length
        with pytest.raises(ModelError, match="out of bounds"):
            ours.run(values, {"ids": IDS["ids"], "end": ends}, torch.zeros(3))


def longest(model: Any, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return pad_packed_sequence(model.layer(pack(rows, lengths))[0], batch_first=True)[0]


def steps(model: Any, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    data, sizes, *_ = pack(rows, lengths)
    return torch.stack([data[:size].sum() for size in sizes])


REFUSED: dict[str, tuple[Forward, nn.Module, str]] = {
    "the longest": (longest, nn.GRU(4, 6), "give pad_packed_sequence total_length=3"),
    "sorted": (lambda m, rows, lengths: m.layer(pack_padded_sequence(rows, lengths, batch_first=True))[1], nn.GRU(4, 6), "enforce_sorted=False"),
    "steps": (steps, nn.GRU(4, 6), "forward\\(\\) reads the data of a packed sequence"),
    "data": (lambda m, rows, lengths: torch.tanh(pack(rows, lengths).data), nn.GRU(4, 6), "reads the data of a packed sequence"),
    "cells": (lambda m, rows, lengths: m.layer(pack(rows, lengths))[1][1] * 2, nn.LSTM(4, 6), "reads the cell state of an LSTM"),
    "dropout": (last, nn.GRU(4, 6, 2, dropout=0.1), "dropout between its layers"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_lengths_is_refused(name: str) -> None:
    then, layer, why = REFUSED[name]
    with pytest.raises(ModelError, match=why):
        capture(Sequences(then, layer), IDS)


def test_torch_is_as_it_was_afterwards() -> None:
    forward = nn.GRU.forward
    with pytest.raises(ModelError):
        capture(Sequences(longest, nn.GRU(4, 6)), IDS)
    assert nn.GRU.forward is forward
    assert pack(torch.ones(2, 3, 4), torch.tensor([1, 3])).data.shape == (4, 4)
