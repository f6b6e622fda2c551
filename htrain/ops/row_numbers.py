"""Which tables of a train net have a row for each number of the data, with that number, and which data that is."""

from collections.abc import Collection, Mapping, Sequence

import torch

from htrain.net.net import BatchDim, Net, Op
from htrain.ops import OPS

_LOOKUPS = ("Dedupe", "DedupeSharded")  # which those of tables are lowered to
_ORDERS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_BATCH = 8
_ANYWHERE = (0, 1)
_NUMBERS = 1 << 22  # drawn are as many from this on, so that what is computed of some does not meet others by chance


def rows_by_number(net: Net, inputs: Collection[str]) -> frozenset[str]:
    """The tables of a train net, by their names in the model, whose rows are looked up by numbers of these `inputs` alone, as they come.

    Numbers may be moved, chosen among, and replaced by 0 and 1, which are what is missing and what is unknown in any vocabulary. A row whose number was
    computed, as by an offset into a table of several columns, or one behind the last value, may be that of another value as soon as there are more. So may one
    of a weight that is read in another way than by lookups: no weight is here.
    """
    moved = _Numbers(net, inputs).moved
    return frozenset(table for table, ids in _asked(net).items() if moved.issuperset(ids))


def rows_computed(net: Net, inputs: Collection[str]) -> list[str]:
    """What may have another row for a number as soon as some of these inputs have more of them, by its module: what is looked up by numbers that are computed
    of theirs, or by theirs and others, too; and weights that are looked up by theirs, and read in another way besides."""
    numbers, reached = _Numbers(net, inputs), _computed_of(net, inputs)
    found = []
    for table, ids in _asked(net).items():
        is_moved = {name in numbers.moved for name in ids}
        if len(is_moved) > 1 or (is_moved == {False} and not reached.isdisjoint(ids)):
            found.append(table)
    others = _read_otherwise(net)
    for op in net.ops:
        if OPS[op.type].indexed and op.inputs[0] not in numbers.moved:
            of, ids = op.inputs[0], op.inputs[1]
            is_computed = ids in reached and ids not in numbers.moved
            if is_computed or (ids in numbers.moved and of in others):
                found.append(net.parameters[of].whole if of in net.parameters else op.module)
    return list(dict.fromkeys(found))


def _computed_of(net: Net, inputs: Collection[str]) -> set[str]:
    """What is computed of numbers themselves: not what is looked up by them, nor by the answer to a question about them, as a place in a list by a mask of
    its ids."""
    reached = set(inputs)
    for op in net.ops:
        of = op.inputs[:1] if OPS[op.type].indexed else op.inputs
        if op.type not in _LOOKUPS and not reached.isdisjoint(of):
            reached.update(name for name in op.outputs if net.blobs[name].dtype != "bool")
    return reached


def columns_looked_up(net: Net, inputs: Collection[str]) -> dict[str, set[tuple[str, int]]]:
    """The inputs, and of ids[B,C] their columns, by whose numbers, all of them, each table is looked up, by its name in the model; whatever else it is looked
    up by. Numbers of which some may be replaced, as by a model that holds them against its number of rows, are left out."""
    given = _Numbers(net, inputs)
    every = {name for name in given.moved if name not in given.answered}
    return {
        table: {at for name in ids if name in every for at in given.columns(name)} for table, ids in _asked(net).items()
    }


def _asked(net: Net) -> Mapping[str, Sequence[str]]:
    """What each table is looked up by, by its name in the model."""
    asked: dict[str, list[str]] = {}
    for op in net.ops:
        if op.type in _LOOKUPS:
            asked.setdefault(op.module, []).extend(op.inputs)
    return asked


def _read_otherwise(net: Net) -> set[str]:
    """The weights that are read in another way than by lookups of their rows, and by the gradients of these."""
    lookups = {op.inputs[:2] for op in net.ops if OPS[op.type].indexed and not op.attrs.get("axis", 0)}
    found: set[str] = set()
    for op in net.ops:
        rest = op.inputs[1:] if op.inputs[:2] in lookups else op.inputs
        found.update(set(rest) - OPS[op.type].written(op))
    return {name for name in found if name in net.parameters and net.parameters[name].kind == "weight"}


class _Numbers:
    """The values whose numbers are those of some inputs, or `_ANYWHERE` besides, are `moved`: the net computes what it does of whole numbers that are like no
    others, with answers that are drawn, so that what depends on one comes both ways. What does is `answered`."""

    def __init__(self, net: Net, inputs: Collection[str]) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self._given = _marked(net, inputs, self._generator)
        self._values = {**self._given, **self._lengths(net)}
        numbers = torch.cat([torch.empty(0, dtype=torch.int64), *(ids.flatten() for ids in self._given.values())])
        self._allowed = torch.cat([numbers, torch.tensor(_ANYWHERE)])
        self.answered: set[str] = set()
        for op in net.ops:
            self._follow(op, net)
        self.moved = {
            name for name, ids in self._values.items() if self._is_moved(ids) and torch.isin(ids, numbers).any()
        }

    def _lengths(self, net: Net) -> Mapping[str, torch.Tensor]:
        """Those of lists that are given."""
        names = {f"{name}_length": ids.shape[1] for name, ids in self._given.items() if ids.dim() == 2}
        return {
            name: torch.randint(1, most + 1, (_BATCH,), generator=self._generator)
            for name, most in names.items()
            if name in net.blobs
        }

    def _follow(self, op: Op, net: Net) -> None:
        dtypes = {net.blobs[name].dtype for name in op.outputs}
        is_known = all(name in self._values for name in op.inputs)
        if dtypes == {"bool"} and not (is_known and self._is_one_answer(op)):
            shapes = {name: _shape(net, name) for name in op.outputs}
            self._values |= {name: torch.rand(s, generator=self._generator) < 0.5 for name, s in shapes.items()}
            self.answered.update(op.outputs)
            return
        if not self.answered.isdisjoint(op.inputs):
            self.answered.update(op.outputs)
        if is_known and dtypes in ({"bool"}, {"int64"}) and op.type not in _LOOKUPS:
            self._compute(op, [self._values[name] for name in op.inputs])
        if OPS[op.type].indexed and not self._values.keys() & set(op.outputs) and op.inputs[0] in self._values:
            # Wherever it is, what is picked of ids is one of them.
            first = torch.zeros(_shape(net, op.inputs[1]), dtype=torch.int64)
            self._compute(op, [self._values[op.inputs[0]], first])
            self.answered.update(op.outputs)

    def _compute(self, op: Op, inputs: Sequence[torch.Tensor]) -> None:
        try:
            made = OPS[op.type].run(op, inputs, _BATCH)
        except (RuntimeError, ValueError, IndexError):  # they are larger than any it was written for
            return
        self._values.update(zip(op.outputs, made, strict=True))

    def _is_one_answer(self, op: Op) -> bool:
        """Whether an order holds for each number that may come, or for none, as that an id is below 0."""
        if op.type not in _ORDERS:
            return False
        large = [self._values[name] for name in op.inputs]
        small = [torch.zeros_like(value) if self._is_moved(value) else value for value in large]
        answers = torch.cat([OPS[op.type].run(op, each, _BATCH)[0].flatten() for each in (small, large)])
        return bool(answers.all()) or not bool(answers.any())

    def _is_moved(self, value: torch.Tensor) -> bool:
        return value.dtype == torch.int64 and bool(torch.isin(value, self._allowed).all())

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
