"""Lookups as they run: tables shared by readers with paddings of their own, whole or in shards."""

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import draw_parameters, run_net
from small_dlrm import small_batch, small_dlrm
from torch.nn import functional as F

from htrain.errors import DataError, ModelError
from htrain.net.net import B, Blob, Init, Net, Parameter
from htrain.net.placement import Shard
from htrain.ops.base import constant_of
from htrain.ops.builder import NetBuilder
from htrain.spec.tree import with_flags
from htrain.transform.gradient import add_gradients
from htrain.transform.lookups import lower_lookups
from htrain.transform.loss import add_loss
from htrain.transform.optimizer import add_optimizers
from htrain.transform.shard_lookups import shard_lookups

ROWS = 12
SEEDS = st.integers(0, 1 << 30)
quick = settings(max_examples=30, deadline=None, derandomize=True)


def reading_net(paddings: list[int], kinds: list[str]) -> Net:
    """One table, read through ids0[B,3], ids1[B,3], ... as a sequence, a sum or a mean."""
    builder = NetBuilder("reads")
    builder.parameter(Parameter("t", (ROWS, 2), "float32", "table", Init("constant", (0.0,))))
    for i, (padding, kind) in enumerate(zip(paddings, kinds, strict=True)):
        ids = builder.input(Blob(f"ids{i}", (B, 3), "int64"))
        attrs = (
            {"padding_idx": padding} if kind == "rows" else {"mode": kind, "padding_idx": padding, "weighted": False}
        )
        builder.add("Embedding" if kind == "rows" else "EmbeddingBag", ("t", ids), attrs=attrs, outputs=(f"y{i}",))
    return builder.build([f"y{i}" for i in range(len(paddings))])


def by_torch(table: torch.Tensor, ids: torch.Tensor, padding: int, kind: str) -> torch.Tensor:
    skip = padding if padding >= 0 else None
    if kind == "rows":
        taken = F.embedding(ids, table)
        return taken if skip is None else taken * (ids != skip).unsqueeze(-1)
    return F.embedding_bag(ids, table, mode=kind, padding_idx=skip)


reads = st.lists(
    st.tuples(st.sampled_from([-1, 0, 5]), st.sampled_from(["rows", "sum", "mean"])), min_size=1, max_size=4
)


@quick
@given(reads=reads, seed=SEEDS)
def test_all_reads_of_a_table_share_one_lookup_and_agree_with_torch(reads: list[tuple[int, str]], seed: int) -> None:
    paddings, kinds = [p for p, _ in reads], [k for _, k in reads]
    net = lower_lookups(reading_net(paddings, kinds))
    assert [op.type for op in net.ops].count("Lookup") == [op.type for op in net.ops].count("Dedupe") == 1

    parameters = draw_parameters(net, seed)
    generator = torch.Generator().manual_seed(seed)
    inputs = {name: torch.randint(ROWS, (4, 3), generator=generator) for name in net.inputs}
    values = run_net(net, parameters, inputs)
    for i, (padding, kind) in enumerate(reads):
        expected = by_torch(parameters["t"], inputs[f"ids{i}"], padding, kind)
        torch.testing.assert_close(values[f"y{i}"], expected)


def test_ops_that_lead_to_ids_come_before_every_parameter() -> None:
    builder = NetBuilder("late")
    builder.input(Blob("x", (B, 2), "float32"))
    builder.input(Blob("ids", (B,), "int64"))
    builder.parameter(Parameter("w", (2, 2), "float32", "weight", Init("constant", (0.0,))))
    builder.parameter(Parameter("t", (ROWS, 2), "float32", "table", Init("constant", (0.0,))))
    builder.add("FC", ("x", "w"), module="fc", outputs=("h",))
    builder.add("Constant", (), attrs={"value": constant_of(torch.tensor(1))}, outputs=("one",))
    builder.add("Add", ("ids", "one"), outputs=("shifted",))
    builder.add("Embedding", ("t", "shifted"), attrs={"padding_idx": -1}, module="t", outputs=("y",))
    net = lower_lookups(builder.build(("y",)))
    assert [op.type for op in net.ops] == ["Constant", "Add", "FC", "Dedupe", "Lookup", "TakeRows"]


def trained(optimizer: str) -> Net:
    net, gradients = add_gradients(add_loss(lower_lookups(small_dlrm()), "bce"))
    return add_optimizers(net, gradients, with_flags(sparse_optimizer=optimizer))  # type: ignore[arg-type]


def random_shards(table: str, rows: int, draw: random.Random) -> tuple[Shard, ...]:
    bounds = [0, *sorted(draw.sample(range(1, rows), draw.randrange(4))), rows]
    return tuple(Shard(table, a, b - a, "") for a, b in pairwise(bounds))


@quick
@given(optimizer=st.sampled_from(["sgd", "adagrad", "rowwise_adagrad"]), seed=SEEDS)
def test_a_table_in_shards_trains_as_the_whole_table(optimizer: str, seed: int) -> None:
    net, draw, inputs = trained(optimizer), random.Random(seed), small_batch(seed, 8)
    tables = {n: p.shape[0] for n, p in net.parameters.items() if p.kind == "table"}
    cut = shard_lookups(net, {table: random_shards(table, rows, draw) for table, rows in tables.items()})
    whole = draw_parameters(net, seed)
    pieces = {name: rows_of(cut.parameters[name], whole).clone() for name in cut.parameters}
    expected, seen = run_net(net, whole, inputs), run_net(cut, pieces, inputs)
    assert torch.equal(seen["loss"], expected["loss"])
    for name, piece in pieces.items():
        assert torch.equal(piece, rows_of(cut.parameters[name], whole)), name


def rows_of(parameter: Parameter, whole: dict[str, torch.Tensor]) -> torch.Tensor:
    """The rows of the whole table (or of its state) that a shard holds."""
    base, _, rest = parameter.name.partition("/")
    name = base + rest.lstrip("0123456789")
    return whole[name][parameter.first_row : parameter.first_row + parameter.shape[0]]


def test_an_id_outside_the_table_is_named() -> None:
    net = lower_lookups(reading_net([-1], ["rows"]))
    inputs = {"ids0": torch.tensor([[1, 2, 3], [4, 12, 5]])}
    with pytest.raises(DataError, match=r"^id 12 at position 4 is outside the table's rows \[0, 12\)$"):
        run_net(net, draw_parameters(net, 0), inputs)


def test_ids_that_depend_on_rows_of_their_own_table_are_refused() -> None:
    builder = NetBuilder("reads")
    builder.parameter(Parameter("t", (ROWS, 2), "float32", "table", Init("constant", (0.0,))))
    other = builder.input(Blob("other", (B, 3), "int64"))
    first = builder.input(Blob("first", (B, 3), "int64"))
    attrs = {"padding_idx": -1}
    (rows,) = builder.add("Embedding", ("t", first), attrs=attrs)
    (second,) = builder.add("ArgMax", (rows,), attrs={"axis": 2, "keepdims": False}, outputs=("second",))
    for ids in (second, other):
        builder.add("Embedding", ("t", ids), attrs=attrs)
    with pytest.raises(
        ModelError, match=r"table 't' is looked up by ids that depend on its own rows, those of ArgMax 'second'"
    ):
        lower_lookups(builder.build(()))


def test_ids_that_are_made_behind_rows_of_their_table_and_not_of_them_are_there_first() -> None:
    builder = NetBuilder("reads")
    for table in "tu":
        builder.parameter(Parameter(table, (ROWS, 2), "float32", "table", Init("constant", (0.0,))))
    first, label = builder.input(Blob("first", (B, 3), "int64")), builder.input(Blob("label", (B,), "float32"))
    attrs = {"padding_idx": -1}
    (rows,) = builder.add("Embedding", ("t", first), attrs=attrs)
    (of_rows,) = builder.add("ArgMax", (rows,), attrs={"axis": 2, "keepdims": False})
    (others,) = builder.add("Embedding", ("u", of_rows), attrs=attrs)
    (later,) = builder.add("Mul", (first, first))
    (again,) = builder.add("Embedding", ("t", later), attrs=attrs, outputs=("again",))
    net = lower_lookups(builder.build((others, again)))
    parameters = draw_parameters(net, 0)
    values = run_net(net, parameters, {"first": torch.tensor([[0, 1, 2], [3, 1, 0]]), label: torch.zeros(2)})
    assert torch.equal(values["again"], parameters["t"][torch.tensor([[0, 1, 4], [9, 1, 0]])])
    assert torch.equal(values[others], parameters["u"][parameters["t"][values["first"]].argmax(2)])
