"""A worker in a process that was forked: as by os.fork(), or in the workers of a DataLoader."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from serving import TOKEN, Kind, Serve

FORKS = """
import gc, os, sys
import torch
import htrain.client
from htrain.errors import Error

tables = htrain.client.connect(sys.argv[1], token=sys.argv[2], deadline_seconds=600)
tables.warm()
embedding, bag = htrain.client.HetEmbedding(tables, "a"), htrain.client.HetEmbeddingBag(tables, "a")
ids = torch.tensor([[1, 2]])
embedding(ids).sum().backward()
tables.step()
calls = {
    "lookup": lambda: embedding(ids),
    "bag": lambda: bag(ids),
    "evaluation": lambda: embedding.eval()(ids),
    "module": lambda: htrain.client.HetEmbedding(tables, "a"),
    "read": lambda: tables.read("a", ids),
    "look": lambda: tables.look("a", ids),
    "announce": lambda: tables.announce({"a": ids}),
    "step": tables.step,
    "skip": tables.skip,
    "step_after": lambda: tables.step_after(torch.optim.SGD([torch.zeros(1)], 1.0)),
    "flush": tables.flush,
    "warm": tables.warm,
    "rejoin": tables.rejoin,
    "place_of": lambda: tables.place_of("a"),
    "enter": tables.__enter__,
}

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, number):
        return embedding(ids)

def child():
    for name, call in calls.items():
        try:
            print(name, "went on", call())
        except Error as error:
            print(name, type(error).__name__, error)
    tables.close()
    tables.__exit__(ValueError, ValueError(), None)
    with htrain.client.connect(sys.argv[1], token=sys.argv[2], worker="of the child") as own:
        htrain.client.HetEmbedding(own, "a")(ids).sum().backward()
        own.step()
    print("own", own.steps)

print("process", os.getpid(), flush=True)
first = os.fork()
if not first:
    child()
    own = tables = embedding = bag = calls = None
    gc.collect()
    print("collected all", flush=True)
    sys.exit(7)
print("child", first, os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))
try:
    list(torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context="fork"))
except Error as error:
    print("loader", type(error).__name__, str(error).strip().splitlines()[-1])
embedding.train()(ids).sum().backward()
tables.step()
tables.close()
print("parent", tables.steps)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_in_a_process_that_was_forked_every_call_says_so_and_nothing_hangs(tmp_path: Path) -> None:
    """With a deadline of ten minutes, which a call that waited would take. The parent goes on, and its child joins by itself."""
    script = tmp_path / "forks.py"
    script.write_text(FORKS)
    with Serve({"a": np.zeros((50, 4), np.float32)}, Kind(100, lr=1.0)) as servers:
        words = [sys.executable, str(script), f"127.0.0.1:{servers.ports[0]}", TOKEN]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    process, (child, status) = said.pop("process"), said.pop("child").split()
    assert status == "7"
    assert said.pop("own") == "1"
    assert said.pop("parent") == "2"
    assert "collected" in done.stdout
    assert said.pop("loader").startswith(
        f"UsageError htrain.errors.UsageError: these tables belong to process {process}"
    )
    calls = {name: text for name, text in said.items() if name != "collected"}
    assert len(calls) == 15
    wanted = f"UsageError these tables belong to process {process}: connect() in this one, {child}"
    assert calls == dict.fromkeys(calls, wanted)
    np.testing.assert_allclose(servers.table("a")[:4, 0], [0, -3, -3, 0])
