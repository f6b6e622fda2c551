"""TorchRec's collections over KeyedJaggedTensors, as far as models use them.

It is TorchRec itself where that can be imported, or classes of the same names that do in plain PyTorch what its own do with fbgemm. TorchRec is no dependency
of the tests: each of its versions wants one version of fbgemm, and that one of torch.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import nn


class PoolingType(Enum):
    SUM = "SUM"
    MEAN = "MEAN"


@dataclass
class EmbeddingConfig:
    num_embeddings: int
    embedding_dim: int
    name: str = ""
    init_fn: Callable[[torch.Tensor], Any] | None = None
    feature_names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        bound = math.sqrt(1 / self.num_embeddings)
        self.init_fn = self.init_fn or partial(nn.init.uniform_, a=-bound, b=bound)


@dataclass
class EmbeddingBagConfig(EmbeddingConfig):
    pooling: PoolingType = PoolingType.SUM


class JaggedTensor:
    def __init__(self, values: torch.Tensor, lengths: torch.Tensor) -> None:
        self._values, self._lengths = values, lengths

    def values(self) -> torch.Tensor:
        return self._values

    def lengths(self) -> torch.Tensor:
        return self._lengths

    def offsets(self) -> torch.Tensor:
        return torch.cat([self._lengths.new_zeros(1), self._lengths.cumsum(0)])

    def to_padded_dense(self, desired_length: int | None = None, padding_value: float = 0.0) -> torch.Tensor:
        longest = int(self._lengths.max()) if desired_length is None else desired_length
        padded = self._values.new_full((len(self._lengths), longest, *self._values.shape[1:]), padding_value)
        lists = self._values.split(self._lengths.tolist())
        return torch.stack(
            [torch.cat([rows[:longest], rest[len(rows) :]]) for rows, rest in zip(lists, padded, strict=True)]
        )


class KeyedJaggedTensor:
    def __init__(self, keys: list[str], values: torch.Tensor, lengths: torch.Tensor) -> None:
        self._keys, self._values, self._lengths = keys, values, lengths

    def keys(self) -> list[str]:
        return self._keys

    def to_dict(self) -> dict[str, JaggedTensor]:
        lengths = self._lengths.view(len(self._keys), -1)
        values = self._values.split(lengths.sum(1).tolist())
        return {key: JaggedTensor(v, n) for key, v, n in zip(self._keys, values, lengths, strict=True)}

    def __getitem__(self, key: str) -> JaggedTensor:
        return self.to_dict()[key]


class KeyedTensor:
    def __init__(self, keys: list[str], length_per_key: list[int], values: torch.Tensor) -> None:
        self._keys, self._lengths, self._values = keys, length_per_key, values

    def keys(self) -> list[str]:
        return self._keys

    def values(self) -> torch.Tensor:
        return self._values

    def to_dict(self) -> dict[str, torch.Tensor]:
        return dict(zip(self._keys, self._values.split(self._lengths, 1), strict=True))

    def __getitem__(self, key: str) -> torch.Tensor:
        return self.to_dict()[key]

    @staticmethod
    def regroup(keyed_tensors: Sequence["KeyedTensor"], groups: Sequence[Sequence[str]]) -> list[torch.Tensor]:
        raise NotImplementedError("fbgemm's, which no exported graph holds")


def _names(tables: Sequence[EmbeddingConfig]) -> list[list[str]]:
    features = [name for table in tables for name in table.feature_names]
    return [[f"{n}@{t.name}" if features.count(n) > 1 else n for n in t.feature_names] for t in tables]


class EmbeddingBagCollection(nn.Module):
    def __init__(
        self,
        tables: list[EmbeddingBagConfig],
        is_weighted: bool = False,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self._is_weighted, self._tables, self.embedding_bags = is_weighted, tables, nn.ModuleDict()
        for table in tables:
            mode = table.pooling.value.lower()
            self.embedding_bags[table.name] = nn.EmbeddingBag(
                table.num_embeddings, table.embedding_dim, mode=mode, include_last_offset=True, device=device
            )
            device = device or self.embedding_bags[table.name].weight.device
        self._feature_names = [table.feature_names for table in tables]
        self._embedding_names = [name for names in _names(tables) for name in names]
        self._lengths_per_embedding = [table.embedding_dim for table in tables for _ in table.feature_names]
        self.device = device
        self.reset_parameters()

    def is_weighted(self) -> bool:
        return self._is_weighted

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        return self._tables

    def reset_parameters(self) -> None:
        if self.device is not None and self.device.type == "meta":
            return
        for table in self._tables:
            assert table.init_fn is not None
            table.init_fn(self.embedding_bags[table.name].weight)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        lists = features.to_dict()
        found = [
            bag(lists[name].values(), lists[name].offsets())
            for bag, names in zip(self.embedding_bags.values(), self._feature_names, strict=True)
            for name in names
        ]
        return KeyedTensor(self._embedding_names, self._lengths_per_embedding, torch.cat(found, 1))


class EmbeddingCollection(nn.Module):
    def __init__(self, tables: list[EmbeddingConfig], device: torch.device | None = None) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict()
        for table in tables:
            self.embeddings[table.name] = nn.Embedding(table.num_embeddings, table.embedding_dim, device=device)
            assert table.init_fn is not None
            table.init_fn(self.embeddings[table.name].weight)
        self._feature_names = [table.feature_names for table in tables]
        self._embedding_names_by_table = _names(tables)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        lists = features.to_dict()
        tables = zip(self.embeddings.values(), self._feature_names, self._embedding_names_by_table, strict=True)
        return {
            name: JaggedTensor(table(lists[feature].values()), lists[feature].lengths())
            for table, features_of, names in tables
            for feature, name in zip(features_of, names, strict=True)
        }


_PLACES: dict[str, tuple[type, ...]] = {
    "torchrec.sparse.jagged_tensor": (JaggedTensor, KeyedJaggedTensor, KeyedTensor),
    "torchrec.modules.embedding_configs": (PoolingType, EmbeddingConfig, EmbeddingBagConfig),
    "torchrec.modules.embedding_modules": (EmbeddingBagCollection, EmbeddingCollection),
}


def installed(replaced: Callable[[dict, str, Any], None]) -> dict[str, Any]:
    """The classes by name, importable where TorchRec has them; `replaced` sets an entry of a dict for the time of a test."""
    try:
        import_module("torchrec.modules.embedding_modules")
    except ImportError:
        for place, classes in _PLACES.items():
            module = ModuleType(place)
            vars(module).update({kind.__name__: kind for kind in classes})
            for part in range(1, place.count(".") + 1):
                package = ".".join(place.split(".")[:part])
                if package not in sys.modules:
                    replaced(sys.modules, package, ModuleType(package))
            replaced(sys.modules, place, module)
    return {
        kind.__name__: getattr(sys.modules[place], kind.__name__) for place, kinds in _PLACES.items() for kind in kinds
    }
