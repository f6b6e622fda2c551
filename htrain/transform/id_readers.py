"""What a net does with the ids of data besides looking rows up: masks of padding, and what is compared, by the new numbers that a partition gives ids."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from htrain.errors import UsageError
from htrain.net.net import BatchDim, Net, Op
from htrain.ops import OPS
from htrain.ops.base import UNFIT, constant_of
from htrain.ops.builder import NetBuilder

Renumber = Callable[[str, int], int]

_BATCH = 2
_LOOKUPS = ("Dedupe", "MaskPlaces")  # which lookups are lowered to
# A marker is the number of a table, from 1 on, a place, and what a model adds to ids: of the first two the lowest bit
_TABLES, _PLACES = 52, 40
_MOST_PLACES = (1 << (_TABLES - _PLACES)) - 1
_ADDED = (1 << _PLACES) - 1
_ORDERS = {"Greater": (1, True), "GreaterOrEqual": (0, True), "Less": (0, False), "LessOrEqual": (1, False)}
"""What is added to a number to have the first row on the other side of it, and whether the answer is yes there."""
_FLIPPED = {"Greater": "Less", "GreaterOrEqual": "LessOrEqual", "Less": "Greater", "LessOrEqual": "GreaterOrEqual"}

Marks = tuple[torch.Tensor, torch.Tensor]
"""Ids as markers int64[2, ...], by places from the first on and from the last: what is moved keeps its place in both, what is chosen by its size does not."""


def by_new_numbers(net: Net, columns: Mapping[str, Sequence[str]], renumber: Renumber) -> Net:
    """The net in which ids that are compared with constants are compared by their new numbers, `renumber(table, id)`; -1 is that of no row.

    `columns` are the inputs whose numbers are new, with the table of each column, or of a list. Requires: lowered lookups.
    Raises UsageError for an op that computes anything else of ids.
    """
    return _Readers(net, columns, renumber).rewritten()


class _Readers:
    """`_marks` are values whose numbers are ids; `_known` those that no batch changes."""

    def __init__(self, net: Net, columns: Mapping[str, Sequence[str]], renumber: Renumber) -> None:
        self._net, self._renumber = net, renumber
        self._tables = list(dict.fromkeys(table for tables in columns.values() for table in tables))
        numbers = {name: [self._tables.index(table) + 1 for table in tables] for name, tables in columns.items()}
        self._marks = dict(_marked(net, numbers))
        self._known: dict[str, torch.Tensor] = {}
        self._builder = NetBuilder.beside(net)
        self._builder.reserve(name for op in net.ops for name in op.outputs)

    def rewritten(self) -> Net:
        for op in self._net.ops:
            if self._marks.keys().isdisjoint(op.inputs):
                self._learn(op)
            elif op.type not in _LOOKUPS and not self._passes_on(op):
                self._compare(op)
                continue
            self._builder.copy(op)
        return self._builder.build(self._net.outputs)

    def _learn(self, op: Op) -> None:
        """Keep what no batch changes."""
        if all(name in self._known for name in op.inputs) and len(op.outputs) == 1 and _is_constant(op, self._net):
            made = OPS[op.type].run(op, [self._known[name] for name in op.inputs], _BATCH)
            self._known.update(zip(op.outputs, made, strict=True))

    def _passes_on(self, op: Op) -> bool:
        """Whether an op moves ids, or adds to them, or asks of them what new numbers leave as it is."""
        if self._is_of_order(op):
            return self._first_beyond(op) <= {-1, 0}
        if any(name not in self._marks and name not in self._known for name in op.inputs):
            return False
        if op.type in ("Equal", "NotEqual") and all(name in self._marks for name in op.inputs):
            (left, _), (right, _) = (self._marks[name] for name in op.inputs)
            return bool(((left >> _TABLES == right >> _TABLES) & (left & _ADDED == right & _ADDED)).all())
        try:
            first, last = (
                OPS[op.type].run(
                    op, [self._marks[n][k] if n in self._marks else self._known[n] for n in op.inputs], _BATCH
                )
                for k in (0, 1)
            )
        except UNFIT:
            return False
        if not all(self._are_moved(*pair) for pair in zip(first, last, strict=True)):
            return False
        self._marks.update(zip(op.outputs, zip(first, last, strict=True), strict=True))
        return True

    def _are_moved(self, first: torch.Tensor, last: torch.Tensor) -> bool:
        """Whether two values are markers, of the same ids at each place."""
        if first.dtype != torch.int64:
            return False
        tables = first >> _TABLES
        places = sum((value >> _PLACES) & _MOST_PLACES for value in (first, last))
        same = (tables == last >> _TABLES) & (first & _ADDED == last & _ADDED) & (places == _MOST_PLACES)
        return bool((same & (tables >= 1) & (tables <= len(self._tables))).all())

    # -- comparisons

    def _compare(self, op: Op) -> None:
        """Write a comparison of ids with constants. Raises UsageError for what is none."""
        found = self._compared(op)
        if found is None:
            raise UsageError(
                f"{op.label} computes with ids themselves, besides looking rows up, and a partition gives them other numbers: compare them with those of rows "
                "(ids != 0), or with each other, give the model what it computes of them as another input, or hold tables another way (--sparse-sync)"
            )
        ids, rows, negated = found
        new, rows, added = self._renumbered(ids, rows)
        wanted, original = torch.where(new < 0, -1, new + added), rows + added
        if wanted.dim() <= self._marks[ids][0].dim() and len(wanted.unique()) == len(original.unique()) == 1:
            wanted, original = wanted.flatten()[0], original.flatten()[0]
        constant = self._builder.add("Constant", (), attrs={"value": constant_of(wanted)}, module=op.module)[0]
        attrs, named = {"original": constant_of(original)}, () if negated else op.outputs
        same = self._builder.add("IsRow", (ids, constant), attrs=attrs, module=op.module, outputs=named)
        if negated:
            self._builder.add("Not", same, module=op.module, outputs=op.outputs)

    def _compared(self, op: Op) -> tuple[str, torch.Tensor, bool] | None:
        """The ids that an op compares, with which rows of the data's tables, and whether it asks for others than these."""
        ids = next(name for name in op.inputs if name in self._marks)
        zero = torch.zeros((), dtype=torch.int64)
        if op.type == "Not" or (op.type == "Cast" and op.attrs["to"] == "bool"):
            return None if (self._marks[ids][0] & _ADDED).any() else (ids, zero, op.type == "Cast")
        if op.type in ("Equal", "NotEqual"):
            numbers = self._beside(op)
            return None if numbers is None else (ids, self._rows(ids, numbers), op.type == "NotEqual")
        if self._is_of_order(op) and self._splits_behind_zero(op):
            _, is_yes = _ORDERS[self._order(op)]
            return ids, torch.zeros_like(self._rows(ids, zero)), is_yes
        return None

    def _beside(self, op: Op) -> torch.Tensor | None:
        """The whole numbers that an op of two inputs has beside ids, where no batch changes them."""
        found = [self._known[name] for name in op.inputs if name in self._known]
        return found[0].to(torch.int64) if len(found) == 1 and not found[0].is_floating_point() else None

    def _is_of_order(self, op: Op) -> bool:
        return op.type in _ORDERS and self._beside(op) is not None

    def _order(self, op: Op) -> str:
        """The order that an op asks for, with ids on its left."""
        return op.type if op.inputs[0] in self._marks else _FLIPPED[op.type]

    def _first_beyond(self, op: Op) -> set[int]:
        """Of an order of ids and numbers, the first row on the other side of each number: 0, -1 for none of a table, and 1 for any other."""
        ids, numbers = next(name for name in op.inputs if name in self._marks), self._beside(op)
        assert numbers is not None
        new, rows, _ = self._renumbered(ids, self._rows(ids, numbers + _ORDERS[self._order(op)][0]))
        return set(torch.where(new < 0, -1, (rows > 0).to(torch.int64)).flatten().tolist())

    def _splits_behind_zero(self, op: Op) -> bool:
        """Whether an order of ids and numbers tells row 0 from all others."""
        ids, numbers = next(name for name in op.inputs if name in self._marks), self._beside(op)
        assert numbers is not None
        return bool((self._rows(ids, numbers + _ORDERS[self._order(op)][0]) == 1).all())

    def _rows(self, ids: str, numbers: torch.Tensor) -> torch.Tensor:
        """The rows of the data's tables that numbers are beside ids, int64[1, ...]."""
        return numbers - (self._marks[ids][0][:1] & _ADDED)

    def _renumbered(self, ids: str, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The new numbers of rows beside ids, -1 for what is none; the rows, and what the model has added to ids, in the same shape."""
        marks = self._marks[ids][0][:1]
        tables, rows, added = torch.broadcast_tensors(marks >> _TABLES, rows, marks & _ADDED)
        pairs = zip(tables.flatten().tolist(), rows.flatten().tolist(), strict=True)
        new = [self._renumber(self._tables[table - 1], row) for table, row in pairs]
        return torch.tensor(new).reshape(rows.shape), rows, added


def _marked(net: Net, numbers: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, Marks]]:
    """The inputs of a net that are ids, as markers of their tables, which have these numbers."""
    for name, of_columns in numbers.items():
        if name not in net.blobs:
            continue
        shape = [d.at(_BATCH) if isinstance(d, BatchDim) else d for d in net.blobs[name].shape]
        tables = torch.tensor(of_columns if len(of_columns) > 1 else of_columns[0]).expand(shape) << _TABLES
        places = torch.arange(tables.numel()).reshape(shape) % (_MOST_PLACES + 1)
        yield name, (tables + (places << _PLACES), tables + ((_MOST_PLACES - places) << _PLACES))


def _is_constant(op: Op, net: Net) -> bool:
    """Whether an op gives the same whatever a batch has, and how many examples."""
    shape = net.blob(op.outputs[0]).shape
    return not OPS[op.type].needs_batch and all(isinstance(d, int) for d in shape)
