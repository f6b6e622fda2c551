"""Twelve models of click logs, as four libraries ship them, over the columns of a synthetic log (`tools/bench/models_over_eager.py`).

Each is a factory as `htrain compile` takes it: 26 columns of ids, 13 numbers, and the sizes that the papers and the libraries' examples are near to: rows of
16 numbers (FFM's of 4), FCs of 256 and 128, the dropouts of the libraries' examples. torchfm's models take the ids alone, and hold all columns in one table.
"""

from pathlib import Path

import torch
from deepctr_torch import inputs
from deepctr_torch.models import DeepFM
from torch import nn
from torch_rechub.basic.features import DenseFeature, SequenceFeature, SparseFeature
from torch_rechub.models.multi_task import MMOE
from torch_rechub.models.ranking import DIN, DCNv2, WideDeep
from torchfm.model.afi import AutomaticFeatureInteractionModel
from torchfm.model.afm import AttentionalFactorizationMachineModel
from torchfm.model.dcn import DeepCrossNetworkModel
from torchfm.model.ffm import FieldAwareFactorizationMachineModel
from torchfm.model.fm import FactorizationMachineModel
from torchfm.model.xdfm import ExtremeDeepFactorizationMachineModel

from htrain.data import Schema
from htrain.own.code import import_place

DIM, HIDDEN, DROPOUT = 16, (256, 128), 0.2
_PROFILE = 5  # columns that say who it is; then comes the item, and the items before it


class OfIds(nn.Module):
    """A model of torchfm."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        """sparse[B,F] -> probability[B]."""
        return self.model(sparse)


class OfColumns(nn.Module):
    """A model of torch-rechub: a dict of columns by name. Of several tasks the mean, so that all are trained."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sparse: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """sparse[B,F], dense[B,D] -> probability[B]."""
        columns = {f"C{k}": sparse[:, k] for k in range(sparse.shape[1])}
        outputs = self.model({**columns, **{f"I{k}": dense[:, k] for k in range(dense.shape[1])}})
        return outputs.mean(1) if outputs.dim() > 1 else outputs


class OfBehaviour(nn.Module):
    """A model of torch-rechub that attends to a history."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        """sparse[B,F], of which the first columns are a profile, then an item, and all others the items before -> probability[B]."""
        columns = {f"C{k}": sparse[:, k] for k in range(_PROFILE + 1)}
        return self.model({**columns, "history": sparse[:, _PROFILE + 1 :]})


class OfMatrix(nn.Module):
    """A model of deepctr-torch: all columns in one matrix of floats."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sparse: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """sparse[B,F], dense[B,D] -> probability[B]."""
        return self.model(torch.cat([sparse.float(), dense], 1))[:, 0]


def fm(schema: Schema) -> nn.Module:
    """Factorization machine (Rendle 2010)."""
    return OfIds(FactorizationMachineModel(_rows(schema), embed_dim=DIM))


def ffm(schema: Schema) -> nn.Module:
    """Field-aware factorization machine (Juan et al. 2016): a table for each column that is crossed with."""
    return OfIds(FieldAwareFactorizationMachineModel(_rows(schema), embed_dim=4))


def afm(schema: Schema) -> nn.Module:
    """Attentional factorization machine (Xiao et al. 2017)."""
    return OfIds(AttentionalFactorizationMachineModel(_rows(schema), DIM, attn_size=16, dropouts=(0.2, 0.2)))


def autoint(schema: Schema) -> nn.Module:
    """AutoInt (Song et al. 2019): self-attention over the columns."""
    sizes = {"atten_embed_dim": 64, "num_heads": 2, "num_layers": 3, "mlp_dims": HIDDEN, "dropouts": (0.0, DROPOUT)}
    return OfIds(AutomaticFeatureInteractionModel(_rows(schema), DIM, **sizes))


def dcn(schema: Schema) -> nn.Module:
    """Deep & Cross Network (Wang et al. 2017)."""
    return OfIds(DeepCrossNetworkModel(_rows(schema), DIM, num_layers=3, mlp_dims=HIDDEN, dropout=DROPOUT))


def xdeepfm(schema: Schema) -> nn.Module:
    """xDeepFM (Lian et al. 2018): a compressed interaction network beside FCs."""
    sizes = {"mlp_dims": HIDDEN, "dropout": DROPOUT, "cross_layer_sizes": (16, 16), "split_half": False}
    return OfIds(ExtremeDeepFactorizationMachineModel(_rows(schema), DIM, **sizes))


def wide_deep(schema: Schema) -> nn.Module:
    """Wide & Deep (Cheng et al. 2016)."""
    return OfColumns(WideDeep(_ids(schema), _numbers(), _mlp()))


def dcn_v2(schema: Schema) -> nn.Module:
    """DCN-v2 (Wang et al. 2021)."""
    return OfColumns(DCNv2([*_ids(schema), *_numbers()], 3, _mlp(), use_low_rank_mixture=False))


def mmoe(schema: Schema) -> nn.Module:
    """Multi-gate mixture of experts (Ma et al. 2018): two tasks, three experts."""
    kinds, towers = ["classification", "classification"], [{"dims": [64]}, {"dims": [64]}]
    return OfColumns(MMOE([*_ids(schema), *_numbers()], kinds, 3, {"dims": [128]}, towers))


def din(schema: Schema) -> nn.Module:
    """Deep Interest Network (Zhou et al. 2018): a history of 20 items."""
    shared = {"pooling": "concat", "shared_with": f"C{_PROFILE}"}
    history = SequenceFeature("history", vocab_size=_rows(schema)[-1], embed_dim=DIM, **shared)
    fields = _ids(schema)
    sizes = {"dims": list(HIDDEN), "dropout": DROPOUT}
    return OfBehaviour(DIN(fields[:_PROFILE], [history], [fields[_PROFILE]], sizes, {"dims": [64, 32]}))


def deepfm(schema: Schema) -> nn.Module:
    """DeepFM (Guo et al. 2017)."""
    ids = [inputs.SparseFeat(f"C{k}", rows, embedding_dim=DIM) for k, rows in enumerate(_rows(schema))]
    both = [*ids, *(inputs.DenseFeat(f"I{k}", 1) for k in range(_width("dense", schema)))]
    return OfMatrix(DeepFM(both, both, dnn_hidden_units=HIDDEN))


def dlrm(schema: Schema) -> nn.Module:
    """DLRM (Naumov et al. 2019), of htrain's zoo."""
    zoo = import_place(str(Path(__file__).parents[2] / "models" / "dlrm.py"))
    model: nn.Module = zoo.build(schema)
    return model


def _width(name: str, schema: Schema) -> int:
    return schema.input(name).width


def _rows(schema: Schema) -> list[int]:
    return list(schema.input("sparse").rows)


def _ids(schema: Schema) -> list[nn.Module]:
    """A feature of torch-rechub for each column of ids."""
    return [SparseFeature(f"C{k}", vocab_size=rows, embed_dim=DIM) for k, rows in enumerate(_rows(schema))]


def _numbers() -> list[nn.Module]:
    return [DenseFeature(f"I{k}") for k in range(13)]


def _mlp() -> dict[str, object]:
    return {"dims": list(HIDDEN), "dropout": DROPOUT, "activation": "relu"}
