"""A trained model in one process: the last checkpoint of a run, the forward net of its plan, and what that makes of data."""

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.data import START, Batch, Dataset, Malformed, open_data
from htrain.errors import CheckpointError
from htrain.executor.engine.context import Context
from htrain.executor.engine.engine import Engine
from htrain.executor.engine.program import build_program
from htrain.executor.host.threads import begin_thread, callers_settings_kept, share_gil
from htrain.executor.launch.inputs import check_inputs, check_numbers, check_rows, check_values
from htrain.executor.record.checkpoint import Manifest
from htrain.executor.record.identity import PlanIdentity
from htrain.executor.record.kept import latest_checkpoint, named_checkpoint
from htrain.executor.record.layout import Layout, read_layout
from htrain.executor.record.parameters import load_parameters
from htrain.executor.record.reading import Reading, read_beside
from htrain.executor.record.validations import best_checkpoint
from htrain.executor.strategies.strategy import cache_of
from htrain.net.blobs import numel
from htrain.net.names import head_name
from htrain.net.net import Net, Op
from htrain.net.rewriting import as_made, only_needed, with_heads
from htrain.ops import OPS
from htrain.ops.bundle import Bundle
from htrain.plan.plan import Plan, load_plan
from htrain.printable import as_word

_BATCH = 4096
_AHEAD = 2  # batches that are read for each worker
Which = Literal["last", "best"]  # of a run's checkpoints


@dataclass(frozen=True)
class Trained:
    """The last checkpoint of a run, in `folder`. `replica` says whose dense parameters: `center` (the centres; group 0's where all groups hold the same) or
    `group:N`. Its run keeps the checkpoint for as long as somebody has this, by its `reading`."""

    plan: Plan
    folder: Path
    manifest: Manifest
    replica: str
    reading: Reading

    @property
    def forward(self) -> Net:
        """The net of its evaluation; see `evaluated_net`."""
        return evaluated_net(self.plan)

    def parameters(self, net: Net) -> dict[str, torch.Tensor]:
        """Every parameter of `net`, mapped from the checkpoint's files. Raises CheckpointError."""
        return load_parameters(
            Layout.of(self.plan), net.parameters, self.folder, manifest=self.manifest, replica=self.replica
        )

    def dataset(self, data: str) -> Dataset:
        """Data as the plan takes it. Raises DataError for data that does not fit, such as one whose columns are others, or have other vocabularies, than those
        that were trained."""
        dataset, trained = data_for(self.plan, data), self.manifest.identity.data
        if trained.files or trained.meanings:  # servers of workers from outside do not know what these had
            whose = "that the run was trained on"
            check_values(self.plan, dataset.source.name, dataset.schema, trained, whose=whose)
        return dataset


def data_for(plan: Plan, data: str) -> Dataset:
    """A dataset as the forward net of a plan reads it. Raises DataError where it is not there, or not what the plan can be run on."""
    dataset = open_data(data).as_it_stands().for_loss(plan.options.loss)
    check_inputs(plan, dataset)
    check_rows(plan, dataset)
    dataset = cache_of(plan, plan.cluster.roles[0]).numbered(dataset)
    check_numbers(plan, dataset)
    return dataset


def load_trained(plan_folder: Path, run_folder: Path, replica: str, checkpoint: Which = "last") -> Trained:
    """The last checkpoint of a run, or the best that its validations have kept, and its plan. Raises CheckpointError, PlanError."""
    plan = load_plan(plan_folder)

    def choose() -> tuple[Path, Manifest]:
        return (
            named_checkpoint(run_folder, best_checkpoint(run_folder))
            if checkpoint == "best"
            else latest_checkpoint(run_folder)
        )

    reading = read_beside(choose)
    folder, manifest = reading.folder, reading.manifest
    of = manifest.identity.plan.digest
    if of != plan.digest:
        layout = read_layout(run_folder, of)
        if layout and Path(layout.plan).resolve() == plan_folder.resolve():
            raise CheckpointError(
                f"{folder}: {plan_folder} was compiled anew since ({manifest.identity.plan.difference(PlanIdentity.of(plan))}): compile it as it was, or "
                f"begin a run of it with what was trained (--begin-with {as_word(run_folder)})"
            )
        which = (
            f"the plan with which it was made, --plan {as_word(layout.plan)}"
            if layout
            else "the plan of the run (--plan)"
        )
        raise CheckpointError(
            f"{folder}: belongs to another plan (digest {of[:12]}, this one has {plan.digest[:12]}): name {which}"
        )
    return Trained(plan, folder, manifest, replica, reading)


def evaluated_net(plan: Plan) -> Net:
    """What evaluation does: its outputs are the loss, the logit, and heads. A plan may have a net of its own for that; else see `forward_net`."""
    return plan.evaluation or forward_net(plan.train, plan.heads)


def forward_net(train: Net, heads: Net | None = None) -> Net:
    """The ops of a train net that lead to the logit, its second output; the first stays the loss. Behind these come its `heads`.

    Values are not encoded for the way between devices, and rows come from no cache: nothing travels here. What does something else while it trains
    (dropout, a batch norm) does not.
    """
    net = _without_caches(with_heads(as_made(train), heads))
    return only_needed(net.with_ops(OPS[op.type].in_evaluation(op) for op in net.ops))


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
    shards = sorted(
        (p for p in train.parameters.values() if p.kind == "table" and p.whole == table), key=lambda p: p.first_row
    )
    bounds = (*(p.first_row for p in shards), shards[-1].first_row + shards[-1].shape[0])
    return Op(
        "LookupShards", (*(p.name for p in shards), ids), (rows,), {"bounds": bounds}, node_name=device, module=table
    )


@dataclass(frozen=True)
class Scored:
    """A batch of n examples: logits, or predictions without a loss of probabilities, and labels, float32[n]; and its mean loss.

    `heads` are the model's other outputs by name, float32[n] or float32[n,K], and `columns` the data that it read.
    """

    logit: NDArray[np.float32]
    label: NDArray[np.float32]
    loss: float
    heads: Mapping[str, NDArray[np.float32]]
    columns: Mapping[str, NDArray[Any]]


def batch_size_of(plan: Plan) -> int:
    """In how many examples at a time a plan's model is evaluated: a loss of its own may be of all of a batch, as with negatives within it, and is told of
    batches as they are trained."""
    return plan.options.batch_size if plan.options.loss == "own" else _BATCH


def scored(
    net: Net,
    parameters: Mapping[str, torch.Tensor],
    dataset: Dataset,
    malformed: Malformed,
    batch_size: int,
    workers: int = 0,
) -> Iterator[Scored]:
    """What a forward net makes of all of a dataset, batch by batch, in the order of its rows. Malformed ones are left out. See `batch_size_of`.

    `workers` are threads that compute beside this one, which reads ahead of them, each op on one core; with none, this one computes. Batches are the same.
    Raises DataError for what cannot be read.
    """
    engine = Engine(build_program(net, parameters))
    batches = dataset.batches(batch_size=batch_size, shard=0, num_shards=1, epochs=1, start=START, malformed=malformed)
    if not workers:
        yield from map(partial(_scored, engine), batches)
        return
    with callers_settings_kept(), ThreadPoolExecutor(workers, "score", begin_thread) as pool:
        torch.set_num_threads(1)
        share_gil(workers + 1)
        begun: deque[Future[Scored]] = deque()
        try:
            for batch in batches:
                begun.append(pool.submit(_scored, engine, batch))
                if len(begun) > _AHEAD * workers:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:  # whoever wants no more waits for no more
            pool.shutdown(cancel_futures=True)


def _scored(engine: Engine, batch: Batch) -> Scored:
    loss_name, logit_name, *others = engine.program.net.outputs
    with torch.no_grad():
        inputs = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
        state = engine.begin(Context(0, 0, 0, 0), "", batch.num_examples, inputs)
        ready = engine.start(state)
        while ready:
            ready += engine.run(state, ready.pop(0), _no_peer)
    logit = state.values[logit_name].reshape(-1).numpy()
    heads = {head_name(name): _of_examples(state.values[name]) for name in others}
    return Scored(logit, batch.columns["label"], float(state.values[loss_name]), heads, batch.columns)


def widths_of(net: Net) -> dict[str, int]:
    """The heads of a forward net: how many numbers for each example, 0 for one that is no vector."""
    shapes = {head_name(name): net.blob(name).shape for name in net.outputs[2:]}
    return {name: numel(shape[1:], 1) if shape[1:] not in ((), (1,)) else 0 for name, shape in shapes.items()}


def _of_examples(values: torch.Tensor) -> NDArray[np.float32]:
    made: NDArray[np.float32] = (values.reshape(-1) if values.shape[1:] == (1,) else values).numpy()
    return made


def _no_peer(peer: str, names: tuple[str, ...], tensors: tuple[torch.Tensor, ...] | Bundle) -> None:
    raise AssertionError(f"a forward net sends {names} to {peer}")
