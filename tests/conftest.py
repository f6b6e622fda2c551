"""Goldens, and a small model in the manner of DLRM that many tests compile."""

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest

from htrain.cluster import Cluster
from htrain.compiler import compile_net
from htrain.frontend.captured import Captured
from htrain.net import B, Blob, Init, Net, Parameter
from htrain.ops.builder import NetBuilder
from htrain.options import Options
from htrain.plan import Plan

GOLDENS = Path(__file__).parent / "goldens"
Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite tests/goldens/*.txt; review reads the diff")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with tests/goldens/NAME.txt, or write it there with --update-goldens."""

    def compare(name: str, text: str) -> None:
        path = GOLDENS / f"{name}.txt"
        if request.config.getoption("--update-goldens"):
            path.write_text(text)
        wanted = path.read_text() if path.exists() else ""
        diff = difflib.unified_diff(wanted.splitlines(), text.splitlines(), f"goldens/{path.name}", "now", lineterm="")
        changed = "\n".join(diff)
        assert not changed, f"{changed}\n(if this is meant: pytest --update-goldens)"

    return compare


def small_dlrm() -> Net:
    """dense[B,3], user[B], history[B,3] padded with 0, last[B] -> logit[B]; `item` is looked up twice."""
    builder = NetBuilder("small_dlrm")
    builder.input(Blob("dense", (B, 3), "float32"))
    for name, shape in (("user", (B,)), ("history", (B, 3)), ("last", (B,))):
        builder.input(Blob(name, shape, "int64"))
    uniform, zero = Init("uniform", (-0.5, 0.5)), Init("constant", (0.0,))
    for table, rows, init in (("user.weight", 40, uniform), ("item.weight", 50, Init("normal", (0.0, 0.3), (0,)))):
        builder.parameter(Parameter(table, (rows, 4), "float32", "table", init))
    for layer, n, k in (("bottom", 4, 3), ("hidden", 3, 13), ("top", 1, 3)):
        builder.parameter(Parameter(f"{layer}.weight", (n, k), "float32", "weight", uniform))
        builder.parameter(Parameter(f"{layer}.bias", (n,), "float32", "weight", zero))
    bag = {"mode": "mean", "padding_idx": 0, "weighted": False}
    builder.add("FC", ("dense", "bottom.weight", "bottom.bias"), module="bottom", outputs=("bottom_fc",))
    builder.add("Relu", ("bottom_fc",), outputs=("x",))
    builder.add("Embedding", ("user.weight", "user"), attrs={"padding_idx": -1}, module="user", outputs=("u",))
    builder.add("EmbeddingBag", ("item.weight", "history"), attrs=bag, module="item", outputs=("h",))
    builder.add("Embedding", ("item.weight", "last"), attrs={"padding_idx": -1}, module="item", outputs=("l",))
    builder.add("Stack", ("x", "u", "h"), attrs={"axis": 1}, module="dots", outputs=("features",))
    builder.add("Transpose", ("features",), attrs={"perm": (0, 2, 1)}, module="dots", outputs=("across",))
    builder.add("MatMul", ("features", "across"), module="dots", outputs=("products",))
    builder.add("Reshape", ("products",), attrs={"shape": (-1, 9)}, module="dots", outputs=("dots",))
    builder.add("Concat", ("l", "dots"), attrs={"axis": 1}, outputs=("joined",))
    builder.add("FC", ("joined", "hidden.weight", "hidden.bias"), module="hidden", outputs=("hidden_fc",))
    builder.add("Sigmoid", ("hidden_fc",), outputs=("hidden",))
    builder.add("FC", ("hidden", "top.weight", "top.bias"), module="top", outputs=("top_fc",))
    builder.add("Reshape", ("top_fc",), attrs={"shape": (-1,)}, outputs=("logit",))
    return builder.build(("logit",))


@pytest.fixture(scope="session")
def dlrm() -> Net:
    """The small model's forward net."""
    return small_dlrm()


@pytest.fixture(scope="session")
def plan() -> Plan:
    """The small model on 2 groups of a trainer and 2 group PSs, 2 sparse PSs and a dense PS; `item.weight` in 2 shards."""
    cluster = Cluster(groups=2, group_ps=2, sparse_ps=2, dense_ps=1)
    return compile_net(
        Captured(small_dlrm(), {}), cluster, Options(batch_size=8), name="small_dlrm", table_splits={"item.weight": 2}
    )
