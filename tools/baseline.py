"""The same model, data, batch and optimizers in plain PyTorch: what htrain is compared with."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from htrain.data import START, Malformed, Schema, open_data
from htrain.data.evaluation import auc, entropy
from htrain.frontend.load import load_model
from htrain.net.net import Init
from htrain.ops import row_init
from htrain.spec.options import Options


@dataclass(frozen=True)
class Baseline:
    """What plain PyTorch reached: examples per second of training, CPU seconds, and NE and AUC on the test data."""

    eps: float
    cpu_seconds: float
    train_loss: float
    ne: float
    auc: float


def build_model(spec: str, schema: Schema, seed: int) -> nn.Module:
    """The model with real values, drawn by the inits that htrain reads off its code; embeddings give sparse gradients."""
    loaded = load_model(spec, schema)
    model = loaded.module.to_empty(device="cpu")
    for number, (name, parameter) in enumerate(model.named_parameters()):
        _fill(parameter.data, loaded.inits[name], seed * 1000 + number)
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = True
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
    return model


def _fill(values: torch.Tensor, init: Init, seed: int) -> None:
    rows = values.reshape(values.shape[0], -1).numpy()
    if init.kind == "uniform":
        row_init.fill_uniform(rows, seed, 0, *init.arguments)
    elif init.kind == "normal":
        row_init.fill_normal(rows, seed, 0, *init.arguments)
    else:
        values.fill_(init.arguments[0])


def optimizers(model: nn.Module, options: Options) -> list[torch.optim.Optimizer]:
    """torch's own optimizers: one for embeddings, whose gradients are sparse, one for the rest."""
    tables = {id(m.weight): m.weight for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    dense = [p for p in model.parameters() if id(p) not in tables]
    kinds = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}
    return [
        kinds[options.dense_optimizer.kind](dense, lr=options.dense_optimizer.lr),
        kinds[options.sparse_optimizer.kind](list(tables.values()), lr=options.sparse_optimizer.lr),
    ]


def batches(data: str, batch_size: int) -> Iterator[dict[str, torch.Tensor]]:
    """The batches of one pass over a dataset."""
    for batch in (
        open_data(data)
        .for_loss("bce")
        .batches(batch_size=batch_size, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed())
    ):
        yield {name: torch.from_numpy(column) for name, column in batch.columns.items()}


def train_step(model: nn.Module, steps: list[torch.optim.Optimizer], batch: dict[str, torch.Tensor]) -> float:
    """One step of plain PyTorch; returns the loss."""
    inputs = {name: value for name, value in batch.items() if name != "label"}
    for step in steps:
        step.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(model(**inputs), batch["label"])
    loss.backward()
    for step in steps:
        step.step()
    return loss.item()


def train_and_evaluate(spec: str, train: str, test: str, options: Options) -> Baseline:
    """Train one epoch on `train`, evaluate on `test`."""
    model = build_model(spec, open_data(train).schema, options.seed)
    steps = optimizers(model, options)
    examples, total, started, cpu = 0, 0.0, time.perf_counter(), time.process_time()
    for batch in batches(train, options.batch_size):
        count = batch["label"].numel()
        total += train_step(model, steps, batch) * count
        examples += count
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    ne, area = evaluate(model, test)
    return Baseline(examples / seconds, cpu, total / examples, ne, area)


@torch.no_grad()
def evaluate(model: nn.Module, data: str) -> tuple[float, float]:
    """NE and AUC of a model on a dataset; it is in training mode again afterwards."""
    model.eval()
    scores, labels = [], []
    for batch in batches(data, 4096):
        labels.append(batch.pop("label"))
        scores.append(model(**batch))
    model.train()
    logit, label = torch.cat(scores), torch.cat(labels)
    loss = nn.functional.binary_cross_entropy_with_logits(logit, label).item()
    return loss / entropy(float(label.mean())), auc(np.asarray(logit), np.asarray(label))
