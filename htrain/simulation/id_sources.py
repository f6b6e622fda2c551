"""The ids that the batches of each trainer look rows up by: those of data, or drawn by a power law."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.data import START, Malformed, open_data
from htrain.data.formats.synthetic import odd_step, zipf_ranks
from htrain.errors import PlanError
from htrain.executor.launch.inputs import check_inputs, check_numbers
from htrain.net.net import Net, Op, numel
from htrain.net.slices import leading_to
from htrain.ops import OPS
from htrain.ops.sparse_loops import dedupe
from htrain.plan.plan import Plan

Ids = NDArray[np.int64]
_LIMB_BITS = 20


class IdSource(Protocol):
    """Where ids come from. Its text is how messages name it."""

    def batches(self, plan: Plan, tables: Mapping[str, int], trainer: int) -> Iterator[Mapping[str, Ids]]:
        """For each batch of one trainer the distinct ids of each blob of the train net in `tables`, which says how many rows its table has."""
        ...


@dataclass(frozen=True)
class Trace:
    """The batches of data, `FORMAT:PATH` as `htrain run` takes it, each trainer's share of them. The ops of the plan that lead to ids are run."""

    data: str
    epochs: int = 1

    def __str__(self) -> str:
        return self.data

    def batches(self, plan: Plan, tables: Mapping[str, int], trainer: int) -> Iterator[Mapping[str, Ids]]:
        """Raises DataError for data that the plan does not take, PlanError for ids that are computed of parameters."""
        dataset, train = open_data(self.data), plan.train
        check_inputs(plan, dataset)
        check_numbers(plan, dataset)
        leading = _leading_to(train, tables)
        read = dataset.batches(
            batch_size=plan.options.batch_size,
            shard=trainer,
            num_shards=plan.cluster.groups * plan.cluster.trainers,
            epochs=self.epochs,
            start=START,
            malformed=Malformed(),
        )
        for batch in read:
            known = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
            for op in leading:
                found = OPS[op.type].run(op, [known[name] for name in op.inputs], batch.num_examples)
                known.update(zip(op.outputs, found, strict=True))
            yield {name: known[name].numpy() for name in tables}


def _leading_to(train: Net, ids: Mapping[str, int]) -> list[Op]:
    ops = [train.ops[place] for place in leading_to(train.ops, ids)]
    for op in ops:
        if of := [name for name in op.inputs if name in train.parameters]:
            raise PlanError(
                f"the rows that a cache is asked for depend on '{of[0]}' ({op.label}), so that no trace tells them: give --zipf, or neither"
            )
    return ops


@dataclass(frozen=True)
class Zipf:
    """Each table's ids drawn alike and independently: the k-th most frequent of its rows comes about 1 / k^exponent times as often as the first.
    Frequent rows are spread over the table. All batches are whole, and there is no end of them."""

    exponent: float
    seed: int = 0

    def __str__(self) -> str:
        return f"a Zipf law of {self.exponent:g}"

    def batches(self, plan: Plan, tables: Mapping[str, int], trainer: int) -> Iterator[Mapping[str, Ids]]:
        """Raises nothing."""
        random = np.random.default_rng([self.seed, trainer])
        blobs, batch = plan.train.blobs, plan.options.batch_size
        counts = {name: numel(blobs[name].shape[:1], batch) for name in tables}
        while True:
            yield {name: self._ids(rows, counts[name], random) for name, rows in tables.items()}

    def _ids(self, rows: int, count: int, random: np.random.Generator) -> Ids:
        return dedupe(spread(zipf_ranks(random.random(count), rows, self.exponent), rows), -1)[0]


def spread(ranks: Ids, rows: int) -> Ids:
    """The row of each rank: a shuffle of the `rows` rows, by a multiplication modulo their number. Requires: fewer than 2^42 rows."""
    step, ids = odd_step(rows), np.zeros(ranks.size, np.uint64)
    unsigned, limbs = ranks.astype(np.uint64), range(2 * _LIMB_BITS, -1, -_LIMB_BITS)
    for shift in limbs:  # as products of 64 bits hold
        limb = (step >> shift) & ((1 << _LIMB_BITS) - 1)
        ids = ((ids << np.uint64(_LIMB_BITS)) + unsigned * np.uint64(limb)) % np.uint64(rows)
    return ids.astype(np.int64)
