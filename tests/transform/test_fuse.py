"""Fusions: what they match, what they leave alone, and that the net computes the same."""

from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
import torch
from interpreter import run_net
from small_wide_deep import BATCH, model_of

from htrain.compiler.pipeline import compile_net
from htrain.executor.engine.context import Context
from htrain.executor.engine.engine import Engine
from htrain.executor.engine.program import build_program
from htrain.executor.engine.stage_keys import GATE
from htrain.net.net import B, Blob, Init, Net, Parameter
from htrain.ops.base import constant_of
from htrain.ops.builder import NetBuilder
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.transform.fusions.interaction import fuse_interaction
from htrain.transform.fusions.relu import fuse_relu
from htrain.transform.fusions.steps import fuse_steps

OFF = with_flags(
    batch_size=BATCH,
    fuse_relu=False,
    fuse_fields=False,
    fuse_tables=False,
    fuse_interaction=False,
    fuse_pairs=False,
    fuse_steps=False,
    fast_products=False,
)
PLAIN = with_flags(OFF, dense_optimizer="sgd", sparse_optimizer="sgd", sparse_lr=0.5, dense_lr=0.5)
SGD = with_flags(batch_size=BATCH, dense_optimizer="sgd", sparse_optimizer="sgd")


def train_net(model: str, options: Options, **counts: int) -> Net:
    _, captured = model_of(model)
    cluster = this_machine(**{"trainers": 1, "group_ps": 0, "sparse_ps": 0, **counts})
    return compile_net(captured, cluster, options, name="m").nets["train"]


def types(net: Net) -> Counter[str]:
    return Counter(op.type for op in net.ops)


def batch(net: Net) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = {n: [d if isinstance(d, int) else d.at(BATCH) for d in net.blobs[n].shape] for n in net.inputs}
    return {
        name: torch.randint(0, 40, size, generator=generator) if net.blobs[name].dtype == "int64"
        else torch.rand(size, generator=generator).round() if name == "label"
        else torch.randn(size, generator=generator)
        for name, size in sizes.items()
    }  # fmt: skip


def stepped(net: Net) -> dict[str, torch.Tensor]:
    """Every parameter after a step, and the loss."""
    generator = torch.Generator().manual_seed(0)
    parameters = {
        n: torch.randn(p.shape, generator=generator) * 0.1
        for n, p in sorted(net.parameters.items())
        if p.kind != "state"
    }
    parameters |= {n: torch.zeros(p.shape) for n, p in net.parameters.items() if p.kind == "state"}
    values = run_net(net, parameters, batch(net))
    return {**parameters, "loss": values[net.outputs[0]]}


@cache
def stepped_without_fusions(model: str, *counts: tuple[str, int]) -> dict[str, torch.Tensor]:
    return stepped(train_net(model, PLAIN, **dict(counts)))


@pytest.mark.parametrize("model", ["dlrm.py", "wide_deep.py", "deepfm.py", "dcn.py"])
@pytest.mark.parametrize(
    "fusions",
    [
        ["relu"],
        ["fields"],
        ["fields", "tables"],
        ["interaction"],
        ["fields", "tables", "interaction", "pairs"],
        ["steps"],
    ],
    ids="-".join,
)
@pytest.mark.parametrize("counts", [{}, {"group_ps": 2, "sparse_ps": 2}])
def test_a_step_of_the_fused_net_is_that_of_the_net(fusions: list[str], model: str, counts: dict[str, int]) -> None:
    fused = train_net(
        model, with_flags(PLAIN, fast_products=True, **{f"fuse_{name}": True for name in fusions}), **counts
    )
    wanted, seen = stepped_without_fusions(model, *counts.items()), stepped(fused)
    assert seen.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(seen[name], value, rtol=1e-5, atol=1e-6)


def test_dlrm_runs_on_fused_ops_alone() -> None:
    found = types(train_net("dlrm.py", SGD))
    assert found["FCRelu"] == 6
    assert (found["FastFC"], found["FC"]) == (1, 0)
    assert (found["PairwiseDots"], found["PairwiseDotsSgd"], found["StackTables"]) == (1, 1, 1)
    assert (found["FCSgd"], found["FCInputGradient"]) == (7, 6)
    slow = {
        "Relu",
        "MatMul",
        "Transpose",
        "Gather",
        "FCGradient",
        "Sgd",
        "Lookup",
        "Dedupe",
        "TakeRows",
        "Stack",
        "Unstack",
        "SparseSgd",
    }
    slow |= {"PairwiseDotsGradient", "StepTables", "Concat", "Split", "Sum"}
    assert not slow & found.keys()


def test_without_the_options_nothing_is_fused() -> None:
    found = types(train_net("dlrm.py", with_flags(OFF, dense_optimizer="sgd", sparse_optimizer="sgd")))
    fused = {
        "FCRelu",
        "PairwiseDots",
        "PairwiseDotsSgd",
        "FCSgd",
        "FCInputGradient",
        "FastFC",
        "FastFCGradient",
        "StackRows",
        "StackTables",
        "StepTables",
    }
    assert not fused & found.keys()


@pytest.mark.parametrize("sparse_optimizer", ["adagrad", "rowwise_adagrad"])
def test_tables_whose_step_needs_the_sum_of_an_ids_gradients_are_looked_up_id_by_distinct_id(
    sparse_optimizer: str,
) -> None:
    found = types(train_net("dlrm.py", with_flags(SGD, sparse_optimizer=sparse_optimizer)))  # type: ignore[arg-type]
    assert (found["StackRows"], found["StackRowsGradient"], found["Lookup"]) == (1, 1, 26)
    assert not {"StackTables", "StepTables"} & found.keys()


def test_tables_elsewhere_or_behind_a_cache_are_stacked_from_rows() -> None:
    for options, counts in ((SGD, {"sparse_ps": 2}), (with_flags(SGD, cache="lookahead"), {})):
        found = types(train_net("dlrm.py", options, **counts))
        assert (found["StackRows"], found["StackTables"]) == (1, 0)


def test_gradients_that_somebody_else_takes_stay() -> None:
    """Other optimizers, and AllReduce."""
    for options in (with_flags(SGD, dense_optimizer="adagrad"), with_flags(SGD, dense_sync="allreduce")):
        found = types(train_net("dlrm.py", options))
        assert (found["FastFCGradient"], found["FCGradient"]) == (7, 0)
        assert not found["FCSgd"]


def test_a_weight_is_stepped_behind_its_last_reader() -> None:
    """One that a backward op reads after the weight's own gradient is made, as of a layer whose weight is used once more, detached."""

    def net_with(reads_later: bool) -> Net:
        builder = NetBuilder("n")
        for blob in (Blob("x", (B, 6), "float32"), Blob("dy", (B, 5), "float32")):
            builder.input(blob)
        builder.parameter(Parameter("w", (5, 6), "float32", "weight", Init("constant", (0.5,))))
        dw, dx = builder.add("FCGradient", ("x", "w", "dy"), attrs={"bias": False, "wants_x": True})
        other = builder.add("FCInputGradient", ("w", "dy")) if reads_later else ()
        builder.add("Sgd", ("w", dw), attrs={"lr": 0.1})
        return builder.build([dx, *other])

    assert [op.type for op in fuse_steps(net_with(reads_later=False)).ops] == ["FCInputGradient", "FCSgd"]
    assert [op.type for op in fuse_steps(net_with(reads_later=True)).ops] == [
        "FCInputGradient",
        "FCInputGradient",
        "FCSgd",
    ]


def built(make: Callable[[NetBuilder], str]) -> Net:
    builder = NetBuilder("n")
    builder.input(Blob("x", (B, 6), "float32"))
    builder.input(Blob("f", (B, 3, 4), "float32"))
    builder.parameter(Parameter("w", (6, 6), "float32", "weight", Init("constant", (0.0,))))
    return builder.build([make(builder)])


def test_a_relu_of_what_others_read_stays() -> None:
    def twice(builder: NetBuilder) -> str:
        (h,) = builder.add("FC", ("x", "w"))
        return builder.add("Add", (h, builder.add("Relu", (h,))[0]))[0]

    def of_a_sum(builder: NetBuilder) -> str:
        return builder.add("Relu", builder.add("Add", (*builder.add("FC", ("x", "w")), "x")))[0]

    for make in (twice, of_a_sum):
        net = built(make)
        assert fuse_relu(net).ops == net.ops


def paired(*, other: str = "f", positions: tuple[int, ...] = (1, 2, 5), twice: bool = False) -> Net:
    def make(builder: NetBuilder) -> str:
        if other != "f":
            builder.input(Blob(other, (B, 3, 4), "float32"))
        (turned,) = builder.add("Transpose", (other,), attrs={"perm": (0, 2, 1)})
        (product,) = builder.add("MatMul", ("f", turned))
        (flat,) = builder.add("Reshape", (product,), attrs={"shape": (-1, 9)})
        (at,) = builder.add("Constant", (), attrs={"value": constant_of(torch.tensor(positions))})
        (found,) = builder.add("Gather", (flat, at), attrs={"axis": 1})
        return builder.add("Concat", (flat, found), attrs={"axis": 1})[0] if twice else found

    return built(make)


def test_products_of_pairs_are_found() -> None:
    net = fuse_interaction(paired())
    assert types(net) == {"Constant": 1, "PairwiseDots": 1}
    f = torch.randn(5, 3, 4)
    seen = run_net(net, {}, {"f": f, "x": torch.zeros(5, 6)})[net.outputs[0]]
    torch.testing.assert_close(seen, torch.stack([(f[:, i] * f[:, j]).sum(1) for i, j in ((0, 1), (0, 2), (1, 2))], 1))


def beside(first: str, *, twice: bool = False) -> Net:
    """Products of pairs of stacked rows, behind a value."""
    builder = NetBuilder("n")
    for name in ("x", "other"):
        builder.input(Blob(name, (B, 4), "float32"))
    builder.input(Blob("rows", (7, 4), "float32"))
    builder.input(Blob("places", (B,), "int64"))
    (f,) = builder.add("StackRows", ("x", "rows", "places"), attrs={"dense": 1})
    (at,) = builder.add("Constant", (), attrs={"value": constant_of(torch.tensor((1, 3)))})
    (dots,) = builder.add("PairwiseDots", (f, at), attrs={"kept": 0})
    (y,) = builder.add("Concat", (first, dots), attrs={"axis": 1})
    return builder.build([y, dots] if twice else [y])


def test_products_behind_the_first_feature_are_made_there() -> None:
    net, fused = beside("x"), fuse_interaction(beside("x"))
    assert types(fused) == {"StackRows": 1, "Constant": 1, "PairwiseDots": 1}
    values = {
        "x": torch.randn(5, 4),
        "other": torch.randn(5, 4),
        "rows": torch.randn(7, 4),
        "places": torch.tensor([0, 6, 2, -1, 2]),
    }
    torch.testing.assert_close(run_net(fused, {}, values)[fused.outputs[0]], run_net(net, {}, values)[net.outputs[0]])


@pytest.mark.parametrize("net", [beside("other"), beside("x", twice=True)], ids=["another value", "read by others"])
def test_products_behind_something_else_are_concatenated(net: Net) -> None:
    assert fuse_interaction(net).ops == net.ops


@pytest.mark.parametrize(
    "net",
    [paired(other="g"), paired(twice=True), paired(positions=(-1, 2))],
    ids=["of two", "all are read", "from behind"],
)
def test_other_products_stay(net: Net) -> None:
    assert fuse_interaction(net).ops == net.ops


def test_kernels_that_know_their_tables_and_pairs_beforehand_step_as_those_that_do_not() -> None:
    """The executor binds parameters and constants; a net that is run op by op does not. Two steps, so that nothing is remembered wrongly."""
    net = train_net("dlrm.py", SGD)
    assert {"StackTables", "PairwiseDotsSgd"} <= types(net).keys()
    generator = torch.Generator().manual_seed(0)
    drawn = {n: torch.randn(p.shape, generator=generator) * 0.1 for n, p in sorted(net.parameters.items())}
    wanted, seen = ({name: value.clone() for name, value in drawn.items()} for _ in range(2))
    engine = Engine(build_program(net, seen))
    for step in range(2):
        run_net(net, wanted, batch(net))
        state = engine.begin(Context(0, 0, 0, step), "", BATCH, batch(net))
        ready = engine.start(state) + engine.grant(state, GATE)
        while ready:
            ready += engine.run(state, ready.pop(0), lambda peer, names, tensors: None)
        assert engine.done(state)
    for name, value in wanted.items():
        torch.testing.assert_close(seen[name], value, rtol=0, atol=0)
    assert not torch.equal(seen["embeddings.tables.C1.weight"], drawn["embeddings.tables.C1.weight"])


def test_a_program_of_the_fused_net_is_built_without_parameters_for_a_simulation() -> None:
    net = train_net("dlrm.py", SGD)
    program = build_program(net, dict.fromkeys(net.parameters))
    assert sum(len(stage.ops) for stage in program.stages) == len(net.ops)
