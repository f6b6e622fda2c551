"""Every placement follows the loss curve of the PyTorch model trained alone (docs/guarantees.md)."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from harness import losses_of, relative_differences, torch_losses
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from htrain.compiler.pipeline import compile_net
from htrain.data import click_schema, open_data
from htrain.data.formats.graph import graph_schema
from htrain.frontend.captured import Captured
from htrain.frontend.load import example_batch, load_model
from htrain.frontend.torch_model import capture
from htrain.net.net import Net
from htrain.net.placement import Decision
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.tagging.workload import Workload

STEPS, BATCH, ROWS = 50, 16, 40
CLICKS = f"synthetic:?rows={STEPS * BATCH}&table_rows={ROWS}&communities=4"
MODELS = Path(__file__).parents[2] / "models"
ZOO = ("dlrm.py", "wide_deep.py", "deepfm.py", "dcn.py:build_v1", "dcn.py:build_v2", "graphsage.py")
FANOUT = (4, 3)


def scatter(seed: int, *, trainer_may_hold_weights: bool):
    """A tagger that puts every unit anywhere that is allowed."""

    def tagger(net: Net, workload: Workload) -> list[Decision]:
        draw = random.Random(seed)
        places = [f"group_ps:{k}" for k in range(workload.num_places - 1)]
        return [
            Decision(
                u.name,
                draw.choice(places + ["trainer"] * (trainer_may_hold_weights or not u.weights or not places)),
                "random",
                "drawn",
            )
            for u in workload.units
        ]

    return tagger


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The data of a model of the zoo: the click log, or as many examples of a graph of as many users and items as a table has rows."""
    draw, users = random.Random(0), STEPS * BATCH // 20
    path = tmp_path_factory.mktemp("graph") / "visits.txt"
    lists = (" ".join(map(str, draw.sample(range(ROWS), 10))) for _ in range(users))
    path.write_text("".join(f"{user} {items}\n" for user, items in enumerate(lists)))
    visits = f"graph:{path}?test=0&fanout={FANOUT[0]},{FANOUT[1]}"
    return lambda name: visits if name == "graphsage.py" else CLICKS


@cache
def zoo_model(name: str) -> tuple[nn.Module, Captured]:
    """A model of the zoo with values, and its capture."""
    torch.manual_seed(0)
    schema = graph_schema(2 * ROWS, FANOUT) if name == "graphsage.py" else click_schema(13, (ROWS,) * 26)
    loaded = load_model(str(MODELS / name), schema)
    model = loaded.module.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.0, 0.08)
    return model, capture(model, loaded.example_inputs)


@cache
def unplanned(folder: str) -> tuple[nn.Module, Captured, str]:
    """The DIN-like model, its capture, and a Parquet file for it."""
    import din  # noqa: PLC0415  tests/support is on the path of tests only

    random_state = np.random.default_rng(0)
    count = STEPS * BATCH
    lists = [random_state.integers(1, 60, size=random_state.integers(0, 7)).tolist() for _ in range(count)]
    tags = [random_state.integers(1, 20, size=random_state.integers(0, 4)).tolist() for _ in range(count)]
    table = pa.table({
        "click": random_state.integers(0, 2, count), "x": random_state.normal(size=count), "y": random_state.normal(size=count),
        "z": random_state.normal(size=count),
        "item": random_state.integers(0, 60, count), "hist": lists, "tags": tags,
    })  # fmt: skip
    pq.write_table(table, f"{folder}/clicks.parquet")
    Path(folder, "schema.yaml").write_text(
        "label: click\ninputs:\n  dense: {kind: dense, columns: [x, y, z]}\n  target: {kind: ids, columns: [item], rows: [60]}\n"
        "  history: {kind: padded, column: hist, length: 6, rows: 60}\n  tags: {kind: padded, column: tags, length: 4, rows: 20}\n"
    )
    data = f"parquet:{folder}/clicks.parquet?schema={folder}/schema.yaml"
    torch.manual_seed(1)
    model = din.build()
    batch = example_batch(open_data(data).schema, 6)
    inputs = {name: batch[name] for name in ("dense", "target", "history", "history_length", "tags")}
    return model, capture(model, inputs, logit="logit"), data


@cache
def reference(name: str, data: str, options: Options) -> list[float]:
    return torch_losses(zoo_model(name)[0], data, options)


# fusions round otherwise, and some of these pairs tell PyTorch from itself by 1e-8 (docs/decisions/equal-arithmetic.md)
UNFUSED = dict.fromkeys(
    ("fuse_relu", "fuse_fields", "fuse_tables", "fuse_interaction", "fuse_pairs", "fuse_steps", "fast_products"), False
)
OPTIONS = st.builds(
    with_flags,
    **{name: st.just(value) for name, value in UNFUSED.items()},
    batch_size=st.just(BATCH),
    net_replicas=st.just(1),
    dense_optimizer=st.sampled_from(["sgd", "adagrad", "adam"]),
    sparse_optimizer=st.sampled_from(["sgd", "adagrad", "rowwise_adagrad"]),
    dense_lr=st.just(0.01),
    sparse_lr=st.just(0.05),
    loss=st.sampled_from(["bce", "mse"]),
)


@settings(max_examples=14, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(ZOO),
    options=OPTIONS,
    group_ps=st.integers(0, 3),
    sparse_ps=st.integers(0, 3),
    shards=st.integers(1, 4),
    seed=st.integers(0, 1 << 30),
)
def test_any_placement_of_any_zoo_model_follows_pytorch(
    name: str,
    options: Options,
    group_ps: int,
    sparse_ps: int,
    shards: int,
    seed: int,
    data: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    captured = zoo_model(name)[1]
    tables = [n for n, p in captured.net.parameters.items() if p.kind == "table"]
    splits = dict.fromkeys(random.Random(seed).sample(tables, (len(tables) + 1) // 2), shards) if sparse_ps else {}
    cluster = this_machine(group_ps=group_ps, sparse_ps=sparse_ps)
    plan = compile_net(
        captured,
        cluster,
        options,
        name=name,
        tagger=scatter(seed, trainer_may_hold_weights=True),
        solver="rules",
        table_splits=splits,
    )
    losses = losses_of(plan, tmp_path_factory.mktemp("plan") / "plan", data(name))
    assert len(losses) == STEPS
    assert max(relative_differences(losses, reference(name, data(name), options))) <= 1e-4


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    options=OPTIONS,
    group_ps=st.integers(0, 3),
    sparse_ps=st.integers(0, 3),
    shards=st.integers(1, 4),
    seed=st.integers(0, 1 << 30),
)
def test_any_placement_of_the_unplanned_model_follows_pytorch(
    options: Options, group_ps: int, sparse_ps: int, shards: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.getbasetemp() / "din"
    base.mkdir(exist_ok=True)
    model, captured, data = unplanned(str(base))
    cluster = this_machine(group_ps=group_ps, sparse_ps=sparse_ps)
    splits = {"item.weight": shards} if sparse_ps else {}
    plan = compile_net(
        captured,
        cluster,
        options,
        name="din",
        tagger=scatter(seed, trainer_may_hold_weights=True),
        solver="rules",
        table_splits=splits,
    )
    losses = losses_of(plan, tmp_path_factory.mktemp("plan") / "plan", data)
    assert max(relative_differences(losses, torch_losses(model, data, options, logit="logit"))) <= 1e-4


@pytest.mark.parametrize("name", ZOO)
def test_rules_place_every_zoo_model_and_it_follows_pytorch(
    name: str, data: Callable[[str], str], tmp_path: Path
) -> None:
    options = Options(batch_size=BATCH, net_replicas=1)
    plan = compile_net(zoo_model(name)[1], this_machine(group_ps=2, sparse_ps=2), options, name=name)
    losses = losses_of(plan, tmp_path / "plan", data(name))
    assert max(relative_differences(losses, reference(name, data(name), options))) <= 1e-4


@pytest.mark.parametrize("name", ZOO)
def test_without_fusions_every_zoo_model_trains_on_one_trainer_as_pytorch_bit_for_bit(
    name: str, data: Callable[[str], str], tmp_path: Path
) -> None:
    options = with_flags(
        batch_size=BATCH,
        net_replicas=1,
        dense_optimizer="adam",
        sparse_optimizer="sgd",
        dense_lr=0.01,
        sparse_lr=0.05,
        **UNFUSED,
    )
    plan = compile_net(zoo_model(name)[1], this_machine(group_ps=0, sparse_ps=0), options, name=name)
    assert losses_of(plan, tmp_path / "plan", data(name)) == reference(name, data(name), options)


@pytest.mark.parametrize("name", ZOO)
def test_fused_every_zoo_model_follows_pytorch_on_one_trainer(
    name: str, data: Callable[[str], str], tmp_path: Path
) -> None:
    options = with_flags(
        batch_size=BATCH, net_replicas=1, dense_optimizer="sgd", sparse_optimizer="sgd", dense_lr=0.01, sparse_lr=0.05
    )
    plan = compile_net(zoo_model(name)[1], this_machine(group_ps=0, sparse_ps=0), options, name=name)
    losses = losses_of(plan, tmp_path / "plan", data(name))
    assert max(relative_differences(losses, reference(name, data(name), options))) <= 1e-4


class Sources(nn.Module):
    """A gate that is computed of a parameter alone, and a constant that two layers read."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 8)
        self.hidden = nn.Linear(13, 8)
        self.gate = nn.Parameter(torch.linspace(-1, 1, 8))
        self.register_buffer("shift", torch.linspace(0, 0.5, 8))
        self.top = nn.Linear(8, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.hidden(dense) + self.shift) * nn.functional.softplus(self.gate)
        return self.top(self.table(sparse[:, 0]) + x + self.shift)


@pytest.mark.parametrize("seed", range(4))
def test_a_device_that_reads_nothing_of_the_batch_takes_part_in_every_step(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Sources()
    schema = click_schema(13, (ROWS,) * 26)
    inputs = {name: value for name, value in example_batch(schema, 6).items() if name in ("dense", "sparse")}
    options = Options(batch_size=BATCH, net_replicas=1)
    cluster = this_machine(group_ps=4, sparse_ps=1)
    tagger = scatter(seed, trainer_may_hold_weights=False)
    plan = compile_net(capture(model, inputs), cluster, options, name="sources", tagger=tagger, solver="rules")
    constants = [op for net in plan.nets.values() for op in net.ops if op.type == "Send" and "shift" in op.inputs[0]]
    assert not constants
    assert max(relative_differences(losses_of(plan, tmp_path, CLICKS), torch_losses(model, CLICKS, options))) <= 1e-4
