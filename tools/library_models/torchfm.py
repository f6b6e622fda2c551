"""The models of torchfm: ids of some fields [B,F] -> probability[B]."""

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torchfm.model import afi, afm, afn, dcn, dfm, ffm, fm, fnfm, fnn, lr, ncf, nfm, pnn, wd, xdfm

from library_models.case import Case, Ids

FIELDS = (50, 60, 70, 80)


class Fields(nn.Module):
    """One tensor of ids, as the library's own loader gives it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        """sparse[B,F] -> probability[B]."""
        return self.model(sparse)


def cases() -> Iterator[Case]:
    """Every model, with the sizes of the library's example (examples/main.py), smaller."""
    attention = {"embed_dim": 8, "atten_embed_dim": 16, "num_heads": 2, "num_layers": 3, "mlp_dims": (16,)}
    deep = {"embed_dim": 8, "mlp_dims": (16, 16)}
    makers: dict[str, Callable[[], nn.Module]] = {
        "lr": lambda: lr.LogisticRegressionModel(FIELDS),
        "fm": lambda: fm.FactorizationMachineModel(FIELDS, embed_dim=8),
        "ffm": lambda: ffm.FieldAwareFactorizationMachineModel(FIELDS, embed_dim=4),
        "dfm": lambda: dfm.DeepFactorizationMachineModel(FIELDS, dropout=0.2, **deep),
        "fnn": lambda: fnn.FactorizationSupportedNeuralNetworkModel(FIELDS, dropout=0.2, **deep),
        "wd": lambda: wd.WideAndDeepModel(FIELDS, dropout=0.2, **deep),
        "ipnn": lambda: pnn.ProductNeuralNetworkModel(FIELDS, dropout=0.2, method="inner", **deep),
        "opnn": lambda: pnn.ProductNeuralNetworkModel(FIELDS, dropout=0.2, method="outer", **deep),
        "dcn": lambda: dcn.DeepCrossNetworkModel(FIELDS, num_layers=3, dropout=0.2, **deep),
        "nfm": lambda: nfm.NeuralFactorizationMachineModel(FIELDS, dropouts=(0.2, 0.2), **deep),
        "ncf": lambda: ncf.NeuralCollaborativeFiltering(FIELDS, user_field_idx=[0], item_field_idx=[1], dropout=0.2, embed_dim=8, mlp_dims=(16, 8)),
        "fnfm": lambda: fnfm.FieldAwareNeuralFactorizationMachineModel(FIELDS, dropouts=(0.2, 0.2), embed_dim=4, mlp_dims=(16,)),
        "xdfm": lambda: xdfm.ExtremeDeepFactorizationMachineModel(FIELDS, dropout=0.2, cross_layer_sizes=(8, 8), split_half=False, **deep),
        "xdfm split": lambda: xdfm.ExtremeDeepFactorizationMachineModel(FIELDS, dropout=0.2, cross_layer_sizes=(8, 8), **deep),
        "afm": lambda: afm.AttentionalFactorizationMachineModel(FIELDS, embed_dim=8, attn_size=8, dropouts=(0.2, 0.2)),
        "afi": lambda: afi.AutomaticFeatureInteractionModel(FIELDS, dropouts=(0.1, 0.2), **attention),
        "afn": lambda: afn.AdaptiveFactorizationNetwork(FIELDS, embed_dim=8, LNN_dim=30, mlp_dims=(16,), dropouts=(0.1, 0.2)),
    }  # fmt: skip
    for name, make in makers.items():
        yield Case("torchfm", name, lambda make=make: Fields(make()), {"sparse": Ids(4, 50)})
