"""What is exported of a trained model gives the scores of `htrain predict`: by plain PyTorch, and by ONNX Runtime."""

import copy
import inspect
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from gmp_data import BagNet, FieldNet, OneTable, PaddedNet, drawn, parts_of
from taken_out import assert_alike, by_onnx, by_torch, inputs_of, predicted, session_of, trained
from torch import nn
from torch.nn import functional as F

import htrain
from htrain.compiler.pipeline import compile_net
from htrain.data import click_schema, open_data
from htrain.data.formats.graph import graph_schema
from htrain.frontend.captured import Captured
from htrain.frontend.load import example_batch, load_model
from htrain.frontend.torch_model import capture
from htrain.net.placement import Split
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

ROWS, EXAMPLES, BATCH = 30, 96, 16
CLICKS = f"synthetic:?rows={EXAMPLES}&table_rows={ROWS}"
MODELS = Path(__file__).parents[2] / "models"
ZOO = ("dlrm.py", "wide_deep.py", "deepfm.py", "dcn.py:build_v1", "dcn.py:build_v2", "graphsage.py")
FANOUT = (4, 3)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The data of a model of the zoo: a click log, or visits of a graph."""
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("graph") / "visits.txt"
    lists = (" ".join(map(str, draw.sample(range(ROWS), 6))) for _ in range(10))
    path.write_text("".join(f"{user} {items}\n" for user, items in enumerate(lists)))
    visits = f"graph:{path}?test=0&fanout={FANOUT[0]},{FANOUT[1]}"
    return lambda name: visits if name == "graphsage.py" else CLICKS


def zoo_model(name: str) -> tuple[nn.Module, Captured]:
    """A copy of a model of the zoo with values, and its capture."""
    model, captured = _zoo_model(name)
    return copy.deepcopy(model), captured


@cache
def _zoo_model(name: str) -> tuple[nn.Module, Captured]:
    torch.manual_seed(0)
    schema = graph_schema(10 + ROWS, FANOUT) if name == "graphsage.py" else click_schema(13, (ROWS,) * 26)
    loaded = load_model(str(MODELS / name), schema)
    model = loaded.module.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.0, 0.08)
    return model, capture(model, loaded.example_inputs)


def planned(
    captured: Captured,
    options: dict[str, object],
    *,
    splits: int = 0,
    cuts: dict[str, Split] | None = None,
    **counts: int,
) -> Plan:
    tables = [n for n, p in captured.net.parameters.items() if p.kind == "table"]
    return compile_net(
        captured,
        this_machine(**counts),
        with_flags(batch_size=BATCH, dense_lr=0.01, sparse_lr=0.05, **options),  # type: ignore[arg-type]
        name="model",
        solver="rules",
        table_splits=dict.fromkeys(tables[::2], splits) if splits else {},
        fc_splits=cuts or {},
    )


@pytest.mark.parametrize("name", ZOO)
def test_every_model_of_the_zoo_with_tables_in_shards(name: str, data: Callable[[str], str], tmp_path: Path) -> None:
    model, captured = zoo_model(name)
    run = trained(planned(captured, {}, splits=3, group_ps=1, sparse_ps=2), data(name), tmp_path)
    assert_alike(run, model, data(name), tmp_path)


WAYS = {
    "on one trainer": ({"group_ps": 0, "sparse_ps": 0}, {"sparse_optimizer": "sgd"}, {}),
    "cut FCs": (
        {"group_ps": 2, "sparse_ps": 1},
        {},
        {"top.0": Split("vertical", 2), "bottom.0": Split("co-partition", 3), "top.2": Split("horizontal", 2)},
    ),
    "a HET cache": ({"groups": 2, "group_ps": 0, "sparse_ps": 2}, {"dense_sync": "allreduce", "cache": "het"}, {}),
    "a look-ahead cache": (
        {"groups": 1, "group_ps": 0, "sparse_ps": 1},
        {"dense_sync": "allreduce", "cache": "lookahead"},
        {},
    ),
    "tables on every trainer": (
        {"groups": 2, "group_ps": 0},
        {"dense_sync": "allreduce", "sparse_sync": "allgather"},
        {},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_model_however_it_was_trained(way: str, tmp_path: Path) -> None:
    counts, options, cuts = WAYS[way]
    model, captured = zoo_model("dlrm.py")
    run = trained(planned(captured, options, cuts=cuts, **counts), CLICKS, tmp_path)
    assert_alike(run, model, CLICKS, tmp_path)


def test_with_groups_of_their_own_replicas_each_is_to_be_had_and_the_centre(tmp_path: Path) -> None:
    model, captured = zoo_model("wide_deep.py")
    options = {"dense_sync": "easgd", "sync_period": 1000}  # no round: they stay apart
    plan = planned(captured, options, groups=2, group_ps=1, sparse_ps=1, dense_ps=1)
    run = trained(plan, CLICKS, tmp_path)
    scores = []
    for replica in ("center", "group:0", "group:1"):
        (tmp_path / replica).mkdir()
        scores.append(assert_alike(run, model, CLICKS, tmp_path / replica, replica=replica))
    assert all(abs(scores[a] - scores[b]).max() > 1e-3 for a, b in ((0, 1), (1, 2), (0, 2)))


def test_a_model_that_nobody_planned_for_with_padding_and_attention(tmp_path: Path) -> None:
    import din  # noqa: PLC0415  tests/support is on the path of tests only

    draw = np.random.default_rng(0)
    table = pa.table({
        "click": draw.integers(0, 2, EXAMPLES), **{name: draw.normal(size=EXAMPLES) for name in "xyz"},
        "item": draw.integers(0, 60, EXAMPLES), "hist": [draw.integers(1, 60, draw.integers(0, 7)).tolist() for _ in range(EXAMPLES)],
        "tags": [draw.integers(1, 20, draw.integers(0, 4)).tolist() for _ in range(EXAMPLES)],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "clicks.parquet")
    (tmp_path / "schema.yaml").write_text(
        "label: click\ninputs:\n  dense: {kind: dense, columns: [x, y, z]}\n  target: {kind: ids, columns: [item], rows: [60]}\n"
        "  history: {kind: padded, column: hist, length: 6, rows: 60}\n  tags: {kind: padded, column: tags, length: 4, rows: 20}\n"
    )
    data = f"parquet:{tmp_path}/clicks.parquet?schema={tmp_path}/schema.yaml"
    model = din.build()
    batch = example_batch(open_data(data).schema, 6)
    inputs = {name: batch[name] for name in ("dense", "target", "history", "history_length", "tags")}
    plan = planned(capture(model, inputs, logit="logit"), {}, splits=2, group_ps=1, sparse_ps=2)
    assert_alike(trained(plan, data, tmp_path), model, data, tmp_path, logit="logit")


class Sequences(nn.Module):
    """Norms, dropouts, recurrent layers and convolutions over the columns of a click log; a product of two probabilities."""

    gives_probabilities = True

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(26 * ROWS, 8)
        self.gru = nn.GRU(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.lstm = nn.LSTM(8, 5, batch_first=True)
        self.conv = nn.Conv1d(8, 4, 3, padding=1, stride=2)
        self.norm, self.plain = nn.BatchNorm1d(12 + 5 + 4 + 13), nn.BatchNorm1d(16, affine=False)
        self.drop, self.hidden = nn.Dropout(0.3), nn.Linear(12 + 5 + 4 + 13, 16)
        self.heads = nn.ModuleList(nn.Linear(16, 1) for _ in range(2))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """dense[B,13], sparse[B,26] -> probability[B]."""
        seen = self.table(sparse[:, :9] + 30 * torch.arange(9))
        _, (last, _) = self.lstm(seen)
        shapes = F.max_pool1d(F.relu6(self.conv(seen.transpose(1, 2))), 2).topk(2, dim=2).values.mean(2)
        x = torch.cat([self.gru(seen)[0].amax(1), last[0], shapes, dense], 1)
        x = self.drop(F.selu(self.plain(self.hidden(self.norm(x)))))
        first, second = (torch.sigmoid(head(x)) for head in self.heads)
        return (first * second).squeeze(1)


@pytest.mark.parametrize("groups", [1, 2])
def test_norms_dropouts_recurrent_layers_and_convolutions(groups: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Sequences()
    inputs = {n: v for n, v in example_batch(click_schema(13, (ROWS,) * 26), 6).items() if n in ("dense", "sparse")}
    options = {"loss": "bce_probability"}
    plan = planned(capture(model, inputs), options, groups=groups, trainers=groups, group_ps=2, sparse_ps=2)
    run = trained(plan, CLICKS, tmp_path)
    scores = assert_alike(run, model, CLICKS, tmp_path)
    assert 0 < scores.min() < scores.max() < 1
    assert 0.3 < htrain.evaluate(run, data=CLICKS).log_loss < 2


@pytest.mark.parametrize("kind", [FieldNet, PaddedNet, OneTable, BagNet])
def test_rows_that_a_partition_has_numbered_are_those_of_the_model(kind: type[nn.Module], tmp_path: Path) -> None:
    model, parts = drawn(kind), parts_of(tmp_path / "parts", 2, count=BATCH * 6, seed=2)
    options = {"dense_sync": "allreduce", "sparse_sync": "gmp", "partition": str(parts.partition), "gmp_staleness": 0}
    wanted = set(inspect.signature(model.forward).parameters)
    example = example_batch(open_data(parts.source).schema, 6)
    inputs = {name: value for name, value in example.items() if name in wanted}
    plan = planned(capture(model, inputs), options, groups=2, group_ps=0)
    plan.save(tmp_path / "plan")
    htrain.run(tmp_path / "plan", data=parts.packed, out=tmp_path / "run", hosting="threads")
    assert_alike(tmp_path / "run", model, parts.source, tmp_path)


def test_predictions_of_a_squared_error_are_as_they_are(tmp_path: Path) -> None:
    model, captured = zoo_model("wide_deep.py")
    run = trained(planned(captured, {"loss": "mse"}, group_ps=0, sparse_ps=0), CLICKS, tmp_path)
    scores, inputs = predicted(run, CLICKS, tmp_path), inputs_of(CLICKS)
    np.testing.assert_allclose(by_onnx(run, inputs, tmp_path), scores, rtol=0, atol=1e-5)
    logit = torch.logit(torch.from_numpy(by_torch(run, model, inputs, tmp_path)))
    np.testing.assert_allclose(logit, scores, rtol=0, atol=1e-4)
    assert [output.name for output in session_of(tmp_path / "model.onnx").get_outputs()] == ["score"]


def test_fcs_of_8_bits_are_exported_as_they_were_trained(tmp_path: Path) -> None:
    _, captured = zoo_model("dlrm.py")
    run = trained(planned(captured, {"fc_dtype": "int8"}, group_ps=0, sparse_ps=0), CLICKS, tmp_path)
    scores = predicted(run, CLICKS, tmp_path)
    np.testing.assert_allclose(by_onnx(run, inputs_of(CLICKS), tmp_path), scores, rtol=0, atol=1e-5)


@pytest.mark.parametrize("backward", ["float32", "bfloat16"])
def test_fcs_of_bfloat16_are_exported_to_their_rounding(backward: str, tmp_path: Path) -> None:
    _, captured = zoo_model("wide_deep.py")
    options = {"fc_dtype": "bfloat16", "fc_gradient_dtype": backward}
    run = trained(planned(captured, options, group_ps=0, sparse_ps=0), CLICKS, tmp_path)
    scores = predicted(run, CLICKS, tmp_path)
    np.testing.assert_allclose(by_onnx(run, inputs_of(CLICKS), tmp_path), scores, rtol=0, atol=2e-3)


def test_a_model_that_was_exported_can_be_compiled_and_trained_again(tmp_path: Path) -> None:
    _, captured = zoo_model("wide_deep.py")
    run = trained(planned(captured, {}, group_ps=1, sparse_ps=1), CLICKS, tmp_path)
    htrain.export(run, to="onnx", out=tmp_path / "m.onnx")
    options = with_flags(batch_size=EXAMPLES, dense_optimizer="sgd", dense_lr=1e-9)
    cluster = this_machine(group_ps=1, sparse_ps=0)
    again = htrain.compile(
        tmp_path / "m.onnx", data=CLICKS, logit="logit", cluster=cluster, options=options, self_check=False
    )
    assert {p.whole for p in again.train.parameters.values() if p.kind == "weight"} == set(captured.net.parameters)
    (tmp_path / "again").mkdir()
    scores = predicted(trained(again, CLICKS, tmp_path / "again"), CLICKS, tmp_path)
    np.testing.assert_allclose(scores, predicted(run, CLICKS, tmp_path), rtol=0, atol=1e-6)
