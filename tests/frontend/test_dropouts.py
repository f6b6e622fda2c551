"""Recurrent layers with dropout between them are trained as by PyTorch."""

import pytest
import torch
from torch import nn

from htrain.data import CRITEO
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options

IDS = {"ids": torch.tensor([[0, 1, 2, 1], [3, 2, 0, 0], [2, 2, 2, 2]])}
LAYERS = {
    "GRU": lambda: nn.GRU(3, 3, 3, batch_first=True, dropout=0.3),
    "LSTM of two directions": lambda: nn.LSTM(3, 3, 2, batch_first=True, dropout=0.3, bidirectional=True),
    "LSTM with projections": lambda: nn.LSTM(3, 3, 2, batch_first=True, dropout=0.3, proj_size=2),
    "RNN without biases": lambda: nn.RNN(3, 3, 2, batch_first=True, dropout=0.3, bias=False),
    "RNN of ReLUs": lambda: nn.RNN(3, 3, 2, batch_first=True, dropout=0.3, nonlinearity="relu"),
}


class Sequence(nn.Module):
    def __init__(self, layers: nn.RNNBase) -> None:
        super().__init__()
        self.rows, self.layers, self.top = nn.Embedding(9, 3), layers, nn.LazyLinear(1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        output, states = self.layers(self.rows(ids))
        ends = [state.transpose(0, 1).flatten(1) for state in (states if isinstance(states, tuple) else (states,))]
        return self.top(torch.cat([output.mean(1), *ends], 1)).squeeze(1)


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers_with_dropout_between_them_are_trained_as_by_pytorch(name: str) -> None:
    module = Sequence(LAYERS[name]())
    module(**IDS)
    model = capture_model(module, schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert model.compare(Options()).notes == ()
    dropouts = [op.attrs["p"] for op in model.captured.net.ops if op.type == "Dropout"]
    assert dropouts == [0.3] * (module.layers.num_layers - 1)
    module.eval()
    model = capture_model(module, schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert not [op for op in model.captured.net.ops if op.type == "Dropout"]
