"""A graph whose nodes are to be told apart, and GraphSAGE that learns to."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from node_classes import ClassedGraph, written
from whole_runs import ROOT

import htrain
from htrain.data import START, Malformed, click_schema, open_data
from htrain.errors import ModelError, UsageError
from htrain.frontend.load import load_model
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

MODEL = str(ROOT / "models" / "graphsage.py:build_classes")
SIZES = {"nodes": 400, "fanout": 3, "alike": 0.8, "seed": 0}


def test_examples_are_a_node_its_neighbours_and_theirs() -> None:
    graph = ClassedGraph(400, alike=0.8, seed=0)
    ids = graph.examples("train", 2000, 3, np.random.default_rng(0))
    assert ids.shape == (2000, 1 + 3 + 9)
    for row in ids[:200]:
        assert set(row[1:4]) <= set(graph.neighbours[row[0]])
        for k in range(3):
            assert set(row[4 + 3 * k : 7 + 3 * k]) <= set(graph.neighbours[row[1 + k]])
    alike = (ids[:, 1:4] % 2 == ids[:, :1] % 2).mean()
    assert 0.77 < alike < 0.83
    assert not set(ids[:, 0]) & set(graph.parts["test"])
    assert set(ids[:360, 0]) == set(graph.parts["train"])  # each once, before one comes again


def test_popular_nodes_are_neighbours_more_often() -> None:
    counts = np.bincount(ClassedGraph(10_000, alike=0.5, seed=1).neighbours.reshape(-1), minlength=10_000)
    assert counts[:1000].sum() > 0.5 * counts.sum()


def test_labels_are_the_classes(tmp_path: Path) -> None:
    data = open_data(written(tmp_path, "train", examples=300, **SIZES))
    assert data.schema.input("sparse").rows[0] == 400
    batch = next(data.batches(batch_size=300, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()))
    assert (batch.columns["label"].reshape(-1) == batch.columns["sparse"][:, 0] % 2).all()


def test_graphsage_tells_nodes_apart_that_it_was_not_trained_on(tmp_path: Path) -> None:
    train = written(tmp_path, "train", examples=6000, **SIZES)
    test = written(tmp_path, "test", examples=600, **SIZES)
    options = with_flags(
        batch_size=64, net_replicas=1, sparse_optimizer="adagrad", dense_optimizer="adam", sparse_lr=0.1
    )
    plan = htrain.compile(MODEL, data=train, cluster=this_machine(trainers=1, group_ps=0, sparse_ps=1), options=options)
    plan.save(tmp_path / "plan")
    htrain.run(tmp_path / "plan", data=train, out=tmp_path / "run", hosting="threads", deterministic=True)
    assert htrain.evaluate(tmp_path / "run", data=test).auc > 0.8


def test_a_width_that_is_no_node_with_neighbours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.libfm").write_text("1 0:1 1:1 2:1 3:1\n")
    with pytest.raises(ModelError, match="4 ids an example: want a node, F neighbours and F of each"):
        load_model(MODEL, open_data(f"libfm:{tmp_path}/a.libfm?rows=9").schema)


def test_a_graph_of_a_few_nodes_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="want 20 at least"):
        written(tmp_path, "train", nodes=3, examples=5, fanout=2, alike=0.5, seed=0)
    command = [sys.executable, str(ROOT / "tools" / "node_classes.py"), str(tmp_path / "out"), "--nodes", "3"]
    failed = subprocess.run(command, capture_output=True, text=True)
    assert (failed.returncode, failed.stderr.count("\n")) == (UsageError.exit_status, 1)


def test_the_model_is_what_it_is_in_torch() -> None:
    """A node's logit does not depend on other examples, nor on the order of its neighbours."""
    module = load_model(MODEL, click_schema(0, (50,) * 13, tables=("ids",) * 13)).module.to_empty(device="cpu")
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(0, 50, (6, 13))
    turned = torch.cat([ids[:, :1], ids[:, [2, 3, 1]], ids[:, [7, 8, 9, 10, 11, 12, 4, 5, 6]]], dim=1)
    torch.testing.assert_close(module(sparse=turned), module(sparse=ids))
    torch.testing.assert_close(module(sparse=ids[:2]), module(sparse=ids)[:2])
