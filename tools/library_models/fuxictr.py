"""The model zoo of FuxiCTR: a dict of features -> {"y_pred": probability}.

The wheel has the zoo's models for long sequences alone; these are in the folder model_zoo of its repository.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from fuxictr.features import FeatureMap
from torch import nn

from library_models.case import Case, Ids, Numbers

ROWS = (50, 60, 70, 80)
LENGTH = 6
SETTINGS: dict[str, Any] = {
    "gpu": -1, "optimizer": "adam", "loss": "binary_crossentropy", "metrics": ["AUC"], "verbose": 0, "model_root": os.devnull, "embedding_dim": 8,
    "net_dropout": 0.1, "batch_norm": True, "hidden_units": [32, 16], "dnn_hidden_units": [32, 16],
}  # fmt: skip
FIELDS = (
    "LR.src.LR", "FM.src.FM", "FFM.src.FFM", "FFM.src.FFMv2", "FwFM.src.FwFM", "FmFM.src.FmFM", "HFM.src.HFM", "HOFM.src.HOFM", "LorentzFM.src.LorentzFM",
    "AFM.src.AFM", "NFM.src.NFM", "DNN.DNN_torch.src.DNN", "WideDeep.WideDeep_torch.src.WideDeep", "DeepFM.DeepFM_torch.src.DeepFM", "DCN.DCN_torch.src.DCN",
    "DCNv2.src.DCNv2", "xDeepFM.src.xDeepFM", "AutoInt.src.AutoInt", "AFN.src.AFN", "AOANet.src.AOANet", "CCPM.src.CCPM", "DESTINE.src.DESTINE",
    "DLRM.src.DLRM", "DSSM.src.DSSM", "DeepCrossing.src.DeepCrossing", "DeepIM.src.DeepIM", "EDCN.src.EDCN", "EulerNet.src.EulerNet", "FGCNN.src.FGCNN",
    "FLEN.src.FLEN", "FiBiNET.src.FiBiNET", "FiGNN.src.FiGNN", "FinalMLP.src.FinalMLP", "FinalMLP.src.DualMLP", "FinalNet.src.FinalNet", "GDCN.src.GDCN",
    "InterHAt.src.InterHAt", "MaskNet.src.MaskNet", "ONN.ONN_torch.src.ONN", "ONN.ONN_torch.src.ONNv2", "PNN.src.PNN", "QNN.src.QNN", "QNN.src.QNN_alpha",
    "SAM.src.SAM", "WuKong.src.WuKong", "APG.src.APG_DeepFM", "APG.src.APG_DCNv2", "PEPNet.src.PPNet",
)  # fmt: skip
BEHAVIOUR = ("DIN.src.DIN", "BST.src.BST", "DIEN.src.DIEN", "DMIN.src.DMIN", "DMR.src.DMR", "TransAct.src.TransAct")
TASKS = ("multitask.MMoE.src.MMoE", "multitask.PLE.src.PLE", "multitask.ShareBottom.src.ShareBottom")


class Fields(nn.Module):
    """sparse[B,F] and dense[B,D] as a dict of columns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sparse: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """-> probability[B,1], of several tasks that of the first."""
        columns = {f"C{k}": sparse[:, k] for k in range(sparse.shape[1])}
        return next(iter(self.model({**columns, **{f"I{k}": dense[:, k] for k in range(dense.shape[1])}}).values()))


class Behaviour(nn.Module):
    """A user, an item of a category, the items before and items that were not clicked, with their categories."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, sparse: torch.Tensor, history: torch.Tensor, categories: torch.Tensor, negative: torch.Tensor
    ) -> torch.Tensor:
        """sparse[B,3], the others [B,L] -> probability[B,1]."""
        columns = {name: sparse[:, k] for k, name in enumerate(("user_id", "item_id", "cate_id"))}
        before = {"click_history": history, "cate_history": categories}
        not_clicked = {"neg_click_history": negative, "neg_cate_history": categories}
        return self.model({**columns, **before, **not_clicked})["y_pred"]


def cases() -> Iterator[Case]:
    """Models of fields, of behaviour, and of several tasks, each with batch norm and dropout where it takes them."""
    fields = {"sparse": Ids(4, 50), "dense": Numbers(2)}
    for path in (*FIELDS, *TASKS):
        yield Case("fuxictr", _name(path), lambda path=path: Fields(_of_fields(path)), fields)
    behaviour = {"sparse": Ids(3, 50), **{name: Ids(LENGTH, 50) for name in ("history", "categories", "negative")}}
    for path in BEHAVIOUR:
        yield Case("fuxictr", _name(path), lambda path=path: Behaviour(_of_behaviour(path)), behaviour)


def _name(path: str) -> str:
    return path.rpartition(".")[2]


def _class(path: str) -> type:
    return getattr(import_module(f"model_zoo.{path}"), _name(path))


def _of_fields(path: str) -> nn.Module:
    sources = ("user", "user", "item", "item")
    features = {f"C{k}": _ids(rows, sources[k]) for k, rows in enumerate(ROWS)}
    features |= {f"I{k}": {"type": "numeric", "source": "context", "vocab_size": 1} for k in range(2)}
    units = [32, 16]
    of_one: dict[str, dict[str, Any]] = {
        "PPNet": {"gate_priors": ["C0"]},
        "DCNv2": {"parallel_dnn_hidden_units": units, "stacked_dnn_hidden_units": units},
        "APG_DCNv2": {"parallel_dnn_hidden_units": [64, 64], "stacked_dnn_hidden_units": [64, 64]},
        "APG_DeepFM": {"hidden_units": [64, 64]},
    }
    own = of_one.get(_name(path), {})
    labels = ["label"]
    if path in TASKS:
        labels = ["label", "buy"]
        own = {"task": ["binary_classification"] * 2, "num_tasks": 2, "loss": ["binary_crossentropy"] * 2}
    return _class(path)(_map(features, labels), **{**SETTINGS, **own})


def _of_behaviour(path: str) -> nn.Module:
    features = {"user_id": _ids(50, "user"), "item_id": _ids(60, "item"), "cate_id": _ids(70, "item")}
    for prefix in ("", "neg_"):
        features |= {f"{prefix}click_history": _list("item_id", 60), f"{prefix}cate_history": _list("cate_id", 70)}
    own = {"context_field": "user_id"} if _name(path) == "DMR" else {}
    if _name(path) in ("DIN", "BST", "TransAct"):
        features = {name: spec for name, spec in features.items() if not name.startswith("neg_")}
        return _Known(_class(path)(_map(features, ["label"]), **SETTINGS), tuple(features))
    return _class(path)(_map(features, ["label"]), **{**SETTINGS, **own})


class _Known(nn.Module):
    """A model that takes these features alone."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, columns: dict[str, torch.Tensor]) -> Any:
        """What the model gives."""
        return self.model({name: columns[name] for name in self.names})


def _ids(rows: int, source: str) -> dict[str, Any]:
    return {"type": "categorical", "source": source, "vocab_size": rows, "padding_idx": 0}


def _list(shared: str, rows: int) -> dict[str, Any]:
    return {"type": "sequence", "source": "user", "vocab_size": rows, "padding_idx": 0, "max_len": LENGTH, "share_embedding": shared}  # fmt: skip


def _map(features: dict[str, dict[str, Any]], labels: list[str]) -> FeatureMap:
    known = FeatureMap("tiny", "")
    known.features = OrderedDict(features)
    known.labels, known.default_emb_dim = labels, SETTINGS["embedding_dim"]
    known.num_fields = known.get_num_fields()
    known.total_features = sum(spec.get("vocab_size", 1) for spec in features.values())
    known.set_column_index()
    return known
