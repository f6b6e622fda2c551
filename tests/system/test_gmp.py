"""HET-GMP as whole runs: tables in the workers, by a partition of the data (HET-GMP 5)."""

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from gmp_data import (
    BATCH,
    ROWS,
    BagNet,
    FieldNet,
    OneTable,
    PaddedNet,
    Parts,
    arguments_of,
    divided,
    drawn,
    examples_of,
    joint_losses,
    write_examples,
)
from harness import relative_differences, run_roles
from joint import joint_losses_of, shard_of
from safetensors.torch import load_file
from torch import nn

import htrain
from htrain.errors import DataError, Error, UsageError
from htrain.executor.assembly import Assembly
from htrain.executor.launch.earlier import Earlier, beginning_of
from htrain.executor.launch.role import RunningRole
from htrain.executor.record.measured import measure, measured_text
from htrain.executor.settings import RunSettings
from htrain.plan.plan import Plan, load_plan
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.sync.gmp.messages import Answer
from htrain.sync.gmp.owner import GmpOwner
from htrain.sync.request import Request

OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad")
MODELS = (FieldNet, PaddedNet, OneTable, BagNet)


def options_of(parts: Parts, **flags: object) -> Options:
    asked = {"batch_size": BATCH, "sparse_lr": 0.1, "bucket_bytes": 4096, "gmp_staleness": 0, **flags}
    return with_flags(dense_sync="allreduce", sparse_sync="gmp", partition=str(parts.partition), **asked)  # type: ignore[arg-type]


def planned(model: nn.Module, parts: Parts, workers: int, options: Options) -> Plan:
    inputs = {name: value for name, value in examples_of(parts.source).items() if name in arguments_of(model)}
    cluster = this_machine(groups=workers, trainers=1, group_ps=0)
    return htrain.compile(model, example_inputs=inputs, cluster=cluster, options=options, self_check=False)


def trained(plan: Plan, parts: Parts, folder: Path) -> dict[str, RunningRole]:
    """The roles at the end of the data. The first of them compile their loops, which takes a minute on a busy machine."""
    settings = RunSettings(folder / "plan", parts.packed, folder / "run", deadline_seconds=20)
    return run_roles(plan, folder / "plan", settings, seconds=300)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Parts]:
    """By the number of workers."""
    folder = tmp_path_factory.mktemp("gmp")
    source = write_examples(folder, "a", BATCH * 120)
    return {workers: divided(source, folder, workers) for workers in (2, 3, 4)}


@pytest.mark.parametrize(("workers", "kind", "optimizer"), [
    *((workers, FieldNet, optimizer) for workers in (2, 4) for optimizer in OPTIMIZERS), (2, FieldNet, "ftrl"), *((3, kind, "adagrad") for kind in MODELS[1:]),
])  # fmt: skip
def test_without_staleness_workers_train_as_one_on_their_joint_batches(
    workers: int, kind: type[nn.Module], optimizer: str, parts: dict[int, Parts], tmp_path: Path
) -> None:
    model, options = drawn(kind), options_of(parts[workers], sparse_optimizer=optimizer)
    losses = joint_losses(model, parts[workers], options, workers)
    roles = trained(planned(model, parts[workers], workers, options), parts[workers], tmp_path)
    assert len(losses) >= 30
    assert max(relative_differences(joint_losses_of(roles, workers), losses)) < 1e-4


class ByIds(FieldNet):
    """Masks and comparisons of ids, in training and in evaluation: padding, a row of one column and of another, a target that was seen before."""

    def forward(self, sparse: torch.Tensor, seen: torch.Tensor, seen_length: torch.Tensor) -> dict[str, torch.Tensor]:
        there = (seen != 0).unsqueeze(2).float()
        pooled = (self.b(seen) * there).sum(1) / (seen > 0).sum(1, keepdim=True).clamp(min=1)
        some = (sparse == torch.tensor([2, 3])).float() - (sparse < 1).float() + sparse.bool().float() - 0.5
        again = (seen == seen[:, :1]).float().sum(1, keepdim=True) + (seen[:, 1:2] == 5).float()
        first = self.a(sparse[:, 0]) * some[:, :1] + again
        logit = self.top(torch.cat([first, self.d(sparse[:, 1]) * some[:, 1:], pooled], 1))
        return {"logit": logit[:, 0], "empty": (seen == 0).sum(1).float()}


class ByIdsApart(ByIds):
    """Another way in evaluation, by ids, too."""

    def forward(self, sparse: torch.Tensor, seen: torch.Tensor, seen_length: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            return super().forward(sparse, seen, seen_length)
        weight = (seen != 0).float() * (seen_length > 0).unsqueeze(1) + (seen == 4)
        pooled = (self.b(seen) * weight.unsqueeze(2)).sum(1)
        logit = self.top(torch.cat([self.a(sparse[:, 0]), 2 * self.d(sparse[:, 1]), pooled], 1))
        return {"logit": logit[:, 0], "empty": (seen == 0).sum(1).float()}


class BehindOthers(OneTable):
    """Ids of columns that look up one table, one column behind the other, are compared as rows of that."""

    def forward(self, sparse: torch.Tensor) -> dict[str, torch.Tensor]:
        rows = sparse + self.first
        weight = (rows == int(self.first[1])).float() + (rows != 2).float() + (rows > 0).float()
        return {
            "logit": self.top((self.rows(rows) * weight[..., None]).flatten(1))[:, 0],
            "empty": (rows == 1).sum(1).float(),
        }


@pytest.mark.parametrize("kind", [ByIds, ByIdsApart, BehindOthers])
def test_ids_that_are_compared_are_compared_by_their_new_numbers(
    kind: type[nn.Module], parts: dict[int, Parts], tmp_path: Path
) -> None:
    """Losses of training, scores, heads, and what is exported; of ids as the data has them."""
    model, of = drawn(kind), parts[3]
    options = options_of(of)
    for table in ("a", "b", "d"):
        assert (of.numbering.renumber(table, np.arange(6)) != np.arange(6)).all()
    inputs = {name: value for name, value in examples_of(of.source).items() if name in arguments_of(model)}
    cluster = this_machine(groups=3, trainers=1, group_ps=0)
    plan = htrain.compile(model, example_inputs=inputs, cluster=cluster, options=options, logit="logit")
    losses = joint_losses(Only(copy.deepcopy(model)), of, options, 3)
    roles = trained(plan, of, tmp_path / "joint")
    assert max(relative_differences(joint_losses_of(roles, 3), losses)) < 1e-4

    plan.save(tmp_path / "plan")
    htrain.run(tmp_path / "plan", data=of.packed, out=tmp_path / "run", hosting="threads")
    htrain.export(tmp_path / "run", to="torch", out=tmp_path / "w.safetensors")
    htrain.export(tmp_path / "run", to="onnx", out=tmp_path / "m.onnx")
    htrain.predict(tmp_path / "run", data=of.source, out=tmp_path / "scores.npy")
    found = np.load(tmp_path / "scores.npy")[: len(inputs["sparse"])]
    model.load_state_dict(load_file(tmp_path / "w.safetensors"), strict=False)
    with torch.no_grad():
        wanted = {name: value.numpy() for name, value in model.eval()(**inputs).items()}
    np.testing.assert_allclose(found["score"], 1 / (1 + np.exp(-wanted["logit"])), atol=2e-6)
    np.testing.assert_array_equal(found["empty"], wanted["empty"])
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    given = {each.name: inputs[each.name].numpy() for each in session.get_inputs()}
    score, empty = session.run(["score", "empty"], given)
    np.testing.assert_allclose(score, found["score"], atol=1e-5)
    np.testing.assert_array_equal(empty, wanted["empty"])


class Only(nn.Module):
    """The logit of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sparse: torch.Tensor, seen: torch.Tensor, seen_length: torch.Tensor) -> torch.Tensor:
        given = {"sparse": sparse, "seen": seen, "seen_length": seen_length}
        return self.model(**{name: given[name] for name in arguments_of(self.model)})["logit"]


OTHERWISE: dict[str, Callable[[FieldNet, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a number": lambda m, x, ids: x + ids.float().mean(1, keepdim=True),
    "an order": lambda m, x, ids: x * (ids > 3).float().mean(1, keepdim=True),
    "another column": lambda m, x, ids: x * (ids[:, :1] == ids[:, 1:]).float(),
    "a weight": lambda m, x, ids: x + m.top.weight[0][ids[:, :1] % 4],
    "a group": lambda m, x, ids: x + m.d((torch.arange(ROWS[0]) % 10)[ids[:, 0]]),
    "one hot": lambda m, x, ids: x * nn.functional.one_hot(ids[:, 1], ROWS[1])[:, 3:4],
    "one hot of both": lambda m, x, ids: x * nn.functional.one_hot(ids, max(ROWS)).sum(1)[:, :1],
    "a mask in its place": lambda m, x, ids: x + m.a(torch.where(x[:, 0] > 0, ids[:, 0], 0)),
}


@pytest.mark.parametrize("name", [*OTHERWISE])
def test_what_is_computed_of_ids_otherwise_is_refused(name: str, parts: dict[int, Parts]) -> None:
    class Otherwise(FieldNet):
        def forward(self, sparse: torch.Tensor, seen: torch.Tensor, seen_length: torch.Tensor) -> torch.Tensor:
            x = OTHERWISE[name](self, self.d(sparse[:, 1]), sparse)
            return self.top(torch.cat([self.a(sparse[:, 0]), x, self.b(seen).mean(1)], 1))

    model, of = drawn(Otherwise), parts[2]
    inputs = {n: value for n, value in examples_of(of.source).items() if n in arguments_of(model)}
    with pytest.raises(UsageError, match=r"computes with ids themselves.*|ids that the model computes"):
        htrain.compile(model, example_inputs=inputs, cluster=this_machine(groups=2, trainers=1, group_ps=0), options=options_of(of))  # fmt: skip


class Evaluated(FieldNet):
    """In evaluation rows count twice, and of the list its first id alone."""

    def forward(self, sparse: torch.Tensor, seen: torch.Tensor, seen_length: torch.Tensor) -> torch.Tensor:
        if self.training:
            return super().forward(sparse, seen, seen_length)
        first = self.b(seen[:, 0]) * (seen_length > 0).unsqueeze(1)
        return self.top(torch.cat([self.a(sparse[:, 0]), 2 * self.d(sparse[:, 1]), first], 1))


def test_what_a_model_does_in_evaluation_alone_is_scored(parts: dict[int, Parts], tmp_path: Path) -> None:
    model, inputs = drawn(Evaluated), examples_of(parts[2].source)
    inputs = {name: value for name, value in inputs.items() if name in arguments_of(model)}
    plan = htrain.compile(
        model, example_inputs=inputs, cluster=this_machine(groups=2, trainers=1, group_ps=0), options=options_of(parts[2])
    )  # fmt: skip
    assert plan.evaluation
    plan.save(tmp_path / "plan")
    htrain.run(tmp_path / "plan", data=parts[2].packed, out=tmp_path / "run", hosting="threads")
    htrain.export(tmp_path / "run", to="torch", out=tmp_path / "w.safetensors")
    htrain.predict(tmp_path / "run", data=parts[2].source, out=tmp_path / "scores.npy")
    model.load_state_dict(load_file(tmp_path / "w.safetensors"))
    with torch.no_grad():
        wanted = torch.sigmoid(model.eval()(**inputs)).reshape(-1).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy")["score"][: len(wanted)], wanted, atol=2e-6)


class OneTableForBoth(nn.Module):
    """A target and a list of what was seen before, looked up in one table, as models of interest have them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Embedding(ROWS[0], 4), nn.Embedding(ROWS[2], 4)
        self.top = nn.Linear(12, 1)

    def forward(self, sparse: torch.Tensor, seen: torch.Tensor, seen_length: torch.Tensor) -> torch.Tensor:
        there = (torch.arange(seen.shape[1]) < seen_length.unsqueeze(1)).unsqueeze(2).to(torch.float32)
        pooled = (self.b(seen) * there).sum(1)
        return self.top(torch.cat([self.a(sparse[:, 0]), self.b(sparse[:, 1]), pooled], 1))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_a_table_that_a_column_and_a_list_share_trains_as_on_the_joint_batches(optimizer: str, tmp_path: Path) -> None:
    source = write_examples(tmp_path, "a", BATCH * 120)
    (tmp_path / "s.yaml").write_text(
        f"label: y\ninputs:\n  sparse: {{kind: ids, columns: [a, d], rows: [{ROWS[0]}, {ROWS[2]}], tables: [a, item]}}\n"
        f"  seen: {{kind: padded, column: b, length: 4, rows: {ROWS[2]}, table: item}}\n"
    )
    parts = divided(source, tmp_path, 3)
    model, options = drawn(OneTableForBoth), options_of(parts, sparse_optimizer=optimizer)
    losses = joint_losses(model, parts, options, 3)
    roles = trained(planned(model, parts, 3, options), parts, tmp_path)
    assert max(relative_differences(joint_losses_of(roles, 3), losses)) < 1e-4


def test_without_staleness_deferred_writes_are_not(parts: dict[int, Parts], tmp_path: Path) -> None:
    """Nor are rows that decay, whose decay is in the gradients that travel; tables of another rate have replicas of their own."""
    model = drawn(FieldNet)
    options = options_of(
        parts[3], gmp_write="deferred", sparse_optimizer="sgd", sparse_lazy_weight_decay=0.1, rate=(("a.*", 0.5), ("top.bias", 0.0))
    )  # fmt: skip
    losses = joint_losses(model, parts[3], options, 3)
    roles = trained(planned(model, parts[3], 3, options), parts[3], tmp_path)
    assert max(relative_differences(joint_losses_of(roles, 3), losses)) < 1e-4


@pytest.mark.parametrize("write", ["through", "deferred"])
@pytest.mark.parametrize("staleness", [1, 4])
def test_a_replica_that_is_read_is_within_its_bound_and_all_updates_come_to_their_owners(
    staleness: int, write: str, parts: dict[int, Parts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps: list[int] = []
    pull = GmpOwner.pull

    def watched(self: GmpOwner, request: Request) -> Answer:
        answer = pull(self, request)
        pushed, fetched, checked = (int(n) for n in request.counts)
        kept = np.setdiff1d(np.arange(checked), answer.stale)
        rows = request.keys[pushed + fetched :].astype(np.int64)[kept]
        gaps.extend((self.clocks[rows] - request.clocks[pushed:][kept]).tolist())
        return answer

    monkeypatch.setattr(GmpOwner, "pull", watched)
    options = options_of(parts[4], gmp_staleness=staleness, gmp_write=write)
    roles = trained(planned(drawn(FieldNet), parts[4], 4, options), parts[4], tmp_path)
    assert gaps
    assert max(gaps) == staleness
    written = sum(sum(cache.counts.written for cache in roles[f"trainer:{w}:0"].caches.values()) for w in range(4))
    arrived = sum(int(owner.clocks.sum()) for w in range(4) for owner in roles[f"sparse_ps:{w}"].caches.values())
    assert arrived == written


class Columns(nn.Module):
    """A table for each column of synthetic data."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, 2) for _ in range(columns))
        self.top = nn.Linear(2, 1)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        return self.top(sum(table(sparse[:, c]) for c, table in enumerate(self.tables)))


def test_rows_of_each_pair_of_workers_are_those_predicted(tmp_path: Path) -> None:
    rows = 60
    source = f"synthetic:?rows={BATCH * 1200}&table_rows={rows}&communities=3"
    parts = divided(source, tmp_path, 3)
    roles = trained(planned(Columns(rows, 26), parts, 3, options_of(parts, gmp_staleness=10)), parts, tmp_path)
    for i in range(3):
        role = roles[f"trainer:{i}:0"]
        assert role.trainer
        needed = np.array(role.metrics()["caches"]["needed"]) / role.trainer.totals.steps
        predicted = np.array(parts.numbering.facts.rows[i])
        others = [j for j in range(3) if j != i]
        np.testing.assert_allclose(needed[others], predicted[others], rtol=0.03)


class TwoTowers(nn.Module):
    """As neural collaborative filtering has it: two tables of one width for `a`, one of them for `d`, a bias by `a` and none of `b` or `c`."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.d = nn.Embedding(ROWS[0], 4), nn.Embedding(ROWS[0], 4), nn.Embedding(ROWS[1], 4)
        self.bias = nn.Embedding(ROWS[0], 1)
        self.top = nn.Linear(8, 1)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        a, d = sparse[:, 0], self.d(sparse[:, 1])
        return self.top(torch.cat([self.left(a) * d, self.right(a) + d], 1)) + self.bias(a)


@pytest.mark.parametrize("replicas", [0.0, 0.1])
def test_a_row_of_the_data_is_needed_once_however_many_tables_it_is_looked_up_in(
    replicas: float, tmp_path: Path
) -> None:
    """Beside distinct rows of the batches, counted by sets; those that are replicas count, too, as in what the partition predicts beside."""
    source = write_examples(tmp_path, "a", BATCH * 120)
    parts = divided(source, tmp_path, 2, replicas=replicas)
    plan = planned(TwoTowers(), parts, 2, options_of(parts, gmp_staleness=10))
    roles = trained(plan, parts, tmp_path)
    bounds = {name: parts.numbering.bounds(name)[1] for name in ("a", "d")}
    for worker in range(2):
        wanted = 0
        for batch in shard_of(parts.packed, BATCH, worker, 2):
            for column, bound in enumerate(bounds.values()):
                rows = batch["sparse"][:, column].unique()
                wanted += int(((rows < bound) != (worker == 0)).sum())
        assert roles[f"trainer:{worker}:0"].metrics()["caches"]["needed"][1 - worker] == wanted
    reports = {name: role.metrics() for name, role in roles.items()}
    found = measure(plan, {}, reports, 1.0)
    assert found.predicted_rows == parts.numbering.facts.rows
    assert "the same, as the partition predicts" in measured_text(found)
    parts.partition.rename(tmp_path / "moved")
    assert not measure(plan, {}, reports, 1.0).predicted_rows


def test_another_number_of_workers_begins_with_a_checkpoint_bit_for_bit(
    parts: dict[int, Parts], tmp_path: Path
) -> None:
    model = drawn(OneTable)
    planned(model, parts[3], 3, options_of(parts[3], gmp_staleness=5)).save(tmp_path / "three")
    planned(model, parts[2], 2, options_of(parts[2])).save(tmp_path / "two")
    htrain.run(tmp_path / "three", data=parts[3].packed, out=tmp_path / "a", hosting="threads")
    first = htrain.evaluate(tmp_path / "a", data=parts[2].source)
    three, two = load_plan(tmp_path / "three"), load_plan(tmp_path / "two")
    before, after = (_wholes(plan, tmp_path / "a") for plan in (three, two))
    assert before.keys() == after.keys()
    assert any(name.endswith("accumulator") for name in before)
    for name, values in before.items():
        assert torch.equal(values, after[name]), name
    assert htrain.evaluate(tmp_path / "a", data=parts[3].packed).log_loss == pytest.approx(first.log_loss, rel=1e-6)
    htrain.run(tmp_path / "two", data=parts[2].packed, out=tmp_path / "b", begin_with=tmp_path / "a", hosting="threads")
    assert htrain.evaluate(tmp_path / "b", data=parts[2].source).log_loss < first.log_loss


def _wholes(plan: Plan, run: Path) -> dict[str, torch.Tensor]:
    """Tables and their states in original rows, as the roles of a plan that begins with a run have them."""
    earlier, found = Earlier(beginning_of(run)), {}
    for role in (role for role in plan.cluster.roles if role.startswith("sparse_ps")):
        parts = Assembly(plan, role, replicas=1)
        parts.server()
        parts.copy_from(earlier)
        for name, parameter in parts.engine.program.net.parameters.items():
            rows = parts.cache_half.originals(parameter)
            if rows is not None:
                owner = plan.train.parameters[parameter.of] if parameter.kind == "state" else parameter
                whole = owner.whole + (name.removeprefix(owner.name) if parameter.kind == "state" else "")
                total = sum(shard.num_rows for shard in plan.tables[owner.whole])
                into = found.setdefault(whole, torch.full((total, *parameter.shape[1:]), float("nan")))
                into[torch.from_numpy(rows)] = parts.store[name]
    return found


def test_what_does_not_belong_together_is_refused_in_a_line(parts: dict[int, Parts], tmp_path: Path) -> None:
    model = drawn(FieldNet)
    planned(model, parts[2], 2, options_of(parts[2])).save(tmp_path / "plan")

    def refused(data: str, says: str, kind: type[Error] = DataError) -> None:
        with pytest.raises(kind, match=says):
            htrain.run(tmp_path / "plan", data=data, out=tmp_path / "run", hosting="threads")
        assert not (tmp_path / "run").exists()

    refused(parts[2].source, "is not packed: sparse sync gmp wants htrain data pack DATA --partition FILE")
    refused(parts[3].packed, "was packed by another partition")
    with pytest.raises(UsageError, match="a partition among 2 workers, the cluster has 3 groups"):
        planned(model, parts[2], 3, options_of(parts[2]))
    options = options_of(Parts("", tmp_path / "none.partition", ""))
    with pytest.raises(DataError, match=r"none\.partition: cannot be read: No such file"):
        planned(model, parts[2], 2, options)
    plain = htrain.compile(
        model, example_inputs={n: v for n, v in examples_of(parts[2].source).items() if n in arguments_of(model)},
        cluster=this_machine(groups=1, trainers=1, group_ps=0, sparse_ps=1), options=Options(batch_size=BATCH), self_check=False,
    )  # fmt: skip
    plain.save(tmp_path / "plan")
    refused(parts[2].packed, "was packed by a partition, its rows have other numbers than the model's")


class Hashed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.top = nn.Embedding(20, 4), nn.Linear(4, 1)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        return self.top(self.a(sparse[:, 0] % 20))


class Small(Hashed):
    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        return self.top(self.a(sparse[:, 0]))


def test_a_table_that_the_partition_says_nothing_of_is_refused_by_name(parts: dict[int, Parts]) -> None:
    with pytest.raises(UsageError, match=r"table 'a\.weight' is looked up by ids that the model computes"):
        planned(Hashed(), parts[2], 2, options_of(parts[2]))
    with pytest.raises(
        UsageError, match=r"table 'a\.weight' has 20 rows for those of 'a' in the partition, which has 40"
    ):
        planned(Small(), parts[2], 2, options_of(parts[2]))
    frozen = drawn(FieldNet)
    frozen.b.weight.requires_grad = False  # type: ignore[union-attr]
    with pytest.raises(UsageError, match=r"table 'b\.weight' is frozen"):
        planned(frozen, parts[2], 2, options_of(parts[2]))


def test_who_says_where_rows_are_is_the_partition_alone(parts: dict[int, Parts]) -> None:
    model, options = drawn(FieldNet), options_of(parts[2])
    inputs = {name: value for name, value in examples_of(parts[2].source).items() if name in arguments_of(model)}
    cluster = this_machine(groups=2, trainers=1, group_ps=0)
    with pytest.raises(UsageError, match=r"--split-table a\.weight has no effect: sparse sync gmp says where rows are"):
        htrain.compile(model, example_inputs=inputs, cluster=cluster, options=options, table_splits={"a.weight": 2})
    pinned = this_machine(groups=2, trainers=1, group_ps=0, pin=(("a.*", "sparse_ps:0"),))
    with pytest.raises(UsageError, match=r"pin a\.\*: sparse_ps:0 has no effect: the partition says where tables are"):
        htrain.compile(model, example_inputs=inputs, cluster=pinned, options=options)
