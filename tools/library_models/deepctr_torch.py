"""The models of deepctr-torch: all features packed into one matrix of floats, as `fit` packs them."""

from collections.abc import Callable, Iterator

import torch
from deepctr_torch import models
from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat
from torch import nn

from library_models.case import Case, Ids, Numbers

ROWS = (50, 60, 70, 80)
LENGTH = 6
FIELDS = [SparseFeat(f"C{k}", rows, embedding_dim=8) for k, rows in enumerate(ROWS)]
DENSE = [DenseFeat(f"I{k}", 1) for k in range(3)]
BEHAVIOUR = [
    SparseFeat("user", 50, embedding_dim=8),
    SparseFeat("item_id", 70, embedding_dim=8),
    VarLenSparseFeat(SparseFeat("hist_item_id", 70, embedding_dim=8, embedding_name="item_id"), LENGTH, length_name="seq_length"),
    DenseFeat("score", 3),
]  # fmt: skip
NEGATIVES = [
    *BEHAVIOUR[:3],
    VarLenSparseFeat(SparseFeat("neg_hist_item_id", 70, embedding_dim=8, embedding_name="item_id"), LENGTH, length_name="seq_length"),
    DenseFeat("score", 3),
]  # fmt: skip


class Fields(nn.Module):
    """sparse[B,F] and dense[B,D] as the columns of one matrix."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sparse: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """The first column of what the model gives: one for each task."""
        outputs = self.model(torch.cat([sparse.float(), dense], 1))
        return outputs[:, 0] if outputs.shape[1] > 1 else outputs


class Behaviour(nn.Module):
    """user[B,1], item[B,1], history[B,L], length[B,1] and dense[B,D] as the columns of one matrix."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        user: torch.Tensor,
        item: torch.Tensor,
        history: torch.Tensor,
        length: torch.Tensor,
        dense: torch.Tensor,
    ) -> torch.Tensor:
        """-> probability[B,1]."""
        ids = torch.cat([user, item, history, length], 1)
        return self.model(torch.cat([ids.float(), dense], 1))


class Negatives(nn.Module):
    """`Behaviour` with a history of what was not clicked."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        user: torch.Tensor,
        item: torch.Tensor,
        history: torch.Tensor,
        length: torch.Tensor,
        negative: torch.Tensor,
        dense: torch.Tensor,
    ) -> torch.Tensor:
        """-> probability[B,1]."""
        ids = torch.cat([user, item, history, length, negative], 1)
        return self.model(torch.cat([ids.float(), dense], 1))


def cases() -> Iterator[Case]:
    """Every model with its defaults, some with the batch norms and dropouts that they offer, and the forms that change what they compute."""
    inputs = {"sparse": Ids(4, 50), "dense": Numbers(3)}
    for name, make in _of_fields().items():
        yield Case("deepctr-torch", name, lambda make=make: Fields(make()), inputs)
    behaviour = {
        "user": Ids(1, 50),
        "item": Ids(1, 70),
        "history": Ids(LENGTH, 70),
        "length": Ids(1, LENGTH + 1),
        "dense": Numbers(3),
    }
    for name, make in _of_behaviour().items():
        yield Case("deepctr-torch", name, lambda make=make: Behaviour(make()), behaviour)
    negatives = {**{n: behaviour[n] for n in list(behaviour)[:4]}, "negative": Ids(LENGTH, 70), "dense": Numbers(3)}

    def with_negatives() -> nn.Module:
        return Negatives(models.DIEN(NEGATIVES, ["item_id"], gru_type="AUGRU", use_negsampling=True))

    yield Case("deepctr-torch", "DIEN AUGRU negatives", with_negatives, negatives)


def _of_fields() -> dict[str, Callable[[], nn.Module]]:
    both = [*FIELDS, *DENSE]
    norms = {"dnn_dropout": 0.5, "dnn_use_bn": True}
    of_two = (models.WDL, models.DeepFM, models.xDeepFM, models.DIFM, models.IFM, models.AutoInt, models.DCN, models.DCNMix,
              models.FiBiNET, models.NFM, models.ONN, models.AFN)  # fmt: skip
    of_one = (models.MLR, models.PNN, models.SharedBottom, models.ESMM, models.MMOE, models.PLE)
    makers: dict[str, Callable[[], nn.Module]] = {}
    for model in of_two:
        makers[model.__name__] = lambda model=model: model(both, both)
    for model in (models.AFM, models.CCPM):  # of ids alone
        makers[model.__name__] = lambda model=model: model(FIELDS, FIELDS)
    for model in of_one:
        makers[model.__name__] = lambda model=model: model(both)
    for model in (models.WDL, models.DeepFM, models.xDeepFM, models.DCN, models.AutoInt):
        makers[f"{model.__name__} bn dropout"] = lambda model=model: model(both, both, **norms)
    for model in (models.MMOE, models.PLE):
        makers[f"{model.__name__} bn dropout"] = lambda model=model: model(both, **norms)
    makers["DeepFM prelu"] = lambda: models.DeepFM(both, both, dnn_activation="prelu")
    makers["DCN matrix"] = lambda: models.DCN(both, both, cross_parameterization="matrix")
    makers["NFM dropout"] = lambda: models.NFM(both, both, bi_dropout=0.5, dnn_dropout=0.5)
    makers["PNN outer"] = lambda: models.PNN(both, use_inner=True, use_outter=True)
    makers["FiBiNET all"] = lambda: models.FiBiNET(both, both, bilinear_type="all")
    makers["FiBiNET each"] = lambda: models.FiBiNET(both, both, bilinear_type="each")
    return makers


def _of_behaviour() -> dict[str, Callable[[], nn.Module]]:
    makers: dict[str, Callable[[], nn.Module]] = {
        "DIN": lambda: models.DIN(BEHAVIOUR, ["item_id"]),
        "DIN bn dropout": lambda: models.DIN(BEHAVIOUR, ["item_id"], dnn_use_bn=True, dnn_dropout=0.5),
        "DIN weights": lambda: models.DIN(BEHAVIOUR, ["item_id"], att_weight_normalization=True, att_activation="relu"),
        "DeepFM pooled": lambda: models.DeepFM(BEHAVIOUR, BEHAVIOUR),
    }
    for gru in ("GRU", "AIGRU", "AGRU", "AUGRU"):
        makers[f"DIEN {gru}"] = lambda gru=gru: models.DIEN(BEHAVIOUR, ["item_id"], gru_type=gru)
    return makers
