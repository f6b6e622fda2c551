"""Evaluating a checkpoint: the forward net in one process, over parameters mapped from the checkpoint's files."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from htrain.data import START, Dataset, Malformed, open_data
from htrain.data.evaluation import auc, entropy
from htrain.errors import CheckpointError
from htrain.executor.engine.context import Context
from htrain.executor.engine.engine import Engine
from htrain.executor.engine.program import build_program
from htrain.executor.launch.run import check_inputs
from htrain.executor.record.checkpoint import Manifest, latest_checkpoint, verified_path
from htrain.net.names import DENSE_PS, GROUP, SPARSE_PS, Role
from htrain.net.net import Net, Op
from htrain.net.rewriting import as_made, only_needed
from htrain.ops import OPS
from htrain.ops.bundle import Bundle
from htrain.plan.plan import Plan, load_plan
from htrain.spec.centres import centre_name

_BATCH = 4096


@dataclass(frozen=True)
class Evaluation:
    """`ne` and `log_loss` for BCE; `log_loss` is the mean squared error for MSE, and `ne` and `auc` nan."""

    examples: int
    log_loss: float
    ne: float
    auc: float
    positive_rate: float


def evaluate_run(plan_folder: Path, run_folder: Path, data: str, *, replica: str) -> Evaluation:
    """Evaluate the last checkpoint of a run on a dataset.

    `replica` says whose dense parameters: `center` (the centres; group 0's where all groups hold the same) or `group:N`.
    Raises CheckpointError, PlanError, DataError.
    """
    plan = load_plan(plan_folder)
    folder, manifest = latest_checkpoint(run_folder)
    of = manifest.identity.plan.digest
    if of != plan.digest:
        raise CheckpointError(
            f"{folder}: belongs to another plan (digest {of[:12]}, this one has {plan.digest[:12]}): name the plan of the run (--plan)"
        )
    dataset = open_data(data).for_loss(plan.options.loss)
    check_inputs(plan, dataset)
    net = forward_net(plan.train)
    parameters = load_parameters(plan, net, folder, manifest, replica)
    return evaluate(plan, net, parameters, dataset)


def forward_net(train: Net) -> Net:
    """The ops of a train net that lead to the logit, its second output; the first stays the loss.

    Values are not encoded for the way between devices, and rows come from no cache: nothing travels here.
    """
    return only_needed(_without_caches(as_made(train)))


def _without_caches(train: Net) -> Net:
    """The net with rows from their tables, which hold every update once the caches have been flushed."""
    makers = train.producers()
    read = {rows: ids for op in train.ops for rows, ids in OPS[op.type].evaluated(op, train).items()}
    ops: list[Op] = []
    for op in train.ops:
        if read.keys().isdisjoint(op.outputs):
            ops.append(op)
        else:
            ops += [
                _from_table(train, makers[read[rows]].module, read[rows], rows, op.node_name) for rows in op.outputs
            ]
    return train.with_ops(ops)


def _from_table(train: Net, table: str, ids: str, rows: str, device: str) -> Op:
    """The lookup of the rows of `ids` in all shards of a table."""
    shards = [p for p in train.parameters.values() if p.kind == "table" and p.whole == table]
    bounds = (*(p.first_row for p in shards), shards[-1].first_row + shards[-1].shape[0])
    return Op(
        "LookupShards", (*(p.name for p in shards), ids), (rows,), {"bounds": bounds}, node_name=device, module=table
    )


def load_parameters(plan: Plan, net: Net, folder: Path, manifest: Manifest, replica: str) -> dict[str, torch.Tensor]:
    """Every parameter of `net`, mapped from the files of the roles that own it. Raises CheckpointError."""
    group = _group(plan, replica)
    found: dict[str, torch.Tensor] = {}
    for role in sorted(manifest.files):
        found.update(_read(folder, manifest, role, _centres_at(role, plan) if group < 0 else {}))
    for role in sorted(role for role in manifest.files if _serves(role, group)):
        found.update(_read(folder, manifest, role, {name: name for name in net.parameters.keys() - found.keys()}))
    missing = net.parameters.keys() - found.keys()
    if missing:
        raise CheckpointError(f"{folder}: holds no value of '{min(missing)}'")
    return found


def _read(folder: Path, manifest: Manifest, role: str, names: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Of the parameters `names[name]` those that the file of a role has, mapped from it, by name."""
    if not names:
        return {}
    path = verified_path(folder, manifest.files[role])
    try:
        with safe_open(path, "pt") as file:
            held = set(file.keys())
            return {name: file.get_tensor(names[name]) for name in sorted(names) if names[name] in held}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _centres_at(role: str, plan: Plan) -> dict[str, str]:
    """What a role of a group may have of the centres, where these are with groups: the parameter of each weight's."""
    host = Role.parse(role).host
    if host.kind != GROUP:
        return {}
    return {name: centre_name(name, of) for name, of in plan.centers.items() if of == str(host)}


def _group(plan: Plan, replica: str) -> int:
    """The group whose dense replica to read; -1 for the centre."""
    if replica == "center":
        return -1 if plan.centers else 0
    kind, _, number = replica.partition(":")
    if kind != "group" or not number.isdigit() or int(number) >= plan.cluster.groups:
        raise CheckpointError(f"'{replica}': want center, or group:N with N below {plan.cluster.groups}")
    return int(number)


def _serves(role: str, group: int) -> bool:
    """Whether a role's parameters belong to the replica: sparse PSs always, dense PSs for the centre, a group's own for a group.

    What the centre lacks (weights that are not trained) comes from group 0, whose roles sort behind `dense_ps`.
    """
    of = Role.parse(role)
    if of.kind == SPARSE_PS:
        return True
    if of.kind == DENSE_PS:
        return group < 0
    return of.group == max(group, 0)


def evaluate(plan: Plan, net: Net, parameters: Mapping[str, torch.Tensor], dataset: Dataset) -> Evaluation:
    """Run the forward net over all of a dataset."""
    engine = Engine(build_program(net, parameters))
    scores, labels, total, examples = [], [], 0.0, 0
    for logit, label, loss in _scores(engine, dataset):
        scores.append(logit)
        labels.append(label)
        total += loss * label.size
        examples += label.size
    score, label = np.concatenate(scores), np.concatenate(labels)
    rate = float(label.mean())
    binary = plan.options.loss == "bce"
    mean = total / examples
    return Evaluation(
        examples,
        mean,
        mean / entropy(rate) if binary else float("nan"),
        auc(score, label) if binary else float("nan"),
        rate,
    )


def _scores(engine: Engine, dataset: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
    loss_name, logit_name = engine.program.net.outputs
    batches = dataset.batches(batch_size=_BATCH, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed())
    with torch.no_grad():
        for batch in batches:
            state = engine.begin(
                Context(0, 0, 0, 0),
                "",
                batch.num_examples,
                {name: torch.from_numpy(column) for name, column in batch.columns.items()},
            )
            ready = engine.start(state)
            while ready:
                ready += engine.run(state, ready.pop(0), _no_peer)
            logit = state.values[logit_name].reshape(-1).numpy()
            yield logit, batch.columns["label"], float(state.values[loss_name])


def _no_peer(peer: str, names: tuple[str, ...], tensors: tuple[torch.Tensor, ...] | Bundle) -> None:
    raise AssertionError(f"a forward net sends {names} to {peer}")
