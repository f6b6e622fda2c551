"""Twenty steps of a plan, and the same steps by PyTorch alone: the same batches, the same values dropped.

The reference of two groups, which step together (AllReduce, and tables that take one step a batch of all), is PyTorch on the batches of both: one
model, the mean of the two losses, one step. Norms are of each worker's own batch, and dropouts of its key, as in the groups.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.nn import functional as F

from htrain.compiler.pipeline import compile_net
from htrain.data import START, Malformed, open_data
from htrain.executor.settings import RunSettings
from htrain.frontend.captured import Captured
from htrain.frontend.unchanged import unchanged
from htrain.net.net import Op
from htrain.plan.plan import Plan
from htrain.self_check.torch_reference import pick
from htrain.spec.optimizers import SparseAdam
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.transform.loss import final_sigmoid
from library_models.case import Case, Ids, Inputs, drawn
from library_models.dropping import Dropping, dropouts_of
from library_models.pairs import BATCH, PLACEMENTS, Pair
from library_models.row_adam import RowAdam

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from harness import _optimizer, _table_optimizer, relative_differences, run_roles

STEPS = 20
_DRAWS = 8  # of neighbouring floats: one may happen to change little
Batch = tuple[int, dict[str, torch.Tensor]]


class Training:
    """`model` as it is, trained by plans and by PyTorch on the same rows."""

    def __init__(self, model: nn.Module, case: Case, captured: Captured, folder: Path, *, loss: str) -> None:
        self._case, self._captured, self._loss, self._folder = case, captured, loss, folder
        self._state = {name: value.clone() for name, value in model.state_dict().items()}
        self._data: dict[int, str] = {}
        self._known: dict[tuple[Pair, int], list[float]] = {}
        self._plans: dict[tuple[Pair, str], Plan] = {}
        self._ulps: dict[tuple[Pair, int], list[float]] = {}

    def steady(self, pair: Pair, placement: str) -> Pair:
        """`pair` at the largest share of its rates, of these, at which PyTorch's own losses are numbers; 1 for almost all models."""
        tried = [replace(pair, share=share) for share in (1.0, 0.1, 0.01)]
        return next((each for each in tried if all(map(isfinite, self._wanted(each, placement)))), pair)

    def difference(self, pair: Pair, placement: str) -> float:
        """The largest relative difference between the losses of the plan and those of PyTorch."""
        return max(relative_differences(self._by_plan(pair, placement), self._wanted(pair, placement)))

    def difference_of_ulp(self, pair: Pair, placement: str, enough: float) -> float:
        """The same between PyTorch and itself, begun from neighbouring floats: the largest of a few draws of them, as many as give `enough`."""
        wanted = self._wanted(pair, placement)
        seen = self._ulps.setdefault((pair, PLACEMENTS[placement].workers), [])
        while len(seen) < _DRAWS and max(seen, default=0.0) < enough:
            nudged = self._by_torch(self._nudged(len(seen) + 1), pair, placement)
            seen.append(max(relative_differences(nudged, wanted)))
        return max(seen)

    def _wanted(self, pair: Pair, placement: str) -> list[float]:
        """PyTorch's losses, the same in all placements of as many workers."""
        key = (pair, PLACEMENTS[placement].workers)
        if key not in self._known:
            self._known[key] = self._by_torch(self._fresh(), pair, placement)
        return self._known[key]

    def _plan(self, pair: Pair, placement: str) -> Plan:
        where = PLACEMENTS[placement]
        options = with_flags(pair.options, loss=self._loss, **where.flags)
        if (pair, placement) not in self._plans:
            plan = compile_net(self._captured, where.cluster, options, name=self._case.name, solver="rules")
            self._plans[pair, placement] = plan
        return self._plans[pair, placement]

    def _by_plan(self, pair: Pair, placement: str) -> list[float]:
        """The loss of every step, the mean of those of all workers."""
        plan, workers, folder = self._plan(pair, placement), PLACEMENTS[placement].workers, self._folder / placement
        settings = RunSettings(folder, self._rows(workers), folder / "run", deterministic=True, deadline_seconds=20)
        trainers = [role.trainer for role in run_roles(plan, folder, settings).values() if role.trainer]
        return [sum(losses) / workers for losses in zip(*(t.losses for t in trainers), strict=True)]

    def _rows(self, workers: int) -> str:
        """Data of so many batches for each worker."""
        if workers not in self._data:
            folder = self._folder / f"data_{workers}"
            folder.mkdir()
            self._data[workers] = written(self._case.inputs, workers * STEPS * BATCH, folder)
        return self._data[workers]

    def _fresh(self) -> nn.Module:
        """The model anew, at the values it began with: what a library's model keeps of a batch forbids to copy it."""
        torch.manual_seed(0)
        model = self._case.build()
        model.load_state_dict(self._state)
        return model

    def _nudged(self, seed: int) -> nn.Module:
        """The same with every weight moved to a neighbouring float, up or down."""
        nudged = self._fresh()
        torch.manual_seed(seed)
        with torch.no_grad():
            for p in filter(torch.is_floating_point, nudged.parameters()):
                away = torch.where(torch.rand_like(p) < 0.5, torch.inf, -torch.inf)
                p.copy_(torch.nextafter(p, away.to(p.dtype)))
        return nudged

    def _by_torch(self, model: nn.Module, pair: Pair, placement: str) -> list[float]:
        """The loss of every step, the mean of those of all workers' batches; `model` is trained."""
        plan, workers = self._plan(pair, placement), PLACEMENTS[placement].workers
        tables = _tables(model, self._captured)
        steps = _steps(model, tables, pair.options)
        dropouts = dropouts_of(self._captured, plan)
        shards = [_batches(self._rows(workers), shard, workers) for shard in range(workers)]
        losses = []
        for batches in zip(*shards, strict=True):
            asked: dict[int, list[torch.Tensor]] = {id(table): [] for table in tables}
            parts = [self._loss_of(model, batch, dropouts, asked) for batch in batches]
            total = torch.stack(parts).mean()
            model.zero_grad()
            total.backward()
            for step in steps:
                if isinstance(step, RowAdam):
                    step.asked = asked
                step.step()
            losses.append(total.item())
        return losses

    def _loss_of(
        self, model: nn.Module, batch: Batch, dropouts: Sequence[Op], asked: dict[int, list[torch.Tensor]]
    ) -> torch.Tensor:
        key, values = batch[0], dict(batch[1])
        label = values.pop("label")
        dropping = Dropping(model, dropouts, key, asked)
        with unchanged(model), dropping:  # some keep what they have computed for the next batch
            outputs = pick(model(**values), self._case.logit)
        if self._loss == "bce_probability":
            return F.binary_cross_entropy(outputs.reshape(-1), label)
        if final_sigmoid(
            self._captured.net, self._loss
        ):  # which the plan leaves out, so that no probability is rounded to 1
            outputs = dropping.before_sigmoid(outputs)
        return F.binary_cross_entropy_with_logits(outputs.reshape(-1), label)


def _tables(model: nn.Module, captured: Captured) -> list[nn.Parameter]:
    """The parameters whose rows are looked up, as the net has them."""
    known = captured.net.parameters
    named = model.named_parameters(remove_duplicate=False)
    found = {id(p): p for n, p in named if p.requires_grad and n in known and known[n].kind == "table"}
    return list(found.values())


def _steps(model: nn.Module, tables: Sequence[nn.Parameter], options: Options) -> list[torch.optim.Optimizer]:
    of_tables = {id(table) for table in tables}
    dense = [p for p in model.parameters() if p.requires_grad and id(p) not in of_tables]
    asked = options.sparse_optimizer
    by_rows = RowAdam(tables, asked) if tables and isinstance(asked, SparseAdam) else _table_optimizer(asked, tables)
    return [_optimizer(options.dense_optimizer, dense), by_rows]


def _batches(data: str, shard: int, num_shards: int) -> Iterator[Batch]:
    """Every batch of a worker in order, with the key that its dropouts are drawn by."""
    for batch in open_data(data).batches(
        batch_size=BATCH, shard=shard, num_shards=num_shards, epochs=1, start=START, malformed=Malformed()
    ):
        yield batch.position.key, {name: torch.from_numpy(column) for name, column in batch.columns.items()}


def written(inputs: Inputs, num_rows: int, folder: Path) -> str:
    """Random rows in a Parquet file, of which each shard has as many, and its schema; what --data calls them."""
    label = torch.randint(0, 2, (num_rows,), generator=torch.Generator().manual_seed(2))
    columns, schema = {"label": label.numpy()}, ["label: label", "inputs:"]
    for name, values in drawn(inputs, num_rows, seed=1).items():
        names, kind = [f"{name}_{k}" for k in range(values.shape[1])], inputs[name]
        columns |= dict(zip(names, values.T.numpy(), strict=True))
        listed = f"columns: [{', '.join(names)}]"
        said = f"kind: ids, {listed}, rows: {kind.rows}" if isinstance(kind, Ids) else f"kind: dense, {listed}"
        schema.append(f"  {name}: {{{said}}}")
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    (folder / "schema.yaml").write_text("\n".join(schema) + "\n")
    return f"parquet:{folder / 'rows.parquet'}?schema={folder / 'schema.yaml'}"
