"""Heads of a trained model, in evaluation, in scores and in what is exported: those of PyTorch with the weights that were trained."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from taken_out import inputs_of
from torch import nn
from torch.nn import functional as F

import htrain
from htrain.cli.app import commands
from htrain.cli.evaluate import measures_of_head
from htrain.data.evaluation import auc
from htrain.errors import UsageError
from htrain.executor.launch import forward
from htrain.executor.record.validations import news_of, read_validations
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

ROWS = 300
SCHEMA = """
label: click
inputs:
  user: {kind: ids, columns: [user], rows: 20}
  bought: {kind: dense, columns: [bought]}
  price: {kind: dense, columns: [price]}
"""


class Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.body, self.click, self.buy = (
            nn.Embedding(20, 4),
            nn.Linear(5, 6),
            nn.Linear(6, 1),
            nn.Linear(6, 1),
        )
        self.cost, self.drop = nn.Linear(6, 1), nn.Dropout(0.3)

    def forward(
        self, user: torch.Tensor, price: torch.Tensor, bought: torch.Tensor, label: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        vector = self.table(user[:, 0])
        hidden = self.drop(self.body(torch.cat([vector, price], 1)).relu())
        click, buy, cost = self.click(hidden)[:, 0], self.buy(hidden)[:, 0], self.cost(hidden)
        loss = F.binary_cross_entropy_with_logits(click, label) + F.binary_cross_entropy_with_logits(buy, bought[:, 0])
        loss = loss + F.mse_loss(cost, price)
        both = self.drop(click.sigmoid() * buy.sigmoid())
        return {
            "loss": loss,
            "click": click,
            "bought": buy,
            "price": cost,
            "both": both,
            "vector, unit": F.normalize(vector),
        }


HEADS = ("bought", "price", "both", "vector, unit")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    user, click = draw.integers(0, 20, ROWS), draw.integers(0, 2, ROWS)
    bought, price = click * draw.integers(0, 2, ROWS), draw.random(ROWS).round(3)
    lines = [",".join(map(str, row)) for row in zip(click, bought, price, user, strict=True)]
    (folder / "a.csv").write_text("\n".join(["click,bought,price,user", *lines]) + "\n")
    (folder / "schema.yaml").write_text(SCHEMA)
    return f"csv:{folder}/a.csv?schema={folder}/schema.yaml"


@pytest.fixture(scope="module")
def run(data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two groups, with a table in two shards and its rows in a cache."""
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    inputs = {name: value[:4] for name, value in inputs_of(data).items()}
    plan = htrain.compile(
        Tasks(), example_inputs=inputs, logit="click", cluster=this_machine(groups=2, group_ps=1, sparse_ps=2),
        options=with_flags(batch_size=20, loss="own"), table_splits={"table.weight": 2},
    )  # fmt: skip
    plan.save(folder / "plan")
    htrain.run(folder / "plan", data=data, out=folder / "run", hosting="threads", valid=data)
    return folder / "run"


@pytest.fixture(scope="module")
def wanted(run: Path, data: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What the module returns with the weights that were trained."""
    out = tmp_path_factory.mktemp("weights") / "w.safetensors"
    htrain.export(run, to="torch", out=out)
    module = Tasks().eval()
    module.load_state_dict(load_file(out))
    with torch.no_grad():
        returned = module(**inputs_of(data))
    return {name: value.numpy() for name, value in returned.items()}


def test_scores_and_heads_are_written_as_the_module_gives_them(
    run: Path, data: str, wanted: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "_BATCH", 77)
    for form in ("npy", "parquet", "csv"):
        htrain.predict(run, data=data, out=tmp_path / f"scores.{form}")
    array, table = np.load(tmp_path / "scores.npy"), pq.read_table(tmp_path / "scores.parquet")
    assert array.dtype.names == tuple(table.column_names) == ("score", "label", *HEADS)
    columns = pa_csv.read_csv(tmp_path / "scores.csv")
    assert columns.column_names == ["score", "label", *HEADS[:3], *(f"vector, unit_{i}" for i in range(4))]
    np.testing.assert_allclose(array["score"], wanted["click"], atol=1e-6)
    for name in HEADS:
        value = wanted[name][:, 0] if wanted[name].shape[1:] == (1,) else wanted[name]
        np.testing.assert_allclose(array[name], value, atol=1e-6)
        np.testing.assert_array_equal(np.array(table[name].to_pylist(), np.float32), array[name])
        parts = [columns[f"{name}_{i}"] for i in range(4)] if name == HEADS[3] else [columns[name]]
        np.testing.assert_allclose(np.stack(parts, 1).reshape(array[name].shape), array[name], atol=1e-6)


def test_a_head_is_evaluated_by_the_input_of_its_name_or_by_another(
    run: Path, data: str, wanted: dict[str, np.ndarray]
) -> None:
    inputs = {name: value.numpy() for name, value in inputs_of(data).items()}
    found = htrain.evaluate(run, data=data)
    assert found.auc == pytest.approx(auc(wanted["click"], inputs["label"]))
    assert set(found.heads) == {"bought", "price"}
    bought, price = found.heads["bought"], found.heads["price"]
    assert bought.auc == pytest.approx(auc(wanted["bought"], inputs["bought"][:, 0]))
    assert bought.mean_label == pytest.approx(inputs["bought"].mean())
    assert np.isnan(price.auc)
    assert price.squared_error == pytest.approx(np.square(wanted["price"] - inputs["price"]).mean(), rel=1e-4)
    assert (
        measures_of_head(("price", price))
        == f"price: squared error {price.squared_error:.4f}, mean of price {price.mean_label:.4f}"
    )
    (validation,) = read_validations(run)
    assert validation.heads == {"bought": bought.auc}
    assert f", AUC of bought {bought.auc:.4f} (" in news_of(validation)
    said = htrain.evaluate(run, data=data, labels={"both": "bought", "bought": "label"})
    assert said.heads["both"].auc == pytest.approx(auc(wanted["both"], inputs["bought"][:, 0]))
    assert said.heads["bought"].auc == pytest.approx(auc(wanted["bought"], inputs["label"]))
    of_score = htrain.evaluate(run, data=data, labels={"score": "bought"})
    assert of_score.auc == pytest.approx(auc(wanted["click"], inputs["bought"][:, 0]))
    assert of_score.positive_rate == pytest.approx(inputs["bought"].mean())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"basket": "bought"}, "'basket' is no head of the model"),
        ({"vector, unit": "bought"}, "'vector, unit' is no head of the model, a number for each example"),
        (
            {"both": "user"},
            "'user' is no input of the model of one number for each example; it has label, bought, price",
        ),
        ({"both": "sold"}, "'sold' is no input"),
    ],
)
def test_labels_that_are_none_are_named(run: Path, data: str, labels: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        htrain.evaluate(run, data=data, labels=labels)


def test_the_command_tells_heads_and_takes_their_labels(run: Path, data: str) -> None:
    said = CliRunner().invoke(commands, ["eval", str(run), "--data", data, "--label-of", "both=bought"])
    assert said.exit_code == 0, said.output
    assert "; bought: AUC " in said.output
    assert "; both: AUC " in said.output
    assert "; price: squared error " in said.output
    said = CliRunner().invoke(commands, ["eval", str(run), "--data", data, "--label-of", "both"])
    assert said.exit_code == 2
    document = CliRunner().invoke(commands, ["eval", str(run), "--data", data, "--json"]).stdout
    assert json.loads(document)["heads"]["bought"]["label"] == "bought"


def test_an_exported_graph_has_heads_as_outputs(
    run: Path, data: str, wanted: dict[str, np.ndarray], tmp_path: Path
) -> None:
    (note,) = htrain.export(run, to="onnx", out=tmp_path / "m.onnx").notes
    assert note.endswith(
        "outputs score: float32[B]; and heads bought: float32[B], price_1: float32[B], both: float32[B], vector, unit: float32[B,4]"
    )
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    assert [out.name for out in session.get_outputs()] == ["score", "bought", "price_1", "both", "vector, unit"]
    inputs = {name: value.numpy() for name, value in inputs_of(data).items()}
    found = session.run(None, {each.name: inputs[each.name] for each in session.get_inputs()})
    for value, name in zip(found, ("click", *HEADS), strict=True):
        np.testing.assert_allclose(value, wanted[name].reshape(value.shape), atol=1e-5)
