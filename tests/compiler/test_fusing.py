"""Fusions together: what the options turn on, and that a net computes the same with them."""

from functools import cache

import pytest
import torch
from fused import OFF, PLAIN, SGD, batch, stepped, train_net, types
from interpreter import run_net
from small_wide_deep import BATCH

from htrain.executor.engine.context import Context
from htrain.executor.engine.engine import Engine
from htrain.executor.engine.program import build_program
from htrain.executor.engine.stage_keys import GATE
from htrain.spec.tree import with_flags


@cache
def stepped_without_fusions(model: str, *counts: tuple[str, int]) -> dict[str, torch.Tensor]:
    return stepped(train_net(model, PLAIN, **dict(counts)))


ALONE, DIVIDED = {}, {"group_ps": 2, "sparse_ps": 2}


@pytest.mark.parametrize("model", ["dlrm.py", "wide_deep.py", "deepfm.py", "dcn.py"])
@pytest.mark.parametrize(
    ("fusions", "counts"),
    [
        (["relu"], ALONE),
        (["fields"], ALONE),
        (["fields", "tables"], ALONE),
        (["interaction"], ALONE),
        (["fields", "tables", "interaction", "pairs"], ALONE),
        (["fields", "tables", "interaction", "pairs"], DIVIDED),
        (["steps"], DIVIDED),
    ],
    ids=lambda value: "-".join(value) or "alone",
)
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
