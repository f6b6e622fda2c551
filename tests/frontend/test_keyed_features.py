"""Models over TorchRec's collections and KeyedJaggedTensors are trained as by PyTorch, on the inputs of the data."""

from pathlib import Path
from typing import Any

import keyed as torchrec
import pytest
import torch
from torch import nn

import htrain
from htrain.data import CRITEO
from htrain.data.schema import Input, Schema
from htrain.errors import ModelError
from htrain.frontend.load import example_batch, load_model
from htrain.frontend.torch_model import capture
from htrain.net.net import Init
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options

SCHEMA = Schema(
    (
        Input("dense", "dense", 2, ("a", "b")),
        Input("sparse", "ids", 2, ("user", "item"), rows=(20, 30), tables=("user", "item")),
        Input("words", "bag", 2, ("words",), rows=(40,), tables=("words",)),
        Input("seen", "padded", 4, ("seen",), rows=(30,), tables=("seen",)),
        Input("pair", "ids", 2, ("pair1", "pair2"), rows=(30, 30), tables=("p", "p")),
    )
)


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return torchrec.installed(monkeypatch.setitem)


def example() -> dict[str, torch.Tensor]:
    return example_batch(SCHEMA, 6)


def bags(classes: dict[str, Any], **given: Any) -> nn.Module:
    """Tables of one feature and of several, one feature in two of them."""
    table, pooling = classes["EmbeddingBagConfig"], classes["PoolingType"]
    return classes["EmbeddingBagCollection"](
        tables=[
            table(name="user_rows", embedding_dim=4, num_embeddings=20, feature_names=["user"]),
            table(name="item_rows", embedding_dim=4, num_embeddings=30, feature_names=["item", "seen", "pair"]),
            table(
                name="means", embedding_dim=3, num_embeddings=40, feature_names=["seen", "words"], pooling=pooling.MEAN
            ),
            table(name="sums", embedding_dim=3, num_embeddings=40, feature_names=["words"]),
        ],
        **given,
    )


class Pooled(nn.Module):
    def __init__(self, collection: nn.Module) -> None:
        super().__init__()
        self.ebc, self.top = collection, nn.Linear(31, 1)

    def forward(self, dense: torch.Tensor, features: "KeyedJaggedTensor") -> torch.Tensor:  # type: ignore[name-defined]  # noqa: F821
        pooled = self.ebc(features)
        by_name = pooled.to_dict()
        scaled = pooled["user"] * by_name["item"].sum(1, keepdim=True)
        return self.top(torch.cat([pooled.values(), dense, scaled], 1)).squeeze(1)


class Sequence(nn.Module):
    def __init__(self, collection: nn.Module) -> None:
        super().__init__()
        self.ec, self.top = collection, nn.Linear(4, 1)

    def forward(self, features):  # type: ignore[no-untyped-def]
        rows = self.ec(features)
        seen, longer = (rows["seen"].to_padded_dense(length, 0.5) for length in (3, 6))
        own = rows["item"].values()
        score = (seen.sum(1) + longer.mean(1) + rows["pair"].to_padded_dense().sum(1)) * own
        return self.top(score).squeeze(1) + rows["seen"].lengths()


def rows_of(classes: dict[str, Any]) -> nn.Module:
    table = classes["EmbeddingConfig"](
        name="item_rows", embedding_dim=4, num_embeddings=30, feature_names=["item", "seen", "pair"]
    )
    return classes["EmbeddingCollection"](tables=[table])


def test_pooled_features_have_the_loss_and_gradients_of_pytorch(classes: dict[str, Any]) -> None:
    model = Pooled(bags(classes))
    found = capture_model(model, schema=SCHEMA, example_inputs=example(), logit="", label="")
    assert found.compare(Options()).notes == ()
    net = found.captured.net
    assert net.inputs == ("dense", "sparse", "seen", "seen_length", "pair", "words", "words_offsets")
    tables = [name for name, p in net.parameters.items() if p.kind == "table"]
    assert tables == [f"ebc.embedding_bags.{name}.weight" for name in ("user_rows", "item_rows", "means", "sums")]
    kinds = [op.type for op in net.ops if op.type.startswith("Embedding")]
    assert kinds.count("EmbeddingBag") == 3, "one id a feature is a plain lookup"


def test_sequences_of_rows_have_the_loss_and_gradients_of_pytorch(classes: dict[str, Any]) -> None:
    model = Sequence(rows_of(classes))
    found = capture_model(model, schema=SCHEMA, example_inputs=example(), logit="", label="")
    assert found.compare(Options()).notes == ()


def test_the_model_is_left_as_it_was(classes: dict[str, Any]) -> None:
    model = Pooled(bags(classes))
    collection = classes["EmbeddingBagCollection"]
    before = (
        type(model),
        collection.forward,
        collection.reset_parameters,
        {n: v.clone() for n, v in model.state_dict().items()},
    )
    capture_model(model, schema=SCHEMA, example_inputs=example(), logit="", label="").compare(Options())
    assert (type(model), collection.forward, collection.reset_parameters) == before[:3]
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before[3].items())


def test_an_example_may_be_a_keyed_jagged_tensor(classes: dict[str, Any]) -> None:
    lengths, ids = torch.tensor([2, 0, 3, 1, 1, 2]), torch.arange(9)
    features = classes["KeyedJaggedTensor"](
        keys=["user", "item"], values=torch.cat([ids, ids]), lengths=lengths.repeat(2)
    )
    table = classes["EmbeddingBagConfig"]
    tables = [table(name=n, embedding_dim=4, num_embeddings=20, feature_names=[n]) for n in ("user", "item")]

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ebc, self.top = classes["EmbeddingBagCollection"](tables=tables), nn.Linear(8, 1)

        def forward(self, features: object) -> torch.Tensor:
            return self.top(self.ebc(features).values()).squeeze(1)

    found = capture_model(Both(), schema=CRITEO, example_inputs={"features": features}, logit="", label="")
    assert found.captured.net.inputs == ("user", "user_offsets", "item", "item_offsets")
    assert found.compare(Options()).notes == ()


def test_keys_are_in_the_order_of_the_example(classes: dict[str, Any]) -> None:
    ids, lengths = torch.arange(6), torch.ones(6, dtype=torch.int64)
    features = classes["KeyedJaggedTensor"](
        keys=["item", "user"], values=torch.cat([ids, ids + 6]), lengths=lengths.repeat(2)
    )
    table = classes["EmbeddingBagConfig"]
    tables = [table(name=n, embedding_dim=4, num_embeddings=20, feature_names=[n]) for n in ("user", "item")]

    class Ordered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ebc, self.top = classes["EmbeddingBagCollection"](tables=tables), nn.Linear(4, 1)

        def forward(self, features: Any) -> torch.Tensor:
            if list(features.keys()) != ["item", "user"]:
                raise ValueError("these are others")
            return self.top(self.ebc(features)["item"]).squeeze(1)

    found = capture_model(Ordered(), schema=CRITEO, example_inputs={"features": features}, logit="", label="")
    assert found.compare(Options()).notes == ()


FILE = """
import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

class Clicks(nn.Module):
    def __init__(self, schema):
        super().__init__()
        sparse = schema.input("sparse")
        self.ebc = EmbeddingBagCollection(
            tables=[EmbeddingBagConfig(name=f"t_{c}", embedding_dim=4, num_embeddings=n, feature_names=[c])
                    for c, n in zip(sparse.columns, sparse.rows)], DEVICE)
        self.mlp = nn.Linear(4 * sparse.width + schema.input("dense").width, 1)

    def forward(self, dense: torch.Tensor, kjt: KeyedJaggedTensor):
        first, others = KeyedTensor.regroup([self.ebc(kjt)], [["C2"], ["C1", *(f"C{i}" for i in range(3, 27))]])
        return self.mlp(torch.cat([dense, first, others], 1)).squeeze(1)

def build(schema):
    return Clicks(schema)
"""


@pytest.mark.parametrize("device", ["", "device=torch.device('meta')"])
def test_tables_of_a_file_begin_as_their_init_fn_says(device: str, classes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "clicks.py").write_text(FILE.replace("DEVICE", device))
    loaded = load_model(f"{tmp_path}/clicks.py", CRITEO)
    net = loaded.initialised(capture(loaded.module, loaded.example_inputs)).net
    assert net.inputs == ("dense", "sparse")
    assert net.parameters["ebc.embedding_bags.t_C7.weight"].init == Init("uniform", (-(1e-5**0.5), 1e-5**0.5))


def test_a_model_of_a_file_is_checked_and_compiled(classes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "clicks.py").write_text(FILE.replace("DEVICE", ""))
    plan = htrain.compile(f"{tmp_path}/clicks.py", data="synthetic:?rows=500", fc_splits={}, solver="rules")
    assert plan.train.inputs[:2] == ("dense", "sparse")


def refused(message: str, model: nn.Module, **given: Any) -> None:
    with pytest.raises(ModelError) as caught:
        capture_model(model, schema=SCHEMA, example_inputs={**example(), **given}, logit="", label="")
    assert message in str(caught.value)


def test_what_data_cannot_give_is_refused(classes: dict[str, Any]) -> None:
    config, collection = classes["EmbeddingBagConfig"], classes["EmbeddingBagCollection"]
    unknown = collection(tables=[config(name="t", embedding_dim=4, num_embeddings=20, feature_names=["age"])])
    refused("reads the feature 'age', the data gives dense, sparse, words, seen, pair, user, item", Pooled(unknown))
    refused("is_weighted=True cannot be compiled", Pooled(bags(classes, is_weighted=True)))
    refused("no EmbeddingBagCollection and no EmbeddingCollection of the model reads one", Pooled(nn.Identity()))


class Reads(nn.Module):
    """A sequence model that does something of its own with features or rows."""

    def __init__(self, collection: nn.Module, what: str) -> None:
        super().__init__()
        self.ec, self.top, self.what = collection, nn.Linear(4, 1), what

    def forward(self, features):  # type: ignore[no-untyped-def]
        rows = self.ec(features)
        made = eval(self.what, {"features": features, "rows": rows, "torch": torch, "ec": self.ec})
        return self.top(rows["item"].values()).squeeze(1) + made


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("features.values().sum()", "reads 'values' of a KeyedJaggedTensor"),
        ("rows['seen'].values().sum()", "'values' of a JaggedTensor of padded lists"),
        ("rows['seen'].to_padded_dense().sum()", "give to_padded_dense desired_length=4"),
        ("rows['seen'].offsets().sum()", "reads 'offsets' of a JaggedTensor"),
        ("ec(torch.zeros(3))['item'].values().sum()", "gives an EmbeddingCollection what is no argument of its own"),
    ],
)
def test_what_depends_on_lengths_is_refused(what: str, message: str, classes: dict[str, Any]) -> None:
    refused(message, Reads(rows_of(classes), what))


def test_a_bag_has_no_padded_rows(classes: dict[str, Any]) -> None:
    table = classes["EmbeddingConfig"](name="t", embedding_dim=4, num_embeddings=40, feature_names=["words", "item"])
    collection = classes["EmbeddingCollection"](tables=[table])
    refused("give the input the kind padded", Reads(collection, "rows['words'].to_padded_dense(3).sum()"))
