"""Recurrent layers over packed sequences are trained as by PyTorch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from taken_out import assert_trained_and_exported_alike
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
    "dropout": (padded, lambda: nn.GRU(4, 3, 3, bidirectional=True, dropout=0.2)),
    "a state": (both, lambda: nn.GRU(4, 3, bidirectional=True)),
    "lstm": (last, lambda: nn.LSTM(4, 6, batch_first=True)),
    "a chain": (chained, lambda: nn.ModuleList([nn.RNN(4, 6, nonlinearity="relu"), nn.GRU(6, 6)])),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_packed_is_trained_as_by_pytorch(name: str) -> None:
    then, layer = CASES[name]
    model = capture_model(Sequences(then, layer()), schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert model.compare(Options()).notes == ()


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


class Stepwise(nn.Module):
    """A cell of its own, with a gate by a score of each step: the packed data are read step by step, as those of DIEN's AUGRU are."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.cell, self.hidden = nn.GRUCell(width, hidden), hidden

    def forward(self, sequences: PackedSequence, scores: PackedSequence) -> PackedSequence:
        data, batch_sizes, sorted_indices, unsorted_indices = sequences
        gates, _, _, _ = scores
        state = torch.zeros(int(batch_sizes[0]), self.hidden, dtype=data.dtype)
        outputs = torch.zeros(data.size(0), self.hidden)
        begin = 0
        for batch in batch_sizes:
            gate = gates[begin : begin + batch].view(-1, 1)
            state = gate * self.cell(data[begin : begin + batch], state[0:batch]) + (1 - gate) * state[0:batch]
            outputs[begin : begin + batch] = state
            begin += batch
        return PackedSequence(outputs, batch_sizes, sorted_indices, unsorted_indices)


def stepwise(model: Any, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    outputs = model.layer(pack(rows, lengths), pack(torch.sigmoid(rows.sum(2)), lengths))
    unpacked, counted = pad_packed_sequence(outputs, batch_first=True, total_length=3)
    return unpacked[torch.arange(len(unpacked)), counted - 1]


def stepwise_of_some(model: Any, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Of the examples that a mask picks, as others have no sequence."""
    made, mask = torch.zeros(len(rows), 6), lengths > 1
    picked = torch.masked_select(rows, mask.view(-1, 1, 1)).view(-1, 3, 4)
    if picked.shape[0] == 0:
        return made
    made[mask] = stepwise(model, picked, lengths[mask])
    return made


def longest(model: Any, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return pad_packed_sequence(model.layer(pack(rows, lengths))[0], batch_first=True)[0]


def masked(model: Any, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Attention over what is within each sequence, as NARM has it."""
    outputs, state = model.layer(pack(rows, lengths))
    outputs, counted = pad_packed_sequence(outputs, batch_first=True)
    inside = torch.arange(outputs.size(1)) < counted[:, None]
    shares = torch.softmax((outputs * state[0][:, None]).sum(2).masked_fill(~inside, -1e9), 1)
    return (shares[:, :, None] * outputs).sum(1) + outputs.gather(1, (counted - 1)[:, None, None].expand(-1, 1, 6))[
        :, 0
    ]


def by_data(model: Any, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    packed = pack(rows, lengths)
    made = PackedSequence(packed.data.tanh(), packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    return model.layer(made._replace(data=made.data + 1))[1][0]


def listed(model: Any, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    numbers = pack_padded_sequence(rows, lengths.tolist(), batch_first=True, enforce_sorted=False)
    return model.layer(numbers)[1][0] + model.layer(pack(rows, lengths.numpy()))[1][0]


OF_LENGTHS: dict[str, tuple[Forward, Callable[[], nn.Module]]] = {
    "steps": (stepwise, lambda: Stepwise(4, 6)),
    "steps of some": (stepwise_of_some, lambda: Stepwise(4, 6)),
    "a masked attention": (masked, lambda: nn.GRU(4, 6)),
    "a sum": (lambda m, rows, lengths: longest(m, rows, lengths).sum(1), lambda: nn.GRU(4, 6)),
    "data": (by_data, lambda: nn.GRU(4, 6)),
}


@pytest.mark.parametrize("name", OF_LENGTHS)
def test_what_is_made_of_packed_sequences_alone_is_trained_as_by_pytorch(name: str) -> None:
    then, layer = OF_LENGTHS[name]
    model = capture_model(Sequences(then, layer()), schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert model.compare(Options()).notes == ()
    (note,) = [note for note in model.captured.notes if note.startswith("packed")]
    assert f"{__file__}:" in note


def test_lengths_may_be_a_list_or_an_array() -> None:
    model = capture_model(Sequences(listed, nn.GRU(4, 6)), schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert model.compare(Options()).notes == ()
    assert not any(note.startswith("packed") for note in model.captured.notes)


def mean(model: Any, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Only a batch without any long sequence shows that it is of the longest one."""
    return longest(model, rows, lengths).mean(1)


DIFFERENT: dict[str, tuple[Forward, nn.Module]] = {
    "a mean": (mean, nn.GRU(4, 6)),
    "an attention to all": (lambda m, rows, lengths: torch.softmax(longest(m, rows, lengths), 1).pow(2).sum(1), nn.GRU(4, 6)),
    "all steps": (lambda m, rows, lengths: pack(rows, lengths).data.mean() * rows.new_ones(len(rows), 6), nn.GRU(4, 6)),
    "a part of a tuple": (lambda m, rows, lengths: pack(rows, lengths)[0].sum() * rows.new_ones(len(rows), 6), nn.GRU(4, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_asks_for_the_longest_sequence_or_all_steps_is_refused_by_the_self_check(name: str) -> None:
    then, layer = DIFFERENT[name]
    model = capture_model(Sequences(then, layer), schema=CRITEO, example_inputs=IDS, logit="", label="")
    message = r"^forward\(\) asks how long the longest .* \(\S+test_packed_sequences.py:\d+\): .* give pad_packed_sequence total_length"
    with pytest.raises(ModelError, match=message):
        model.compare(Options())


REFUSED: dict[str, tuple[Forward, nn.Module, str]] = {
    "another length": (lambda m, rows, lengths: pad_packed_sequence(pack(rows, lengths), total_length=5)[0], nn.GRU(4, 6), "of 3 to 5: give .*total_length=3"),
    "sorted": (lambda m, rows, lengths: m.layer(pack_padded_sequence(rows, lengths, batch_first=True))[1], nn.GRU(4, 6), "enforce_sorted=False"),
    "cells": (lambda m, rows, lengths: m.layer(pack(rows, lengths))[1][1] * 2, nn.LSTM(4, 6), r"reads the cell state of an LSTM .*_sequences.py:\d+\)"),
    "projections": (last, nn.LSTM(4, 6, proj_size=3), "has projections: build it without"),
    "a list": (lambda m, rows, lengths: rows[:, : max(lengths.tolist())], nn.GRU(4, 6), r"reads what .tolist\(\) gives .*_sequences.py:\d+\)"),
    "an array": (lambda m, rows, lengths: rows * lengths.numpy().mean(), nn.GRU(4, 6), r"reads what .numpy\(\) gives .*_sequences.py:\d+\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_lengths_is_refused(name: str) -> None:
    then, layer, why = REFUSED[name]
    with pytest.raises(ModelError, match=why):
        capture(Sequences(then, layer), IDS)


STEPS, BATCH, ROWS = 6, 16, 30
CLICKS = f"synthetic:?rows={STEPS * BATCH}&table_rows={ROWS}"


class Evolving(nn.Module):
    """A session of four clicks at most, by a cell of its own and by a GRU over sequences that are padded to the longest."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.layer, self.gru = nn.Embedding(ROWS, 4), Stepwise(4, 6), nn.GRU(4, 6, batch_first=True)
        self.top = nn.Linear(12 + 13, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        rows, lengths = self.rows(sparse[:, 1:5]), sparse[:, 0] % 4 + 1
        evolved = self.layer(pack(rows, lengths.cpu()), pack(torch.sigmoid(rows.mean(2)), lengths.cpu()))
        last = pad_packed_sequence(evolved, batch_first=True, total_length=4)[0][torch.arange(len(rows)), lengths - 1]
        outputs = pad_packed_sequence(self.gru(pack(rows, lengths.cpu()))[0], batch_first=True)[0]
        inside = torch.arange(outputs.size(1)) < lengths[:, None]
        return self.top(torch.cat([last, (outputs * inside[:, :, None]).sum(1), dense], 1)).squeeze(1)


@pytest.mark.parametrize(
    "counts", [{"group_ps": 0, "sparse_ps": 0}, {"group_ps": 1, "sparse_ps": 2}], ids=["one trainer", "PSs"]
)
def test_steps_are_trained_and_exported_as_by_pytorch(counts: dict[str, int], tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = {"dense": torch.zeros(4, 13), "sparse": torch.zeros(4, 26, dtype=torch.int64)}
    assert_trained_and_exported_alike(Evolving(), inputs, CLICKS, tmp_path, batch_size=BATCH, **counts)


def test_torch_is_as_it_was_afterwards() -> None:
    forward = nn.GRU.forward
    with pytest.raises(ModelError):
        capture(Sequences(lambda m, rows, lengths: rows * max(lengths.tolist()), nn.GRU(4, 6)), IDS)
    assert nn.GRU.forward is forward
    assert pack(torch.ones(2, 3, 4), torch.tensor([1, 3])).data.shape == (4, 4)
