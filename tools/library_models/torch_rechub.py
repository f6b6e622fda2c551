"""The models of torch-rechub: a dict of features by name; sequences are padded with 0."""

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch_rechub.basic.features import DenseFeature, SequenceFeature, SparseFeature
from torch_rechub.models import matching, multi_task, ranking
from torch_rechub.models.generative import hstu
from torch_rechub.models.matching.dssm_senet import DSSM as SenetDSSM

from library_models.case import Case, Ids, Numbers

ROWS = (50, 60, 70, 80)
LENGTH, NEGATIVES = 6, 3
MLP = {"dims": [16, 8], "dropout": 0.2, "activation": "relu"}
TOWER = {"dims": [16, 8], "activation": "prelu"}

Make = Callable[[], nn.Module]


def fields(size: int = 8) -> list[SparseFeature]:
    """Four fields of ids."""
    return [SparseFeature(f"C{k}", vocab_size=rows, embed_dim=size) for k, rows in enumerate(ROWS)]


def numbers() -> list[DenseFeature]:
    """Three numbers."""
    return [DenseFeature(f"I{k}") for k in range(3)]


def sequence(name: str, pooling: str = "concat") -> SequenceFeature:
    """A list of items, of one table with `item`."""
    return SequenceFeature(name, vocab_size=70, embed_dim=8, pooling=pooling, shared_with="item", padding_idx=0)


def one(name: str, rows: int) -> SparseFeature:
    """A field of ids."""
    return SparseFeature(name, vocab_size=rows, embed_dim=8, padding_idx=0)


class Fields(nn.Module):
    """sparse[B,F] and dense[B,D] as a dict of columns; of several tasks the first."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sparse: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """-> probability[B]."""
        columns = {f"C{k}": sparse[:, k] for k in range(sparse.shape[1])}
        outputs = self.model({**columns, **{f"I{k}": dense[:, k] for k in range(dense.shape[1])}})
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs  # the second is a loss beside
        return outputs[:, 0] if outputs.dim() > 1 and outputs.shape[1] > 1 else outputs


class Behaviour(nn.Module):
    """A user, an item, the items before and items that were not clicked; of several scores that of the item."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, user: torch.Tensor, item: torch.Tensor, history: torch.Tensor, negative: torch.Tensor
    ) -> torch.Tensor:
        """user[B,1], item[B,1], history[B,L], negative[B,N] -> score[B]."""
        outputs = self.model({"user": user[:, 0], "item": item[:, 0], "history": history, "negative": negative})
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs
        return outputs[:, 0] if outputs.dim() > 1 else outputs


class Shifted(nn.Module):
    """SASRec as its loader feeds it: the sequence and what follows at each place; the last place is scored."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, history: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        """history[B,L], item[B,1] -> score[B]."""
        after = torch.cat([history[:, 1:], item], 1)
        return self.model({"seq": history, "pos": after, "neg": after})[0][:, -1]


class NextToken(nn.Module):
    """A model that scores all items after each place: the score of one item after the last."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, history: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        """history[B,L], item[B,1] -> score[B]."""
        return self.model(history)[:, -1].gather(1, item)[:, 0]


def cases() -> Iterator[Case]:
    """Rankers, models of several tasks, matching models and HSTU."""
    of_fields = {"sparse": Ids(4, 50), "dense": Numbers(3)}
    for name, make in {**_rankers(), **_tasks()}.items():
        yield Case("torch-rechub", name, lambda make=make: Fields(make()), of_fields)
    item = {"item": Ids(1, 70), "history": Ids(LENGTH, 70)}
    for name, make in {**_sequences(), **_matching()}.items():
        yield Case(
            "torch-rechub", name, lambda make=make: Behaviour(make()), {"user": Ids(1, 50), **item, "negative": Ids(_negatives(name), 70)}
        )  # fmt: skip

    def sasrec() -> nn.Module:
        shared = {"seq": None, "pos": "seq", "neg": "seq"}
        parts = [SequenceFeature(n, 70, embed_dim=8, pooling="concat", shared_with=s) for n, s in shared.items()]
        return Shifted(matching.SASRec(parts, max_len=LENGTH))

    yield Case("torch-rechub", "SASRec", sasrec, item)
    small = {"vocab_size": 70, "d_model": 16, "n_heads": 2, "n_layers": 2, "dqk": 8, "dv": 8, "max_seq_len": LENGTH}
    yield Case("torch-rechub", "HSTU", lambda: NextToken(hstu.HSTUModel(**small)), item)


def _negatives(name: str) -> int:
    return {"DIEN": LENGTH, "FaceBookDSSM": 1}.get(name, NEGATIVES)


def _rankers() -> dict[str, Make]:
    with_attention = {"dims": [16], "dropout": 0.2, "activation": "relu"}
    return {
        "WideDeep": lambda: ranking.WideDeep(fields(), numbers(), MLP),
        "DeepFM": lambda: ranking.DeepFM(numbers(), fields(), MLP),
        "DCN": lambda: ranking.DCN([*fields(), *numbers()], 3, MLP),
        "DCNv2": lambda: ranking.DCNv2(fields(), 3, MLP),
        "DCNv2 stacked": lambda: ranking.DCNv2(fields(), 3, MLP, model_structure="stacked", use_low_rank_mixture=False),
        "EDCN": lambda: ranking.EDCN(fields(), 3, MLP),
        "EDCN attention": lambda: ranking.EDCN(fields(), 3, MLP, bridge_type="attention_pooling"),
        "AFM": lambda: ranking.AFM(fields(), 8),
        "FiBiNet": lambda: ranking.FiBiNet(fields(), MLP),
        "DeepFFM": lambda: ranking.DeepFFM(_narrow(1, ""), _crossed(), 8, MLP),
        "FatDeepFFM": lambda: ranking.FatDeepFFM(_narrow(1, ""), _crossed(), 8, 1, MLP),
        "AutoInt": lambda: ranking.AutoInt(fields(), numbers(), dropout=0.2, mlp_params=with_attention),
    }


def _narrow(size: int, suffix: str) -> list[SparseFeature]:
    return [SparseFeature(f"C{k}{suffix}", vocab_size=rows, embed_dim=size) for k, rows in enumerate(ROWS)]


def _crossed() -> list[SparseFeature]:
    """A row for each id and field that it is crossed with."""
    return [SparseFeature(f"C{k}", vocab_size=rows * len(ROWS), embed_dim=8) for k, rows in enumerate(ROWS)]


def _tasks() -> dict[str, Make]:
    kinds = ["classification", "classification"]
    towers = [{"dims": [8]}, {"dims": [8]}]
    return {
        "SharedBottom": lambda: multi_task.SharedBottom([*fields(), *numbers()], kinds, MLP, towers),
        "MMOE": lambda: multi_task.MMOE([*fields(), *numbers()], kinds, 3, {"dims": [16]}, towers),
        "PLE": lambda: multi_task.PLE([*fields(), *numbers()], kinds, 2, 2, 1, {"dims": [16]}, towers),
        "AITM": lambda: multi_task.AITM([*fields(), *numbers()], 2, {"dims": [16, 8], "dropout": 0.2}, towers),
        "ESMM": lambda: multi_task.ESMM(fields()[:2], fields()[2:], {"dims": [16]}, {"dims": [16]}),
    }


def _sequences() -> dict[str, Make]:
    def parts() -> tuple[list, list, list]:
        return [one("user", 50)], [sequence("history")], [one("item", 70)]

    return {
        "DIN": lambda: ranking.DIN(*parts(), {"dims": [16], "dropout": 0.2}, {"dims": [16, 8]}),
        "BST": lambda: ranking.BST(*parts(), MLP),
        "DIEN": lambda: ranking.DIEN(parts()[0], parts()[1], [sequence("negative")], parts()[2], {"dims": [16, 8]}),
    }


def _matching() -> dict[str, Make]:
    def parts(pooling: str = "concat") -> tuple[list, list, list, list]:
        return [one("user", 50)], [sequence("history", pooling)], [one("item", 70)], [sequence("negative")]

    def towers() -> tuple[list, list]:
        return [one("user", 50), sequence("history", "mean")], [one("item", 70)]

    history = SequenceFeature("history", vocab_size=70, embed_dim=8)
    item = SparseFeature("item", vocab_size=70, embed_dim=8)
    names = {"history_features": ["history"], "item_features": ["item"], "neg_item_features": ["negative"]}
    return {
        "DSSM": lambda: matching.DSSM(*towers(), TOWER, TOWER),
        "DSSM senet": lambda: SenetDSSM(*towers(), TOWER, TOWER),
        "FaceBookDSSM": lambda: matching.FaceBookDSSM(*towers(), [sequence("negative", "mean")], TOWER, TOWER),
        "YoutubeDNN": lambda: matching.YoutubeDNN(*towers(), [sequence("negative")], TOWER),
        "YoutubeSBC": lambda: matching.YoutubeSBC(*towers(), [DenseFeature("user")], TOWER, TOWER, batch_size=6),
        "GRU4Rec": lambda: matching.GRU4Rec(*parts(), {"dims": [16, 8], "activation": "prelu"}),
        "MIND": lambda: matching.MIND(*parts(), max_length=LENGTH),
        "MIND dynamic": lambda: matching.MIND(*parts(), max_length=LENGTH, dynamic_interest=True),
        "ComirecSA": lambda: matching.ComirecSA(*parts()),
        "ComirecDR": lambda: matching.ComirecDR(*parts(), max_length=LENGTH),
        "NARM": lambda: matching.NARM(history, 8, 0.25, 0.5, item_feature=item),
        "STAMP": lambda: matching.STAMP(history, 0.05, 0.002, item_feature=item),
        "SINE": lambda: matching.SINE(**names, num_items=70, embedding_dim=8, hidden_dim=8, num_concept=10, num_intention=2, seq_max_len=LENGTH),
    }  # fmt: skip
