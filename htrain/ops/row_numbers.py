"""Which tables and weights of a train net have a row for each number of the data, with that number."""

from collections.abc import Collection, Mapping, Sequence

import torch

from htrain.net.net import BatchDim, Net
from htrain.ops import OPS

_LOOKUPS = ("Dedupe", "DedupeSharded")  # which those of tables are lowered to
_BATCH = 8
_ANYWHERE = (0, 1)
_NUMBERS = (
    1 << 22
)  # what is drawn are numbers up to twice this, some of which what is computed of others does not meet by chance


def rows_by_number(net: Net, inputs: Collection[str]) -> frozenset[str]:
    """The tables and weights of a train net, by their names in the model, whose rows are looked up by numbers of these `inputs` alone, as they come.

    Numbers may be moved, chosen among, and replaced by 0 and 1, which are what is missing and what is unknown in any vocabulary. A row whose number was
    computed, as by an offset into a table of several columns, or one behind the last value, may be that of another value as soon as there are more. What is
    looked up may be read as a whole, too: a row is that of its number there.
    """
    moved = _moved(net, inputs)
    return frozenset(whole for whole, ids in _asked(net).items() if moved.issuperset(ids))


def rows_computed(net: Net, inputs: Collection[str], *, of: Collection[str]) -> list[str]:
    """The tables and weights that are looked up by what a net computes `of` some of those inputs, in another way than `rows_by_number` allows."""
    reached = set(of)
    for op in net.ops:
        if not reached.isdisjoint(op.inputs):
            reached.update(op.outputs)
    moved = _moved(net, inputs)
    return [whole for whole, ids in _asked(net).items() if any(name in reached and name not in moved for name in ids)]


def _asked(net: Net) -> Mapping[str, Sequence[str]]:
    """What each table and weight is looked up by, by its name in the model."""
    asked: dict[str, list[str]] = {}
    for op in net.ops:
        if op.type in _LOOKUPS:
            asked.setdefault(op.module, []).extend(op.inputs)
        elif OPS[op.type].indexed and op.inputs[0] in net.parameters and not op.attrs.get("axis", 0):
            asked.setdefault(net.parameters[op.inputs[0]].whole, []).append(op.inputs[1])
    return asked


def _moved(net: Net, inputs: Collection[str]) -> set[str]:
    """The values whose numbers are those of some inputs, or `_ANYWHERE` besides: the net computes what it does of whole numbers that are like no others, with
    answers that are drawn, so that what depends on one comes both ways."""
    generator = torch.Generator().manual_seed(0)
    known = dict(_marked(net, inputs, generator))
    numbers = torch.cat([torch.empty(0, dtype=torch.int64), *(ids.flatten() for ids in known.values())])
    for op in net.ops:
        dtypes = {net.blobs[name].dtype for name in op.outputs}
        if dtypes == {"bool"}:
            known |= {name: torch.rand(_shape(net, name), generator=generator) < 0.5 for name in op.outputs}
        elif dtypes == {"int64"} and op.type not in _LOOKUPS and all(name in known for name in op.inputs):
            try:
                made = OPS[op.type].run(op, [known[name] for name in op.inputs], _BATCH)
            except (RuntimeError, ValueError, IndexError):  # they are larger than any it was written for
                continue
            known.update(zip(op.outputs, made, strict=True))
    allowed = torch.cat([numbers, torch.tensor(_ANYWHERE)])
    return {
        name
        for name, ids in known.items()
        if ids.dtype == torch.int64 and torch.isin(ids, allowed).all() and torch.isin(ids, numbers).any()
    }


def _shape(net: Net, name: str) -> list[int]:
    return [d.at(_BATCH) if isinstance(d, BatchDim) else d for d in net.blobs[name].shape]


def _marked(net: Net, inputs: Collection[str], generator: torch.Generator) -> Mapping[str, torch.Tensor]:
    """Another number for each place of some inputs of a net."""
    drawn = torch.randperm(_NUMBERS, generator=generator) + _NUMBERS
    shapes = {name: _shape(net, name) for name in inputs if name in net.blobs}
    counts = [torch.Size(shape).numel() for shape in shapes.values()]
    parts = drawn.split([*counts, len(drawn) - sum(counts)])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=False)}
