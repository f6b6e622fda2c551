"""Which tables and weights of a train net have a row for each number of the data, with that number, and which data that is."""

from collections.abc import Collection, Mapping, Sequence

import torch

from htrain.net.net import BatchDim, Net, Op
from htrain.ops import OPS

_LOOKUPS = ("Dedupe", "DedupeSharded")  # which those of tables are lowered to
_BATCH = 8
_ANYWHERE = (0, 1)
_NUMBERS = 1 << 22  # drawn are as many from this on, so that what is computed of some does not meet others by chance


def rows_by_number(net: Net, inputs: Collection[str]) -> frozenset[str]:
    """The tables and weights of a train net, by their names in the model, whose rows are looked up by numbers of these `inputs` alone, as they come.

    Numbers may be moved, chosen among, and replaced by 0 and 1, which are what is missing and what is unknown in any vocabulary. A row whose number was
    computed, as by an offset into a table of several columns, or one behind the last value, may be that of another value as soon as there are more. What is
    looked up may be read as a whole, too: a row is that of its number there.
    """
    moved = _Numbers(net, inputs).moved
    return frozenset(whole for whole, ids in _asked(net).items() if moved.issuperset(ids))


def rows_computed(net: Net, inputs: Collection[str], *, of: Collection[str]) -> list[str]:
    """The tables and weights that are looked up by what a net computes `of` some of those inputs, in another way than `rows_by_number` allows."""
    reached = set(of)
    for op in net.ops:
        if not reached.isdisjoint(op.inputs):
            reached.update(op.outputs)
    moved = _Numbers(net, inputs).moved
    return [whole for whole, ids in _asked(net).items() if any(name in reached and name not in moved for name in ids)]


def columns_looked_up(net: Net, inputs: Collection[str]) -> dict[str, set[tuple[str, int]]]:
    """The inputs, and of ids[B,C] their columns, by whose numbers, all of them, each table and weight is looked up, by its name in the model; whatever else it
    is looked up by. Numbers of which some may be replaced, as by a model that holds them against its number of rows, are left out."""
    given = _Numbers(net, inputs)
    every = {name for name in given.moved if name not in given.answered}
    return {
        whole: {at for name in ids if name in every for at in given.columns(name)} for whole, ids in _asked(net).items()
    }


def _asked(net: Net) -> Mapping[str, Sequence[str]]:
    """What each table and weight is looked up by, by its name in the model."""
    asked: dict[str, list[str]] = {}
    for op in net.ops:
        if op.type in _LOOKUPS:
            asked.setdefault(op.module, []).extend(op.inputs)
        elif OPS[op.type].indexed and op.inputs[0] in net.parameters and not op.attrs.get("axis", 0):
            asked.setdefault(net.parameters[op.inputs[0]].whole, []).append(op.inputs[1])
    return asked


class _Numbers:
    """The values whose numbers are those of some inputs, or `_ANYWHERE` besides, are `moved`: the net computes what it does of whole numbers that are like no
    others, with answers that are drawn, so that what depends on one comes both ways. What does is `answered`."""

    def __init__(self, net: Net, inputs: Collection[str]) -> None:
        generator = torch.Generator().manual_seed(0)
        self._given = _marked(net, inputs, generator)
        self._values = dict(self._given)
        self.answered: set[str] = set()
        for op in net.ops:
            dtypes = {net.blobs[name].dtype for name in op.outputs}
            if dtypes == {"bool"}:
                answers = {name: torch.rand(_shape(net, name), generator=generator) < 0.5 for name in op.outputs}
                self._values |= answers
                self.answered |= answers.keys()
                continue
            if not self.answered.isdisjoint(op.inputs):
                self.answered.update(op.outputs)
            if dtypes == {"int64"} and op.type not in _LOOKUPS and all(name in self._values for name in op.inputs):
                self._compute(op)
        numbers = torch.cat([torch.empty(0, dtype=torch.int64), *(ids.flatten() for ids in self._given.values())])
        allowed = torch.cat([numbers, torch.tensor(_ANYWHERE)])
        self.moved = {
            name
            for name, ids in self._values.items()
            if ids.dtype == torch.int64 and torch.isin(ids, allowed).all() and torch.isin(ids, numbers).any()
        }

    def _compute(self, op: Op) -> None:
        try:
            made = OPS[op.type].run(op, [self._values[name] for name in op.inputs], _BATCH)
        except (RuntimeError, ValueError, IndexError):  # they are larger than any it was written for
            return
        self._values.update(zip(op.outputs, made, strict=True))

    def columns(self, name: str) -> set[tuple[str, int]]:
        """The inputs, and their columns, that a moved value has numbers of."""
        found = set()
        for given, ids in self._given.items():
            for place in torch.isin(ids, self._values[name]).nonzero().tolist():
                found.add((given, place[1] if len(place) == 2 else 0))
        return found


def _shape(net: Net, name: str) -> list[int]:
    return [d.at(_BATCH) if isinstance(d, BatchDim) else d for d in net.blobs[name].shape]


def _marked(net: Net, inputs: Collection[str], generator: torch.Generator) -> Mapping[str, torch.Tensor]:
    """Another number for each place of those of some inputs of a net that are whole numbers."""
    drawn = torch.randperm(_NUMBERS, generator=generator) + _NUMBERS
    shapes = {name: _shape(net, name) for name in inputs if name in net.blobs and net.blobs[name].dtype == "int64"}
    counts = [torch.Size(shape).numel() for shape in shapes.values()]
    parts = drawn.split([*counts, len(drawn) - sum(counts)])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=False)}
