"""TorchRec's collections while a model is captured: each feature is looked up in its table by the tensors that the data gives."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NoReturn

import torch
from torch import nn
from torch.nn import functional as F

from htrain.errors import ModelError

_TENSORS, _COLLECTIONS, _REGROUP = (
    "torchrec.sparse.jagged_tensor",
    "torchrec.modules.embedding_modules",
    "torchrec.modules.regroup",
)


def tensor_classes() -> Any:
    """The module with KeyedJaggedTensor, JaggedTensor and KeyedTensor, or None where nobody has imported it."""
    return sys.modules.get(_TENSORS)


def collection_classes() -> tuple[type[nn.Module], ...]:
    """EmbeddingBagCollection and EmbeddingCollection, where somebody has imported them."""
    module = sys.modules.get(_COLLECTIONS)
    return () if module is None else (module.EmbeddingBagCollection, module.EmbeddingCollection)


class _StandIn:
    """What a model may ask of a class of TorchRec's; anything else is refused."""

    _stands_for = ""

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance() of a model
        found: type = getattr(tensor_classes(), self._stands_for)
        return found

    def __getattr__(self, name: str) -> NoReturn:
        raise ModelError(
            f"forward() reads '{name}' of a {self._stands_for}, which depends on the lengths of a batch's lists: look features up in an EmbeddingBagCollection"
        )


class Jagged(_StandIn):
    """Lists of ids or of rows, as a JaggedTensor has them.

    `data` is [B,W] or [B,W,D] of `ids`, all of which count, and of `padded` lists, of which `lengths`[B] count; [n] or [n,D] of a `bag`, with the start
    `offsets`[B] of each list.
    """

    _stands_for = "JaggedTensor"

    def __init__(
        self,
        data: torch.Tensor,
        kind: Literal["ids", "padded", "bag"],
        lengths: torch.Tensor | None,
        starts: torch.Tensor | None,
    ) -> None:
        self.data, self.kind, self.counts, self.starts = data, kind, lengths, starts

    def rows(self, weight: torch.Tensor) -> "Jagged":
        """The row of each id."""
        return Jagged(F.embedding(self.data, weight).float(), self.kind, self.counts, self.starts)

    def pooled(self, weight: torch.Tensor, mode: str) -> torch.Tensor:
        """float32[B,D]: the sum or mean of each list's rows."""
        if self.kind == "bag":
            return F.embedding_bag(self.data, weight, self.starts, mode=mode).float()
        if self.kind == "ids" and self.data.shape[1] == 1:
            return F.embedding(self.data[:, 0], weight).float()
        if self.kind == "ids":
            return F.embedding_bag(self.data, weight, mode=mode).float()
        total = (F.embedding(self.data, weight).float() * self._inside()[:, :, None]).sum(1)
        assert self.counts is not None
        return total / self.counts.float().clamp(min=1)[:, None] if mode == "mean" else total

    def _inside(self) -> torch.Tensor:
        """bool[B,W]: before the end of each list."""
        assert self.counts is not None
        return torch.arange(self.data.shape[1]) < self.counts[:, None]

    def values(self) -> torch.Tensor:
        """[n] or [n,D], one list after the other. Raises ModelError for padded lists."""
        if self.kind == "padded":
            raise ModelError(
                "forward() reads 'values' of a JaggedTensor of padded lists: take to_padded_dense() of it, or an input of kind bag"
            )
        return self.data if self.kind == "bag" else self.data.flatten(0, 1)

    def lengths(self) -> torch.Tensor:
        """int64[B]. Raises ModelError for lists one after another."""
        if self.kind == "bag":
            raise ModelError(
                "forward() reads 'lengths' of a JaggedTensor of an input of kind bag: give the input the kind padded"
            )
        return (
            self.data.new_full((self.data.shape[0],), self.data.shape[1], dtype=torch.int64)
            if self.counts is None
            else self.counts
        )

    def weights_or_none(self) -> None:
        """Lists of data have no weights."""

    def to_padded_dense(self, desired_length: int | None = None, padding_value: float = 0.0) -> torch.Tensor:
        """[B,L] or [B,L,D] with `padding_value` behind the end of each list. Raises ModelError where L is that of the longest list of a batch."""
        if self.kind == "bag":
            raise ModelError("forward() pads lists of an input of kind bag: give the input the kind padded")
        width = self.data.shape[1]
        if desired_length is None and self.kind == "padded":
            raise ModelError(
                f"forward() pads lists to the longest of a batch: give to_padded_dense desired_length={width}"
            )
        length = width if desired_length is None else desired_length
        inside = self._inside() if self.kind == "padded" else None
        data = self.data
        if inside is not None:
            data = torch.where(inside.view(*inside.shape, *(1 for _ in data.shape[2:])), data, padding_value)
        if length <= width:
            return data[:, :length]
        behind = data.new_full((data.shape[0], length - width, *data.shape[2:]), padding_value)
        return torch.cat([data, behind], 1)


class CapturedFeatures(_StandIn):
    """A KeyedJaggedTensor: lists of ids by the names of features."""

    _stands_for = "KeyedJaggedTensor"

    def __init__(self, lists: Mapping[str, Jagged]) -> None:
        self._lists = dict(lists)

    def keys(self) -> list[str]:
        """The features."""
        return list(self._lists)

    def to_dict(self) -> dict[str, Jagged]:
        """The lists of each feature."""
        return dict(self._lists)

    def __getitem__(self, key: str) -> Jagged:
        return self._lists[key]

    def stride(self) -> int:
        """The size of the batch."""
        first = next(iter(self._lists.values()))
        return first.data.shape[0] if first.starts is None else first.starts.shape[0]

    def weights_or_none(self) -> None:
        """Lists of data have no weights."""

    def permute(self, indices: Sequence[int], indices_tensor: torch.Tensor | None = None) -> "CapturedFeatures":
        """Some of the features, in this order."""
        keys = self.keys()
        return CapturedFeatures({keys[k]: self._lists[keys[k]] for k in indices})

    def split(self, segments: Sequence[int]) -> "list[CapturedFeatures]":
        """So many features each."""
        left = iter(self._lists.items())
        return [CapturedFeatures(dict(next(left) for _ in range(count))) for count in segments]


def _require(features: object, kind: str) -> CapturedFeatures:
    if type(features) is not CapturedFeatures:
        raise ModelError(
            f"forward() gives an {kind} what is no argument of its own: take a KeyedJaggedTensor as one, whose features are inputs of the data"
        )
    return features


def _pooled(self: Any, features: object) -> Any:
    """EmbeddingBagCollection.forward."""
    lists = _require(features, "EmbeddingBagCollection")
    if self.is_weighted():
        raise ModelError(
            "an EmbeddingBagCollection with is_weighted=True cannot be compiled: data gives no weights of ids; multiply rows of an EmbeddingCollection"
        )
    found = [
        lists[name].pooled(bag.weight, bag.mode)
        for bag, names in zip(self.embedding_bags.values(), self._feature_names, strict=True)
        for name in names
    ]
    return tensor_classes().KeyedTensor(
        keys=self._embedding_names, length_per_key=self._lengths_per_embedding, values=torch.cat(found, 1)
    )


def _unpooled(self: Any, features: object) -> dict[str, Jagged]:
    """EmbeddingCollection.forward."""
    lists = _require(features, "EmbeddingCollection")
    tables = zip(self.embeddings.values(), self._feature_names, self._embedding_names_by_table, strict=True)
    return {
        name: lists[feature].rows(table.weight)
        for table, features_of, names in tables
        for feature, name in zip(features_of, names, strict=True)
    }


def _regroup(keyed_tensors: Sequence[Any], groups: Sequence[Sequence[str]]) -> list[torch.Tensor]:
    """KeyedTensor.regroup without fbgemm's ops."""
    parts: dict[str, torch.Tensor] = {}
    for tensor in reversed(keyed_tensors):
        parts.update(tensor.to_dict())
    return [torch.cat([parts[key] for key in group], 1) for group in groups]


def _regrouped(self: Any, keyed_tensors: Sequence[Any]) -> dict[str, torch.Tensor]:
    """KTRegroupAsDict.forward."""
    found = self.embedding_cast(_regroup(keyed_tensors, self._groups))
    return dict(zip(self._keys, found, strict=True))


@contextmanager
def captured_lookups() -> Iterator[None]:
    """Within, the collections look up what stands for a KeyedJaggedTensor."""
    changes: list[tuple[Any, str, Callable]] = []
    collections, tensors, regroup = (sys.modules.get(name) for name in (_COLLECTIONS, _TENSORS, _REGROUP))
    if collections is not None:
        changes += [
            (collections.EmbeddingBagCollection, "forward", _pooled),
            (collections.EmbeddingCollection, "forward", _unpooled),
        ]
    if tensors is not None:
        changes.append((tensors.KeyedTensor, "regroup", staticmethod(_regroup)))
    if regroup is not None:
        changes.append((regroup.KTRegroupAsDict, "forward", _regrouped))
    originals = [vars(owner)[name] for owner, name, _ in changes]
    try:
        for owner, name, change in changes:
            setattr(owner, name, change)
        yield
    finally:
        for (owner, name, _), original in zip(changes, originals, strict=True):
            setattr(owner, name, original)
