"""A newcomer's path, by commands alone: a million rows of Parquet, a deep interest network, validation with early stop, and ONNX Runtime.

Rows have strings, lists, missing values and times; what is drawn has something to learn: users of a kind click what their kind likes, more in the evening.
"""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
from forked import shared_commands

import htrain

FILES, ROWS, ITEMS, USERS, KINDS = 4, 250_000, 300, 30_000, 6
SCHEMA = """
label: click
inputs:
  price: {kind: dense, columns: [price], transform: log1p, missing: 20, indicator: true}
  ids: {kind: ids, columns: [user, city, item], rows: [20000, 64, 8192]}
  when: {kind: time, column: at, parts: [hour, weekday]}
  seen: {kind: padded, column: seen, length: 5, rows: 8192}
"""
MODEL = """
import torch
from torch import nn


class Interest(nn.Module):
    def __init__(self, schema, dim=8):
        super().__init__()
        user, city, item = schema.input("ids").rows
        hour, weekday = schema.input("when").rows
        self.user, self.city, self.item = nn.Embedding(user, dim), nn.Embedding(city, dim), nn.Embedding(item, dim)
        self.hour, self.weekday = nn.Embedding(hour, dim), nn.Embedding(weekday, dim)
        self.score = nn.Sequential(nn.Linear(4 * dim, 16), nn.ReLU(), nn.Linear(16, 1))
        self.top = nn.Sequential(nn.Linear(6 * dim + 2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def forward(self, price, ids, when, seen, seen_length):
        shown, history = self.item(ids[:, 2]), self.item(seen)
        query = shown[:, None].expand_as(history)
        scores = self.score(torch.cat([query, history, query - history, query * history], -1)).squeeze(-1)
        mask = torch.arange(seen.size(1))[None] < seen_length[:, None]
        weights = torch.softmax(scores.masked_fill(~mask, -1e9), 1)
        interest = (weights[..., None] * history).sum(1)
        context = [self.user(ids[:, 0]), self.city(ids[:, 1]), self.hour(when[:, 0]), self.weekday(when[:, 1])]
        return self.top(torch.cat([price, *context, shown, interest], 1))


def build(schema):
    return Interest(schema)
"""


def visits(count: int, seed: int) -> pa.Table:
    draw = np.random.default_rng(seed)
    taste = np.random.default_rng(7).normal(size=(KINDS, ITEMS))
    liked = np.argsort(-taste, axis=1)[:, :40]
    user = draw.integers(0, USERS, count)
    kind, item = user % KINDS, draw.integers(0, ITEMS, count)
    names = np.array([f"item-{k}" for k in range(ITEMS)])
    lengths = draw.integers(0, 7, count)
    owners = np.repeat(np.arange(count), lengths)
    seen = names[liked[kind[owners], draw.integers(0, 40, owners.size)]]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(starts, mask=np.append(lengths == 6, False)), pa.array(seen))
    seconds = draw.integers(1_790_000_000, 1_792_000_000, count)
    price = draw.exponential(20, count)
    evening = (seconds // 3600 % 24 >= 18).astype(float)
    chance = 1 / (1 + np.exp(-(1.5 * taste[kind, item] + evening - 1 - 0.01 * price)))
    return pa.table({
        "click": (draw.random(count) < chance).astype(np.int8),
        "user": pa.array([f"user-{k}" for k in user]),
        "city": pa.array(draw.choice(["Oslo", "Łódź", "Lima", ""], count), mask=draw.random(count) < 0.1),
        "item": pa.array(names[item]),
        "price": pa.array(price, mask=draw.random(count) < 0.1),
        "at": pa.array(seconds * 1000, pa.timestamp("ms"), mask=draw.random(count) < 0.01),
        "seen": lists,
    })  # fmt: skip


def command(folder: Path, *words: str) -> dict:
    run = shared_commands().run([*words, "--json"], folder, timeout=280)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_a_million_rows_become_a_served_model_by_the_commands_of_the_docs(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "log").mkdir()
    for day in range(FILES):
        pq.write_table(visits(ROWS, day), tmp_path / "log" / f"day-{day}.parquet")
    data = "parquet:log/day-*.parquet?schema=schema.yaml&test=0.05"
    one = ("--groups", "1", "--trainers", "1", "--group-ps", "0", "--sparse-ps", "0", "--dense-ps", "0")
    rates = ("--batch-size", "1024", "--dense-optimizer", "adam", "--dense-lr", "0.002", "--sparse-lr", "0.1")
    command(tmp_path, "compile", "model.py", "--data", data, *one, *rates, "--out", "plan")
    run = command(
        tmp_path, "run", "plan", "--data", data, "--valid", f"{data}&part=test", "--valid-every", "250000", "--early-stop", "1",
        "--keep-best", "--epochs", "8", "--out", "run",
    )  # fmt: skip
    assert run["stopped"].startswith("a validation without a better log loss")
    assert run["examples"] < 8 * FILES * ROWS * 0.95
    found = [each["auc"] for each in run["validations"]]
    assert max(found) > max(found[0] + 0.01, 0.66), "it has learned more than what is liked by all"
    new = visits(2_000, 99)
    pq.write_table(new, tmp_path / "new.parquet")
    command(
        tmp_path, "predict", "run", "--data", "parquet:new.parquet?schema=schema.yaml", "--checkpoint", "best", "--out", "scores.npy"
    )  # fmt: skip
    command(tmp_path, "export", "run", "--to", "onnx", "--checkpoint", "best", "--out", "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (score,) = session.run(["score"], htrain.features(new.drop(["click"]), schema=tmp_path / "schema.yaml"))
    np.testing.assert_allclose(score.ravel(), np.load(tmp_path / "scores.npy")["score"], rtol=1e-5, atol=1e-6)
