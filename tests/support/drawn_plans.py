"""Plans as users have them, drawn: model x strategy x cluster x placement x replicas x prefetch, each with data for some steps."""

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import din
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from htrain.compiler.pipeline import compile_net
from htrain.data import Schema, click_schema, open_data
from htrain.data.formats.graph import graph_schema
from htrain.frontend.captured import Captured
from htrain.frontend.load import example_batch, load_model
from htrain.frontend.torch_model import capture
from htrain.net.net import Net
from htrain.net.placement import Decision
from htrain.plan.plan import Plan
from htrain.spec.cluster import Cluster, this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.tagging.workload import Workload

MODELS = Path(__file__).parents[2] / "models"
ZOO = ("dlrm.py", "wide_deep.py", "deepfm.py", "dcn.py:build_v1", "dcn.py:build_v2", "graphsage.py")
SEQUENCES = ("attention over a list", "a deep interest network", "rows that no other input meets")
ROWS, FANOUT, NODES, ITEMS = 40, (4, 3), 400, 60


class InterestNetwork(nn.Module):
    """DIN as one writes it: an FC over [target, item, difference, product] of each item of a list scores it."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.item = nn.Embedding(ITEMS, dim)
        self.score = nn.Sequential(nn.Linear(4 * dim, 12), nn.PReLU(), nn.Linear(12, 1))
        self.top = nn.Sequential(nn.Linear(2 * dim + 3, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(
        self, dense: torch.Tensor, target: torch.Tensor, history: torch.Tensor, history_length: torch.Tensor
    ) -> torch.Tensor:
        """dense[B,3], target[B,1], history[B,T] padded with 0, history_length[B] -> logit[B,1]."""
        steps = history.size(1)
        wanted, seen = self.item(target), self.item(history)
        query = wanted.expand(-1, steps, -1)
        scores = self.score(torch.cat([query, seen, query - seen, query * seen], dim=-1)).squeeze(-1)
        mask = torch.arange(steps)[None, :] < history_length[:, None]
        interest = (torch.softmax(scores.masked_fill(~mask, -1e9), dim=1).unsqueeze(-1) * seen).sum(1)
        return self.top(torch.cat([interest, wanted[:, 0], dense], dim=1))


class Towers(nn.Module):
    """Weights that are read alone, and rows that meet weights before they meet any other input."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.item = nn.Embedding(ITEMS, dim)
        self.tag = nn.Embedding(20, dim)
        self.gate = nn.Parameter(torch.linspace(-1, 1, dim))
        self.rows = nn.Linear(dim, dim)
        self.top = nn.Linear(2 * dim + 3, 1)

    def forward(self, dense: torch.Tensor, target: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        """dense[B,3], target[B,1], tags[B,L] padded with 0 -> logit[B,1]."""
        item = torch.relu(self.rows(self.item(target)))[:, 0] * torch.sigmoid(self.gate)
        return self.top(torch.cat([item, self.tag(tags).mean(1), dense], dim=1))


def write_visits(folder: Path, rows: int) -> str:
    """Examples with lists: a Parquet file of `rows` rows and its schema; its URI."""
    draw = np.random.default_rng(0)
    lists = {
        name: [draw.integers(1, below, size=draw.integers(0, most + 1)).tolist() for _ in range(rows)]
        for name, below, most in (("hist", ITEMS, 15), ("tags", 20, 4))
    }
    dense = {name: draw.normal(size=rows) for name in "xyz"}
    table = {"click": draw.integers(0, 2, rows), "item": draw.integers(0, ITEMS, rows), **dense, **lists}
    pq.write_table(pa.table(table), folder / "visits.parquet")
    (folder / "visits.yaml").write_text(
        "label: click\ninputs:\n  dense: {kind: dense, columns: [x, y, z]}\n  target: {kind: ids, columns: [item], rows: [60]}\n"
        "  history: {kind: padded, column: hist, length: 15, rows: 60}\n  tags: {kind: padded, column: tags, length: 4, rows: 20}\n"
    )
    return f"parquet:{folder}/visits.parquet?schema={folder}/visits.yaml"


def write_graph(folder: Path, rows: int) -> str:
    """A graph that gives `rows` examples; its URI."""
    draw = random.Random(0)
    lists = (" ".join(map(str, draw.sample(range(ROWS), 10))) for _ in range(rows // 20))
    (folder / "visits.txt").write_text("".join(f"{user} {items}\n" for user, items in enumerate(lists)))
    return f"graph:{folder}/visits.txt?test=0&fanout={FANOUT[0]},{FANOUT[1]}"


def data_of(model: str, folder: Path, rows: int) -> str:
    """The URI of `rows` examples for a model, written to `folder` where they come from a file; `rows` is a multiple of 20."""
    if model in SEQUENCES:
        return write_visits(folder, rows)
    return (
        write_graph(folder, rows)
        if model == "graphsage.py"
        else f"synthetic:?rows={rows}&table_rows={ROWS}&communities=4"
    )


@cache
def captured_model(model: str) -> Captured:
    """A model's capture, with first values."""
    torch.manual_seed(0)
    if model in SEQUENCES:
        kind = {SEQUENCES[0]: din.build, SEQUENCES[1]: InterestNetwork, SEQUENCES[2]: Towers}[model]
        module = kind()
        wanted = module.forward.__code__.co_varnames[1 : module.forward.__code__.co_argcount]
        batch = example_batch(_visits_schema(), 6)
        return capture(module, {name: batch[name] for name in wanted}, logit="logit" if model == SEQUENCES[0] else "")
    schema = graph_schema(NODES, FANOUT) if model == "graphsage.py" else click_schema(13, (ROWS,) * 26)
    loaded = load_model(str(MODELS / model), schema)
    return loaded.initialised(capture(loaded.module, loaded.example_inputs))


@cache
def _visits_schema() -> Schema:
    import tempfile  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        return open_data(write_visits(Path(folder), 20)).schema


def scattered(seed: int, *, trainer_may_hold_weights: bool):
    """A tagger that puts every unit anywhere that is allowed."""

    def tagger(net: Net, workload: Workload) -> list[Decision]:
        draw = random.Random(seed)
        places = [f"group_ps:{k}" for k in range(workload.num_places - 1)]

        def place(holds_weights: bool) -> str:
            on_trainer = trainer_may_hold_weights or not holds_weights or not places
            return draw.choice(places + ["trainer"] * on_trainer)

        return [Decision(unit.name, place(bool(unit.weights)), "random", "drawn") for unit in workload.units]

    return tagger


@dataclass(frozen=True)
class Drawn:
    """A plan as it was drawn: enough to make it again, and to say what it is."""

    model: str
    cluster: Cluster
    options: Options
    placement: str
    seed: int

    @classmethod
    def of(cls, seed: int) -> "Drawn":
        draw = random.Random(seed)
        model = draw.choice((*ZOO, *SEQUENCES, *SEQUENCES))
        kind = draw.choice(
            ("easgd", "easgd", "easgd", "classic", "allreduce", "allgather", "het", "het in lockstep", "lookahead")
        )
        options = with_flags(
            batch_size=draw.choice((4, 16)),
            net_replicas=draw.choice((1, 2, 2, 3)),
            prefetch=draw.random() < 0.8,
            dense_optimizer=draw.choice(("sgd", "adagrad", "adam")),
            sparse_optimizer=draw.choice(("sgd", "adagrad", "rowwise_adagrad")),
            sync_period=draw.choice((1, 8)),
            fc_dtype=draw.choice(("float32", "float32", "bfloat16")),
            activation_dtype=draw.choice(("float32", "float32", "int8")),
        )
        cluster, options = _strategy(kind, draw, options)
        return cls(model, cluster, options, draw.choice(("drawn", "drawn", "greedy", "rules")), seed)

    def plan(self) -> Plan:
        """Compile it."""
        captured = captured_model(self.model)
        tagger = (
            {"tagger": scattered(self.seed, trainer_may_hold_weights=self.cluster.trainers == 1)}
            if self.placement == "drawn"
            else {}
        )
        solver = "greedy" if self.placement == "greedy" else "rules"
        return compile_net(captured, self.cluster, self.options, name=self.model, solver=solver, **tagger)  # type: ignore[arg-type]

    @property
    def bound(self) -> int:
        """HT 3.1.1's bound on dense staleness."""
        return self.cluster.trainers * self.options.net_replicas

    @property
    def num_trainers(self) -> int:
        return self.cluster.groups * self.cluster.trainers

    def __str__(self) -> str:
        c, o = self.cluster, self.options
        return (
            f"{self.model}, seed {self.seed}: {c.groups} x ({c.trainers} trainers of {o.net_replicas} replicas, {c.group_ps} group PSs), "
            f"{c.sparse_ps} sparse PSs, "
            f"{o.dense_sync}, {o.sparse_sync.kind}, cache {o.cache.kind}, {'' if o.prefetch else 'no '}prefetch, {self.placement} placement"
        )


def _strategy(kind: str, draw: random.Random, options: Options) -> tuple[Cluster, Options]:
    """A cluster that a way to synchronise fits, and its options."""
    groups = draw.choice((1, 2))
    counts = {"groups": groups, "trainers": 1, "group_ps": 0, "sparse_ps": draw.choice((1, 2))}
    if kind in ("easgd", "het"):
        trainers = draw.choice((1, 1, 2))
        counts |= {"trainers": trainers, "group_ps": draw.choice((1, 2)) if trainers > 1 else draw.choice((0, 1, 2))}
        cache = {"cache": "het", "cache_staleness": draw.choice((1, 10)), "cache_capacity": draw.choice(("20%", "60%"))}
        rounds = {
            "dense_sync": draw.choice(("easgd", "easgd", "model_averaging", "bmuf")), "sync_mode": draw.choice(("background", "background", "fixed_rate")),
            "sync_through": draw.choice(("dense_ps", "groups")),
        }  # fmt: skip
        counts |= {"dense_ps": draw.choice((1, 2))} if groups > 1 and rounds["sync_through"] == "dense_ps" else {}
        return this_machine(**counts), with_flags(
            options, sync_period=options.dense_sync.round_steps, **rounds, **(cache if kind == "het" else {})
        )
    if kind == "classic":
        return this_machine(**{**counts, "groups": 1, "trainers": groups, "group_ps": draw.choice((1, 2))}), with_flags(
            options, dense_sync="ps"
        )
    if kind == "lookahead":
        sync = {"dense_sync": "allreduce"} if groups > 1 else {}
        counts |= {
            "group_ps": 0 if groups > 1 else draw.choice((0, 1, 2)),
            "sparse_ps": draw.choice((0, 1, 2)) if groups == 1 else counts["sparse_ps"],
        }
        return this_machine(**counts), with_flags(
            options, net_replicas=1, cache="lookahead", cache_sets=7, cache_ways=4, **sync
        )
    extra = {"sparse_sync": "allgather"} if kind == "allgather" else {}
    extra |= (
        {"cache": "het", "cache_staleness": draw.choice((0, 5)), "cache_capacity": "40%"}
        if kind == "het in lockstep"
        else {}
    )
    return this_machine(**counts), with_flags(options, net_replicas=1, dense_sync="allreduce", **extra)
