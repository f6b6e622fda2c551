"""A run begins with one whose vocabularies had less values: what was trained keeps its rows, whatever holds them, and what is new begins anew."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from checkpoints import whole_role
from safetensors.torch import load_file
from torch import nn
from whole_runs import WIDE_DEEP

import htrain
from htrain.data import open_data
from htrain.errors import CheckpointError, DataError, PublishError, UsageError
from htrain.executor.launch.earlier import Earlier, beginning_of
from htrain.executor.record.kept import latest_checkpoint
from htrain.executor.record.pieces import owner_of
from htrain.net.net import Parameter
from htrain.plan.plan import Plan, load_plan
from htrain.spec.cluster import Cluster, this_machine
from htrain.spec.tree import with_flags

SCHEMA = """\
label: y
inputs:
  sparse: {{kind: ids, columns: [user, item], rows: [vocabulary, 7], vocabulary: v{day}.parquet}}
  seen: {{kind: padded, column: seen, length: 3, vocabulary: v{day}.parquet}}
"""
USERS = 30, 45


def data_of(folder: Path, day: int) -> str:
    return f"parquet:{folder}/day{day}.parquet?schema={folder}/day{day}.yaml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days of data, the second with more values, whose vocabularies extend those of the first; and a run on the first day, on three sparse PSs."""
    place = tmp_path_factory.mktemp("days")
    draw = np.random.default_rng(0)
    for day, users in enumerate(USERS):
        rows = {
            "y": draw.integers(0, 2, 400),
            "user": [f"u{k}" for k in draw.integers(0, users, 400)],
            "item": draw.integers(0, 7, 400),
            "seen": [draw.integers(0, 20 + 5 * day, k).tolist() for k in draw.integers(0, 5, 400)],
        }
        pq.write_table(pa.table(rows), place / f"day{day}.parquet")
        (place / f"day{day}.yaml").write_text(SCHEMA.format(day=day))
        extends = place / "v0.parquet" if day else ""
        htrain.vocabulary(data_of(place, day), out=place / f"v{day}.parquet", extends=extends)
    planned(place, 0, Cluster(groups=1, trainers=1, group_ps=1, sparse_ps=3), "adagrad").save(place / "plan0")
    htrain.run(place / "plan0", data=data_of(place, 0), out=place / "run0", hosting="threads")
    return place


class Reads(nn.Module):
    """All inputs, of which a value has the same number on both days: by a table each, one that is read in two ways, and one for a column that is hashed."""

    def __init__(self, users: int, seen: int) -> None:
        super().__init__()
        self.user, self.wide, self.item = nn.Embedding(users, 4), nn.Embedding(users, 1), nn.Embedding(7, 4)
        self.seen, self.fc = nn.EmbeddingBag(seen, 4, mode="sum"), nn.Linear(8, 4)

    def forward(self, sparse: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        user, item = sparse[:, 0], sparse[:, 1]
        hidden = self.fc(torch.cat([self.user(user), self.seen(seen)], 1))
        logit: torch.Tensor = (hidden * self.item(item)).sum(1) + self.wide(user).squeeze(1)
        return logit


def planned(folder: Path, day: int, cluster: Cluster, optimizer: str, **flags: Any) -> Plan:
    sizes = {item.name: item.rows[0] for item in open_data(data_of(folder, day)).schema.inputs}
    inputs = {name: torch.ones(4, width, dtype=torch.long) for name, width in (("sparse", 2), ("seen", 3))}
    options = with_flags(batch_size=20, sparse_optimizer=optimizer, **flags)
    model = Reads(sizes["sparse"], sizes["seen"])
    return htrain.compile(model, cluster=cluster, example_inputs=inputs, options=options, self_check=False)


def trained(folder: Path) -> Mapping[str, torch.Tensor]:
    """The rows of tables and of their states after the first day, by their names in the model."""
    plan = load_plan(folder / "plan0")
    wholes: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for file in latest_checkpoint(folder / "run0")[0].glob("*.safetensors"):
        for name, values in load_file(file).items():
            parameter = plan.train.parameters.get(name)
            owner = plan.train.parameters.get(parameter.of, parameter) if parameter else None
            if owner and owner.kind == "table" and values.dim():
                parts = wholes.setdefault(owner.whole + name.removeprefix(owner.name), [])
                parts.append((owner.first_row, values))
    return {name: torch.cat([v for _, v in sorted(parts, key=lambda p: p[0])]) for name, parts in wholes.items()}


def begun(
    plan: Plan, folder: Path, run: Path
) -> Iterator[tuple[Any, Parameter, Parameter, torch.Tensor, torch.Tensor]]:
    """What roles hold of a plan that begins with a run: their parts, a parameter, the one that it is a state of or itself, its values, and its first ones."""
    earlier = Earlier(beginning_of(run))
    for role in plan.cluster.roles:
        parts = whole_role(plan, role)
        parts.fill(folder)
        first_values = {name: values.clone() for name, values in parts.store.items()}
        parts.copy_from(earlier)
        for name, values in parts.store.items():
            if parameter := plan.train.parameters.get(name):
                yield parts, parameter, owner_of(plan.train.parameters, parameter), values, first_values[name]


CLUSTERS: dict[str, tuple[Cluster, str, dict[str, Any]]] = {
    "one process": (this_machine(), "adagrad", {}),
    "sparse PSs": (Cluster(groups=1, trainers=2, group_ps=1, sparse_ps=2), "adagrad", {}),
    "another optimizer": (Cluster(groups=1, trainers=1, group_ps=1, sparse_ps=1), "ftrl", {}),
    "het": (
        Cluster(groups=2, trainers=1, group_ps=1, sparse_ps=2),
        "adagrad",
        {"cache": "het", "cache_capacity": "50%", "cache_staleness": 3},
    ),
    "lookahead": (Cluster(groups=1, trainers=1, group_ps=1, sparse_ps=2), "adagrad", {"cache": "lookahead"}),
}


@pytest.mark.parametrize("what", CLUSTERS)
def test_rows_of_known_values_come_bit_for_bit_and_others_begin_anew(what: str, folder: Path, tmp_path: Path) -> None:
    cluster, optimizer, flags = CLUSTERS[what]
    plan = planned(folder, 1, cluster, optimizer, **flags)
    plan.save(tmp_path / "plan")
    before, compared = trained(folder), set()
    for _, parameter, owner, values, first in begun(plan, tmp_path / "plan", folder / "run0"):
        if owner.kind != "table" or not values.dim():
            continue
        known = before.get(owner.whole + parameter.name.removeprefix(owner.name), values[:0])
        here = known[owner.first_row : owner.first_row + len(values)]
        assert torch.equal(values[: len(here)], here), parameter.name
        assert torch.equal(values[len(here) :], first[len(here) :]), parameter.name
        compared.add(owner.whole)
    assert compared == set(plan.tables)
    grown = {t: max(s.first_row + s.num_rows for s in shards) - len(before[t]) for t, shards in plan.tables.items()}
    assert {table: rows for table, rows in grown.items() if rows} == {
        "user.weight": 15, "wide.weight": 15, "seen.weight": 5
    }  # fmt: skip
    run = htrain.run(
        tmp_path / "plan", data=data_of(folder, 1), out=tmp_path / "run", begin_with=folder / "run0", hosting="threads"
    )
    assert run.totals.examples == 400


def test_what_has_come_is_told_and_a_vocabulary_that_was_counted_anew_is_refused(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    planned(folder, 1, this_machine(), "adagrad").save(tmp_path / "plan")
    arguments = {"out": tmp_path / "run", "begin_with": folder / "run0", "hosting": "threads"}
    htrain.run(tmp_path / "plan", data=data_of(folder, 1), **arguments)
    told = capfd.readouterr().err
    assert "have 35 rows more than there, which begin anew" in told
    assert "of its model" not in told
    for name in ("day1.parquet", "day1.yaml"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    htrain.vocabulary(data_of(tmp_path, 1), out=tmp_path / "v1.parquet")
    with pytest.raises(
        DataError, match=r"sparse\.user has another vocabulary .* of that data, or one that --extends it"
    ):
        htrain.run(tmp_path / "plan", data=data_of(tmp_path, 1), **{**arguments, "out": tmp_path / "other"})
    with pytest.raises(DataError, match=r"has rows up to 46, '.*' has .* with --out, which may --begin-with one "):
        htrain.evaluate(folder / "run0", data=data_of(folder, 1))


def test_who_follows_the_versions_of_an_address_gets_rows_that_have_come(folder: Path, tmp_path: Path) -> None:
    planned(folder, 1, Cluster(groups=1, trainers=1, group_ps=1, sparse_ps=2), "adagrad").save(tmp_path / "plan")
    address = str(tmp_path / "versions")
    said: dict[str, Any] = {"hosting": "threads", "publish": address}
    htrain.run(folder / "plan0", data=data_of(folder, 0), out=tmp_path / "a", **said)
    model = htrain.Published(address)
    assert model.refresh()
    assert len(model.parameters["user.weight"]) == USERS[0] + 2
    more = {**said, "data": data_of(folder, 1)}
    with pytest.raises(
        PublishError, match=r"whose 'seen\.weight' is table float32\[22, 4\], here table float32\[27, 4\]"
    ):
        htrain.run(tmp_path / "plan", out=tmp_path / "b", **more)
    htrain.run(tmp_path / "plan", out=tmp_path / "c", begin_with=tmp_path / "a", **more)
    assert model.refresh()
    assert len(model.parameters["user.weight"]) == USERS[1] + 2
    assert model.version is not None
    assert model.version.number == 2
    htrain.run(tmp_path / "plan", resume=tmp_path / "c", epochs=2, **more)
    assert model.refresh()
    assert (model.version.number, model.version.examples) == (3, 800)


def test_a_run_that_began_with_another_may_publish_as_late_as_it_likes(folder: Path, tmp_path: Path) -> None:
    planned(folder, 1, this_machine(), "adagrad").save(tmp_path / "plan")
    address = str(tmp_path / "versions")
    htrain.run(folder / "plan0", data=data_of(folder, 0), out=tmp_path / "a", hosting="threads", publish=address)
    said: dict[str, Any] = {"data": data_of(folder, 1), "hosting": "threads"}
    htrain.run(tmp_path / "plan", out=tmp_path / "b", begin_with=tmp_path / "a", **said)
    htrain.run(tmp_path / "plan", resume=tmp_path / "b", epochs=2, publish=address, **said)
    model = htrain.Published(address)
    assert model.refresh()
    assert len(model.parameters["user.weight"]) == USERS[1] + 2
    planned(folder, 0, this_machine(), "adagrad").save(tmp_path / "less")
    said = {"data": data_of(folder, 0), "out": tmp_path / "c", "hosting": "threads"}
    with pytest.raises(DataError, match=r"sparse\.user has another vocabulary than the data of the run to begin with"):
        htrain.run(tmp_path / "less", begin_with=tmp_path / "b", **said)


class Joint(nn.Module):
    """The columns of `sparse` in one table, that of the second behind that of the first; there is room for more."""

    def __init__(self, first: int, room: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(room, 1)
        self.register_buffer("offsets", torch.tensor([0, first]))

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        return self.rows(sparse + self.offsets).sum((1, 2))


@pytest.mark.parametrize("room", [100, 10])
def test_rows_that_a_model_computes_are_not_taken_for_those_of_other_values(
    room: int, folder: Path, tmp_path: Path
) -> None:
    """The table has as many rows on both days (there is room), or more."""
    inputs = {"sparse": torch.zeros(4, 2, dtype=torch.long)}
    for day, users in enumerate(USERS):
        model = Joint(users + 2, room if room == 100 else users + 2 + 7)
        options = with_flags(batch_size=20)
        htrain.compile(model, cluster=this_machine(), example_inputs=inputs, options=options).save(tmp_path / f"p{day}")
    htrain.run(tmp_path / "p0", data=data_of(folder, 0), out=tmp_path / "a", hosting="threads")
    with pytest.raises(
        DataError, match=r"input 'sparse' has more values than in the data of the run to begin with, and rows of 'rows\.weight' may be"
    ):  # fmt: skip
        htrain.run(
            tmp_path / "p1", data=data_of(folder, 1), out=tmp_path / "b", begin_with=tmp_path / "a", hosting="threads"
        )
    assert not (tmp_path / "b").exists()


def test_rows_that_are_more_though_nobody_says_of_which_values_are_refused(tmp_path: Path) -> None:
    for name, rows in (("a", 50), ("b", 60)):
        (tmp_path / f"{name}.libfm").write_text("".join(f"{k % 2} {k % 50}:1 {k * 7 % 50}:1\n" for k in range(100)))
        data = f"libfm:{tmp_path}/a.libfm?rows={rows}"
        htrain.compile(WIDE_DEEP, data=data, cluster=this_machine(), self_check=False).save(tmp_path / f"plan-{name}")
    htrain.run(tmp_path / "plan-a", data=f"libfm:{tmp_path}/a.libfm?rows=50", out=tmp_path / "run", hosting="threads")
    with pytest.raises(
        CheckpointError,
        match=r"begin with a run of a model of the same size, or, in training, give the new rows to values",
    ):
        htrain.run(
            tmp_path / "plan-b", data=data, begin_with=tmp_path / "run", out=tmp_path / "other", hosting="threads"
        )


def test_a_partition_of_the_grown_data_gives_known_values_what_they_had(folder: Path, tmp_path: Path) -> None:
    """Rows have other numbers there, on both days."""
    plans = []
    for day in (0, 1):
        files = tmp_path / f"{day}.partition", tmp_path / f"{day}.packed"
        old = {"begin_with": tmp_path / "0.partition"} if day else {}
        htrain.partition(data_of(folder, day), out=files[0], num_workers=2, batch_size=20, **old)
        htrain.pack(data_of(folder, day), out=files[1], partition=files[0])
        rounds = {"dense_sync": "allreduce", "sparse_sync": "gmp", "partition": str(files[0])}
        plans.append(planned(folder, day, Cluster(groups=2, trainers=1, group_ps=0), "adagrad", **rounds))
        plans[day].save(tmp_path / f"plan{day}")
    arguments = {"hosting": "threads", "out": tmp_path / "run0"}
    htrain.run(tmp_path / "plan0", data=f"packed:{tmp_path}/0.packed", **arguments)
    htrain.export(tmp_path / "run0", out=tmp_path / "rows", to="tables", format="npy")
    before = {
        path.name.partition(".")[2]: torch.from_numpy(np.load(path / "0.npy"))
        for path in (tmp_path / "rows").iterdir()
        if path.is_dir()
    }
    compared = 0
    for parts, parameter, _, values, first in begun(plans[1], tmp_path / "plan1", tmp_path / "run0"):
        if parameter.kind == "table":
            numbers = torch.from_numpy(parts.cache_half.originals(parameter))
            known = numbers < len(before[parameter.whole])
            assert torch.equal(values[known], before[parameter.whole][numbers[known]]), parameter.name
            assert torch.equal(values[~known], first[~known]), parameter.name
            compared += int((~known).sum())
    assert compared == 15 + 15 + 5
    arguments |= {"out": tmp_path / "run1", "begin_with": tmp_path / "run0"}
    assert htrain.run(tmp_path / "plan1", data=f"packed:{tmp_path}/1.packed", **arguments).totals.examples == 400


def test_data_of_other_columns_is_told_as_before_and_what_is_not_read_may_differ(folder: Path, tmp_path: Path) -> None:
    """By shape, where a model reads them."""
    for name, columns in (("one", "[user]"), ("three", "[user, user, user]")):
        text = SCHEMA.format(day=0).replace("[user, item], rows: [vocabulary, 7]", f"{columns}, rows: vocabulary")
        (folder / f"{name}.yaml").write_text(text)
        data = f"parquet:{folder}/day0.parquet?schema={folder}/{name}.yaml"
        with pytest.raises(DataError, match="wants input 'sparse' as"):
            htrain.run(folder / "plan0", data=data, out=tmp_path / "a", begin_with=folder / "run0", hosting="threads")
    for name, width in (("two", 2), ("three", 3)):
        (folder / f"w{name}.yaml").write_text(
            SCHEMA.format(day=0) + f"  more: {{kind: dense, columns: {['y'] * width}}}\n"
        )
        data = f"parquet:{folder}/day0.parquet?schema={folder}/w{name}.yaml"
        begin = {"begin_with": tmp_path / "two"} if name == "three" else {}
        run = htrain.run(folder / "plan0", data=data, out=tmp_path / name, hosting="threads", **begin)
        assert run.totals.examples == 400


class Catalogue(nn.Module):
    """Which user comes next, of all that there are: their rows are looked up, and read as a whole."""

    def __init__(self, users: int, seen: int) -> None:
        super().__init__()
        self.user, self.seen = nn.Embedding(users, 4), nn.EmbeddingBag(seen, 4, mode="sum")
        self.prior = nn.Parameter(torch.zeros(users))

    def forward(
        self, sparse: torch.Tensor, seen: torch.Tensor, label: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.seen(seen) + self.user(sparse[:, 0])
        scores = state @ self.user.weight.T + self.prior
        return scores[:, 2], nn.functional.cross_entropy(scores, sparse[:, 0]) + 0 * label.sum()


def catalogue_of(folder: Path, day: int, cluster: Cluster) -> Plan:
    sizes = {item.name: item.rows[0] for item in open_data(data_of(folder, day)).schema.inputs}
    example = {name: torch.ones(4, width, dtype=torch.long) for name, width in (("sparse", 2), ("seen", 3))}
    options = with_flags(batch_size=20, dense_optimizer="adam", sparse_optimizer="adagrad", loss="own")
    model = Catalogue(sizes["sparse"], sizes["seen"])
    return htrain.compile(
        model, cluster=cluster, example_inputs={**example, "label": torch.zeros(4)}, options=options, self_check=False
    )


def test_weights_grow_of_which_the_user_says_so(folder: Path, tmp_path: Path) -> None:
    """Nothing shows that the rows of a weight which is read as a whole are those of the same values."""
    catalogue_of(folder, 0, Cluster(groups=2, trainers=1, group_ps=1, sparse_ps=1)).save(tmp_path / "plan0")
    plan = catalogue_of(folder, 1, Cluster(groups=1, trainers=1, group_ps=2, sparse_ps=1))
    plan.save(tmp_path / "plan1")
    htrain.run(tmp_path / "plan0", data=data_of(folder, 0), out=tmp_path / "a", hosting="threads", epochs=3)
    said: dict[str, Any] = {"data": data_of(folder, 1), "out": tmp_path / "b", "hosting": "threads"}
    said["begin_with"] = tmp_path / "a"
    with pytest.raises(DataError, match=r"rows of 'user\.weight' may be .*, or say --grow user\.weight, where its"):
        htrain.run(tmp_path / "plan1", **said)
    with pytest.raises(CheckpointError, match=r"'prior' is of shape \[32\] there, .*; or say --grow prior, whose"):
        htrain.run(tmp_path / "plan1", grow=("user.weight",), **said)
    with pytest.raises(UsageError, match=r"--grow user: the plan has no such table or weight, but .*user\.weight"):
        htrain.run(tmp_path / "plan1", grow=("user",), **said)
    assert not (tmp_path / "b").exists()
    htrain.export(tmp_path / "a", out=tmp_path / "a.safetensors", to="torch")
    before, compared = load_file(tmp_path / "a.safetensors"), set()
    for _, parameter, owner, values, first in begun(plan, tmp_path / "plan1", tmp_path / "a"):
        if owner.whole not in ("user.weight", "prior") or not values.dim():
            continue
        known = max(0, USERS[0] + 2 - owner.first_row)
        assert torch.equal(values[known:], first[known:])
        if parameter is owner:
            wanted = before[owner.whole][owner.first_row : owner.first_row + len(values)]
            assert torch.equal(
                values[:known],
                wanted[:, owner.first_column :][:, : values.shape[1]] if values.dim() > 1 else wanted,
            )
        else:
            assert not known or values[:known].any(), "a state of Adam"
        compared.add(parameter.name)
    assert len(compared) >= 6, compared
    run = htrain.run(tmp_path / "plan1", grow=("user.weight", "prior"), publish=str(tmp_path / "versions"), **said)
    assert run.totals.examples == 400


def test_tables_grow_whose_ids_are_numbers_where_the_user_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = "".join(f"{k % 2} {k % 50}:1 {k * 7 % 50}:1\n" for k in range(100))
    (tmp_path / "a.libfm").write_text(lines)
    (tmp_path / "b.libfm").write_text(lines + "1 55:1 59:1\n")
    data = {name: f"libfm:{tmp_path}/{name}.libfm?rows={rows}" for name, rows in (("a", 50), ("b", 60))}
    for name in data:
        htrain.compile(WIDE_DEEP, data=data[name], cluster=this_machine(), self_check=False).save(
            tmp_path / f"plan-{name}"
        )
    htrain.run(tmp_path / "plan-a", data=data["a"], out=tmp_path / "run", hosting="threads")
    tables = load_plan(tmp_path / "plan-b").tables
    said: dict[str, Any] = {"data": data["b"], "begin_with": tmp_path / "run", "hosting": "threads"}
    with pytest.raises(CheckpointError, match=" ".join(f"--grow {name}" for name in sorted(tables))):
        htrain.run(tmp_path / "plan-b", out=tmp_path / "other", **said)
    htrain.run(tmp_path / "plan-b", out=tmp_path / "other", grow=tuple(tables), **said)
    assert f"{10 * len(tables)} rows more than there" in capfd.readouterr().err
    with pytest.raises(UsageError, match="--grow has no effect without --begin-with"):
        htrain.run(tmp_path / "plan-b", data=data["b"], out=tmp_path / "third", grow=tuple(tables), hosting="threads")
