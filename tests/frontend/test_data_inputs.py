"""Modules and ONNX files whose inputs data does not give as they are train on it: vectors of ids, ids of 32 bits, numbers of float64."""

import copy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import htrain
from htrain.errors import DataError
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine

COUNT, BATCH, USERS = 90, 16, 1200
SCHEMA = {
    "label": "click",
    "inputs": {
        "user": {"kind": "ids", "columns": ["user"], "rows": USERS},
        "price": {"kind": "dense", "columns": ["price"]},
        "seen": {"kind": "padded", "column": "seen", "length": 3, "rows": USERS},
    },
}
OPTIONS = htrain.Options(
    batch_size=BATCH,
    net_replicas=1,
    dense_optimizer=htrain.Sgd(lr=0.1),
    sparse_optimizer=htrain.Sgd(lr=0.1),
)


class Factors(nn.Module):
    """As one writes it for single examples: user[B] of int32, price[B] of float64."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.top = nn.Embedding(USERS, 4), nn.Linear(5, 1)

    def forward(
        self, user: torch.Tensor, price: torch.Tensor, seen: torch.Tensor, seen_length: torch.Tensor
    ) -> torch.Tensor:
        shown = self.user(user) + self.user(seen).sum(1) / seen_length.clamp(min=1)[:, None]
        return self.top(torch.cat([shown, price.float()[:, None]], 1))[:, 0]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    draw = np.random.default_rng(0)
    seen = [draw.integers(0, USERS, draw.integers(0, 5)).tolist() for _ in range(COUNT)]
    numbers = {"click": draw.integers(0, 2, COUNT), "user": draw.integers(0, USERS, COUNT)}
    return pa.table({**numbers, "price": draw.normal(size=COUNT), "seen": seen})


def as_vectors(table: pa.Table) -> dict[str, torch.Tensor]:
    """The rows of the table as the module takes them."""
    given = {name: torch.from_numpy(values) for name, values in htrain.features(table, schema=SCHEMA).items()}
    return {**given, "user": given["user"][:, 0].int(), "price": given["price"][:, 0].double()}


def trained_by_torch(module: nn.Module, table: pa.Table) -> torch.Tensor:
    """The scores of the module after an epoch."""
    module = copy.deepcopy(module)
    inputs, label = as_vectors(table), torch.tensor(table["click"].to_pylist()).float()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for start in range(0, COUNT, BATCH):
        logit = module(**{name: value[start : start + BATCH] for name, value in inputs.items()})
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(logit, label[start : start + BATCH]).backward()
        optimizer.step()
    with torch.no_grad():
        return torch.sigmoid(module(**inputs))


def scores_after_a_run(plan: Plan, table: pa.Table, folder: Path) -> torch.Tensor:
    plan.save(folder / "plan")
    htrain.pack(table, schema=SCHEMA, out=folder / "packed")
    data = f"packed:{folder / 'packed'}"
    htrain.run(folder / "plan", data=data, out=folder / "run", hosting="threads", deterministic=True)
    htrain.predict(folder / "run", data=data, out=folder / "scores.npy")
    htrain.export(folder / "run", to="onnx", out=folder / "again.onnx")
    scores = np.load(folder / "scores.npy")["score"]
    session = onnxruntime.InferenceSession(folder / "again.onnx")
    (served,) = session.run(["score"], htrain.features(table, schema=SCHEMA))
    np.testing.assert_allclose(served, scores, rtol=1e-5, atol=1e-6)
    return torch.from_numpy(scores)


@pytest.mark.parametrize("sparse_ps", [0, 2])
def test_a_module_of_vectors_trains_on_the_columns_of_data(sparse_ps: int, table: pa.Table, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Factors()
    few = {name: value[:8] for name, value in as_vectors(table).items()}
    cluster = this_machine(group_ps=0, sparse_ps=sparse_ps)
    plan = htrain.compile(module, example_inputs=few, cluster=cluster, options=OPTIONS)
    assert {name: plan.inputs[name] for name in few} == {
        "user": "int64[B,1]",
        "price": "float32[B,1]",
        "seen": "int64[B,3]",
        "seen_length": "int64[B]",
    }
    assert "input user: int32[B] of the model is read as int64[B,1]" in plan.notes
    torch.testing.assert_close(
        scores_after_a_run(plan, table, tmp_path), trained_by_torch(module, table), rtol=1e-4, atol=1e-6
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's older exporter
def test_an_onnx_file_of_vectors_trains_on_the_columns_of_data(table: pa.Table, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Factors()
    inputs = as_vectors(table)
    names = list(inputs)
    torch.onnx.export(
        module, tuple(value[:8] for value in inputs.values()), tmp_path / "m.onnx", input_names=names, dynamo=False,
        dynamic_axes={name: {0: "batch"} for name in names}, opset_version=17,
    )  # fmt: skip
    kinds = [i.type.tensor_type.elem_type for i in onnx.load(tmp_path / "m.onnx").graph.input]
    assert kinds[:2] == [onnx.TensorProto.INT32, onnx.TensorProto.DOUBLE]
    plan = htrain.compile(tmp_path / "m.onnx", cluster=this_machine(group_ps=0), options=OPTIONS)
    torch.testing.assert_close(
        scores_after_a_run(plan, table, tmp_path), trained_by_torch(module, table), rtol=1e-4, atol=1e-6
    )


def test_what_data_does_not_give_is_named_beside_what_it_gives(table: pa.Table, tmp_path: Path) -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.top = nn.Linear(2, 1)

        def forward(self, cost: torch.Tensor) -> torch.Tensor:
            return self.top(cost)

    htrain.pack(table, schema=SCHEMA, out=tmp_path / "packed")
    with pytest.raises(DataError) as raised:
        htrain.compile(
            Other(),
            example_inputs={"cost": torch.zeros(3, 2)},
            cluster=this_machine(),
            data=f"packed:{tmp_path}/packed",
        )
    assert str(raised.value) == (
        f"{tmp_path}/packed: the plan wants input 'cost' as float32[B,2], the data has no such input, but label float32[B], user int64[B,1], "
        "price float32[B,1], seen int64[B,3], seen_length int64[B]; a model takes the inputs of its data by their names: compile it with --data for this "
        "data, or change the one or the other"
    )
