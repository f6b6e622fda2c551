"""The models of RecBole, built as its quick start builds them: a config, a dataset of a few small files, a model of both.

A context-aware model gives the logit by forward(); any other is asked for the score of a user and an item, after the items before it, by predict().
"""

import logging
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.data.interaction import Interaction
from recbole.utils import get_model, init_seed
from torch import nn

from library_models.case import Case, Ids

for name, now in {"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_}.items():
    setattr(np, name, now)  # RecBole reads names that NumPy 2 no longer has
LENGTH, CLASSES, ROWS = 6, 3, 20
FIELDS = ("user_id", "item_id", "age", "gender", "occupation", "release_year")
CONTEXT = ("LR", "FM", "NFM", "DeepFM", "xDeepFM", "AFM", "FFM", "FwFM", "FNN", "PNN", "DSSM", "WideDeep", "DCN", "DCNV2", "AutoInt", "FiGNN",
           "EulerNet", "KD_DAGFM")  # fmt: skip
SEQUENTIAL = ("FPMC", "GRU4Rec", "NARM", "STAMP", "Caser", "NextItNet", "TransRec", "SASRec", "BERT4Rec", "SRGNN", "GCSAN", "GRU4RecF", "SASRecF",
              "FDSA", "HGN", "HRM", "NPE", "SHAN", "RepeatNet", "LightSANs", "SINE", "CORE", "FEARec", "FOSSIL", "DIN", "DIEN", "SASRecCPR",
              "GRU4RecCPR", "S3Rec")  # fmt: skip
GENERAL = ("BPR", "NeuMF", "ConvNCF", "DMF", "FISM", "NAIS", "SpectralCF", "GCMC", "NGCF", "LightGCN", "DGCF", "LINE", "MultiVAE", "MultiDAE",
           "MacridVAE", "CDAE", "ENMF", "NNCF", "RaCT", "RecVAE", "SGL", "SimpleX", "NCL", "DiffRec")  # fmt: skip
KNOWLEDGE = ("CKE", "CFKG", "KTUP", "MKR", "KGCN", "KGNNLS", "KGAT", "RippleNet", "KGIN", "MCCLK")


class Context(nn.Module):
    """Fields of a user and an item: sparse[B,F] and a list of classes[B,C] -> logit[B]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sparse: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """-> logit[B]."""
        columns = {name: sparse[:, k] for k, name in enumerate(FIELDS)}
        return self.model(Interaction({**columns, "class": classes}))


class Pair(nn.Module):
    """The score of user[B,1] and item[B,1], which count from 1 in recbole: nobody has rated the padding 0."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        """-> score[B]."""
        return self.model.predict(Interaction({"user_id": user[:, 0] + 1, "item_id": item[:, 0] + 1}))  # type: ignore[operator]


class Sequence(nn.Module):
    """The score of item[B,1] after history[B,L], of which the first length[B,1] + 1 count."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, user: torch.Tensor, item: torch.Tensor, history: torch.Tensor, length: torch.Tensor
    ) -> torch.Tensor:
        """-> score[B]."""
        known = {"user_id": user[:, 0], "item_id": item[:, 0], "item_id_list": history, "item_length": length[:, 0] + 1}
        known |= {"neg_item_id_list": history, "Inverse_item_id_list": history.flip(1)}  # what DIEN and SHAN ask for
        return self.model.predict(Interaction(known))  # type: ignore[operator]


def cases() -> Iterator[Case]:
    """Every model with the settings that it is shipped with."""
    logging.disable(logging.INFO)
    fields = {"sparse": Ids(len(FIELDS), ROWS), "classes": Ids(CLASSES, ROWS)}
    pair = {"user": Ids(1, ROWS - 1), "item": Ids(1, ROWS - 1)}
    sequence = {"user": Ids(1, ROWS), "item": Ids(1, ROWS), "history": Ids(LENGTH, ROWS), "length": Ids(1, LENGTH)}
    for name in CONTEXT:
        yield Case("recbole", name, lambda name=name: Context(built(name)), fields)
    for name in SEQUENTIAL:
        yield Case("recbole", name, lambda name=name: Sequence(built(name)), sequence)
    for name in (*GENERAL, *KNOWLEDGE):
        yield Case("recbole", name, lambda name=name: Pair(built(name)), pair)


def built(name: str) -> nn.Module:
    """A model over the small dataset."""
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder) / "tiny")
        config = Config(model=name, dataset="tiny", config_dict=_settings(name, folder))
        init_seed(0, True)
        dataset = create_dataset(config)
        train_data, _, _ = data_preparation(config, dataset)
        items = train_data if hasattr(train_data, "dataset") else train_data.general_dataloader  # of a graph beside
        return get_model(name)(config, items.dataset)


def _settings(name: str, folder: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "data_path": folder,
        "use_gpu": False,
        "show_progress": False,
        "state": "ERROR",
        "checkpoint_dir": folder,
    }
    columns = {"inter": ["user_id", "item_id", "rating", "timestamp"]}
    if name in CONTEXT:
        settings["threshold"] = {"rating": 3}
        columns |= {"user": ["user_id", "age", "gender", "occupation"], "item": ["item_id", "release_year", "class"]}
    elif name in SEQUENTIAL:
        settings |= {"MAX_ITEM_LIST_LENGTH": LENGTH}
        columns["item"] = ["item_id", "release_year", "class"]
        if name not in ("DIN", "DIEN", "RepeatNet"):
            settings["train_neg_sample_args"] = None
        if name in ("GRU4RecF", "SASRecF", "FDSA"):
            settings["selected_features"] = ["class"]
        if name == "S3Rec":
            settings |= {"train_stage": "pretrain", "item_attribute": "class"}
        if name in ("DIN", "DIEN"):
            settings["threshold"] = {"rating": 3}
    elif name in KNOWLEDGE:
        columns |= {"kg": ["head_id", "relation_id", "tail_id"], "link": ["item_id", "entity_id"]}
    if name == "DSSM":
        settings |= {"double_tower": True}
    return settings | {"load_col": columns}


def _write(folder: Path) -> None:
    """30 users, 40 items, 900 ratings, and a graph of the items."""
    draw = random.Random(0)
    folder.mkdir()
    ratings = [(f"u{k % 30}", f"i{draw.randrange(40)}", draw.randint(1, 5), k) for k in range(900)]
    _table(folder / "tiny.inter", "user_id:token item_id:token rating:float timestamp:float", ratings)
    users = [(f"u{k}", f"a{k % 25}", f"g{k % 25}", f"o{k % 28}") for k in range(30)]
    _table(folder / "tiny.user", "user_id:token age:token gender:token occupation:token", users)
    items = [(f"i{k}", f"y{k % 25}", " ".join(f"c{(k + j) % 25}" for j in range(CLASSES))) for k in range(40)]
    _table(folder / "tiny.item", "item_id:token release_year:token class:token_seq", items)
    graph = [(f"e{k % 40}", f"r{k % 3}", f"e{draw.randrange(60)}") for k in range(300)]
    _table(folder / "tiny.kg", "head_id:token relation_id:token tail_id:token", graph)
    _table(folder / "tiny.link", "item_id:token entity_id:token", [(f"i{k}", f"e{k}") for k in range(40)])


def _table(path: Path, header: str, rows: list[tuple]) -> None:
    lines = ["\t".join(header.split()), *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
