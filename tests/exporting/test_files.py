"""What is written of a trained model: whole or not at all, over nothing of anybody else's."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from taken_out import by_torch, inputs_of, predicted, session_of, trained
from torch import nn
from torch.nn import functional as F

import htrain
from htrain.errors import CheckpointError, DataError, ModelError, UsageError
from htrain.exporting import onnx_file, wholes
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

ROWS, DIM = 50, 3
DATA = f"synthetic:?rows=64&table_rows={ROWS}"


class Small(nn.Module):
    """Two names for one weight, a table, a weight that is not trained, and one that nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(ROWS, DIM, mode="sum")
        self.first, self.second = nn.Linear(13, 13), nn.Linear(13, 13)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.full((13,), 0.5), requires_grad=False)
        self.unused = nn.Parameter(torch.zeros(7))
        self.top = nn.Linear(13 + DIM, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.second(self.first(dense) * self.scale))
        return self.top(torch.cat([x, self.table(sparse)], dim=1))


def run_of(model: nn.Module, folder: Path, **options: object) -> Path:
    inputs = {"dense": torch.zeros(4, 13), "sparse": torch.zeros(4, 26, dtype=torch.int64)}
    plan = htrain.compile(
        model,
        example_inputs=inputs,
        cluster=this_machine(group_ps=1, sparse_ps=2),
        options=with_flags(batch_size=16, **options),  # type: ignore[arg-type]
        solver="rules",
        table_splits={"table.weight": 2},
        self_check=False,
    )
    return trained(plan, DATA, folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    torch.manual_seed(0)
    model = Small()
    return model, run_of(model, tmp_path_factory.mktemp("small"))


def test_tied_weights_come_under_one_name_and_what_is_left_out_is_named(
    small: tuple[nn.Module, Path], tmp_path: Path
) -> None:
    model, run = small
    np.testing.assert_allclose(
        by_torch(run, model, inputs_of(DATA), tmp_path), predicted(run, DATA, tmp_path), rtol=0, atol=1e-6
    )
    again = htrain.export(run, to="torch", out=tmp_path / "weights.safetensors")  # over its own
    held = load_file(tmp_path / "weights.safetensors")
    assert held.keys() == {
        "first.weight", "first.bias", "second.bias", "scale", "table.weight", "top.weight", "top.bias"
    }  # fmt: skip
    assert again.tensors == 7
    assert again.num_bytes == sum(4 * tensor.numel() for tensor in held.values())
    assert "a parameter that has several names is here under one of them" in again.notes[0]
    assert again.notes[1:] == (
        "the logit does not depend on unused: not in the plan, never trained",
        "first.weight is second.weight, too: not in the plan under that name",
    )


def test_blocks_of_a_table_are_the_table(
    small: tuple[nn.Module, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for block_bytes, name in ((1 << 26, "whole"), (7 * DIM * 4, "blocks")):
        monkeypatch.setattr(wholes, "_BLOCK_BYTES", block_bytes)
        htrain.export(small[1], to="torch", out=tmp_path / name)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "blocks").read_bytes()


def test_weights_that_are_too_large_for_the_model_are_beside_it(
    small: tuple[nn.Module, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small[1]
    monkeypatch.setattr(onnx_file, "_MOST_BYTES", 100)
    made = htrain.export(run, to="onnx", out=tmp_path / "m.onnx")
    assert [file.name for file in made.files] == ["m.onnx", "m.onnx.data"]
    onnx.checker.check_model(tmp_path / "m.onnx")
    session = session_of(tmp_path / "m.onnx")
    inputs = {each.name: inputs_of(DATA)[each.name].numpy() for each in session.get_inputs()}
    (score,) = session.run(["score"], inputs)
    np.testing.assert_allclose(score, predicted(run, DATA, tmp_path), rtol=0, atol=1e-6)
    with pytest.raises(DataError, match=r"m.onnx: is there already, and a model with its weights beside it"):
        htrain.export(run, to="onnx", out=tmp_path / "m.onnx")


def test_nothing_is_left_where_the_second_of_two_files_cannot_be_written(
    small: tuple[nn.Module, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(onnx_file, "_MOST_BYTES", 100)
    monkeypatch.setattr(onnx_file, "write_file", refuse)
    with pytest.raises(DataError, match=r"m.onnx: cannot be written: No space left on device"):
        htrain.export(small[1], to="onnx", out=tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_onnx_model_has_standard_ops_free_batches_and_the_models_inputs(
    small: tuple[nn.Module, Path], tmp_path: Path
) -> None:
    made = htrain.export(small[1], to="onnx", out=tmp_path / "m.onnx")
    htrain.export(small[1], to="onnx", out=tmp_path / "m.onnx")  # over its own
    assert made.notes == (
        "inputs are dense: float32[B,13], sparse: int64[B,26]; outputs logit: float32[B], and score: float32[B], its sigmoid",
    )
    model = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} == {""}
    assert [value.name for value in model.graph.input] == ["dense", "sparse"]
    assert [value.type.tensor_type.shape.dim[0].dim_param for value in model.graph.input] == ["B", "B"]
    session = session_of(tmp_path / "m.onnx")
    whole = {name: inputs_of(DATA)[name].numpy() for name in ("dense", "sparse")}
    (scores,) = session.run(["score"], whole)
    for count in (0, 1, 5):
        (some,) = session.run(["score"], {name: value[:count] for name, value in whole.items()})
        np.testing.assert_allclose(some, scores[:count], rtol=0, atol=1e-6)


class Cropped(nn.Module):
    """ONNX's Pad takes nothing away where htrain's and PyTorch's do."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.top = nn.EmbeddingBag(ROWS, DIM, mode="sum"), nn.Linear(12 + DIM, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        return self.top(torch.cat([F.pad(dense, (-1, 0)), self.table(sparse)], dim=1))


def test_an_op_without_a_form_is_refused_by_name_and_no_file_is_left(tmp_path: Path) -> None:
    run, out = run_of(Cropped(), tmp_path), tmp_path / "out"
    out.mkdir()
    with pytest.raises(
        ModelError, match=r"^Pad '\w+' of module '.+': has no form in ONNX for dense: float32\[B,13\]: "
    ):
        htrain.export(run, to="onnx", out=out / "m.onnx")
    assert list(out.iterdir()) == []
    htrain.export(run, to="torch", out=out / "m.safetensors")


@pytest.mark.parametrize("form", ["safetensors", "parquet", "npy"])
def test_tables_come_in_pieces_with_an_index(form: Any, small: tuple[nn.Module, Path], tmp_path: Path) -> None:
    out = tmp_path / "tables"
    made = htrain.export(small[1], to="tables", out=out, format=form, piece_rows=20)
    assert (made.files, made.tensors, made.num_bytes) == ((out,), 3, 4 * ROWS * DIM)
    index = json.loads((out / "index.json").read_text())
    (table,) = index["tables"]
    assert {name: table[name] for name in ("name", "rows", "dim", "dtype")} == {
        "name": "table.weight", "rows": ROWS, "dim": DIM, "dtype": "float32"
    }  # fmt: skip
    assert [(piece["first_row"], piece["rows"]) for piece in table["pieces"]] == [(0, 20), (20, 20), (40, 10)]
    found = np.concatenate([read_piece(out / piece["file"], piece) for piece in table["pieces"]])
    htrain.export(small[1], to="torch", out=tmp_path / "w")
    np.testing.assert_array_equal(found, load_file(tmp_path / "w")["table.weight"].numpy())
    with pytest.raises(DataError, match="tables: is there already: name a new folder"):
        htrain.export(small[1], to="tables", out=out)
    with pytest.raises(DataError, match=r"no/t: cannot be written: \S+/no is no folder that can be written to"):
        htrain.export(small[1], to="tables", out=tmp_path / "no" / "t")


def read_piece(path: Path, piece: Mapping[str, int]) -> np.ndarray:
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        assert table["row"].to_pylist() == list(range(piece["first_row"], piece["first_row"] + piece["rows"]))
        return np.array(table["values"].to_pylist(), np.float32)
    with safe_open(path, "np") as file:
        return file.get_tensor("rows")


@pytest.mark.parametrize("to", ["torch", "onnx"])
def test_what_somebody_else_wrote_stays(to: Any, small: tuple[nn.Module, Path], tmp_path: Path) -> None:
    for number, content in enumerate((b"mine", b"\x20" + bytes(7) + b"[1]", bytes(100))):
        out = tmp_path / f"{number}"
        out.write_bytes(content)
        with pytest.raises(DataError, match="cannot be written: it holds something that htrain did not write there"):
            htrain.export(small[1], to=to, out=out)
        assert out.read_bytes() == content
    with pytest.raises(DataError, match="no/m: cannot be written"):
        htrain.export(small[1], to=to, out=tmp_path / "no" / "m")


def test_what_cannot_be_asked_for_is_refused(small: tuple[nn.Module, Path], tmp_path: Path) -> None:
    run = small[1]
    with pytest.raises(UsageError, match="format= and piece_rows= have no effect with to='onnx'"):
        htrain.export(run, to="onnx", out=tmp_path / "m", piece_rows=3)
    with pytest.raises(CheckpointError, match="'group:9': want center, or group:N with N below 1"):
        htrain.export(run, to="torch", out=tmp_path / "m", replica="group:9")
    with pytest.raises(CheckpointError, match="not a run folder"):
        htrain.export(tmp_path, to="torch", out=tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


class Dense(nn.Module):
    """No table."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Linear(13, 1)

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        return self.top(dense)


def test_a_model_without_tables_has_none_to_export(tmp_path: Path) -> None:
    plan = htrain.compile(Dense(), example_inputs={"dense": torch.zeros(4, 13)}, cluster=this_machine(group_ps=1))
    run = trained(plan, DATA, tmp_path)
    with pytest.raises(ModelError, match="has no embedding table"):
        htrain.export(run, to="tables", out=tmp_path / "t")
    assert not (tmp_path / "t").exists()


class Named(nn.Module):
    """An input that is called as an output of the exported model would be."""

    def __init__(self) -> None:
        super().__init__()
        self.logit, self.table = nn.Linear(13, 1), nn.EmbeddingBag(ROWS, 1, mode="sum")

    def forward(self, score: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        return self.logit(score) + self.table(sparse)


def test_outputs_have_other_names_where_an_input_has_theirs(tmp_path: Path) -> None:
    rows = [f"{k % 2},{','.join(str(k * c % 5) for c in range(13))},{k % ROWS}" for k in range(40)]
    (tmp_path / "a.csv").write_text("\n".join([f"y,{','.join(f'x{c}' for c in range(13))},c", *rows]) + "\n")
    (tmp_path / "s.yaml").write_text(
        f"label: y\ninputs:\n  score: {{kind: dense, columns: [{', '.join(f'x{c}' for c in range(13))}]}}\n"
        f"  sparse: {{kind: ids, columns: [c], rows: [{ROWS}]}}\n"
    )
    data = f"csv:{tmp_path}/a.csv?schema={tmp_path}/s.yaml"
    inputs = {"score": torch.zeros(4, 13), "sparse": torch.zeros(4, 1, dtype=torch.int64)}
    plan = htrain.compile(Named(), example_inputs=inputs, cluster=this_machine(group_ps=1, sparse_ps=1))
    run = trained(plan, data, tmp_path)
    made = htrain.export(run, to="onnx", out=tmp_path / "m.onnx")
    assert made.notes[0].endswith("; outputs logit: float32[B], and score_1: float32[B], its sigmoid")
    session = session_of(tmp_path / "m.onnx")
    (score,) = session.run(["score_1"], {name: inputs_of(data)[name].numpy() for name in inputs})
    np.testing.assert_allclose(score, predicted(run, data, tmp_path), rtol=0, atol=1e-6)
