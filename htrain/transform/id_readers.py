"""What a net does with the ids of data besides looking rows up: masks of padding, and what is compared, by the new numbers that a partition gives ids."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from htrain.errors import UsageError
from htrain.net.net import BatchDim, Net, Op
from htrain.ops import OPS
from htrain.ops.base import constant_of
from htrain.ops.builder import NetBuilder

Renumber = Callable[[str, int], int]

_BATCH = 2
_SHIFT = 40  # a marker is the number of a column's table, from 1 on, above it, and below it what a model adds to ids
_LOOKUPS = ("Dedupe", "MaskPlaces")  # which lookups are lowered to
_FLIPPED = {"Greater": "Less", "GreaterOrEqual": "LessOrEqual", "Less": "Greater", "LessOrEqual": "GreaterOrEqual"}
_AGAINST_ZERO = {"Greater": (0, True), "GreaterOrEqual": (1, True), "Less": (1, False), "LessOrEqual": (0, False)}
"""For what an order asks whether an id, which is 0 or more, is 0: beside which number, and whether the answer is no."""


def by_new_numbers(net: Net, columns: Mapping[str, Sequence[str]], renumber: Renumber) -> Net:
    """The net in which ids that are compared with constants are compared by their new numbers, `renumber(table, id)`; -1 is that of no row.

    `columns` are the inputs whose numbers are new, with the table of each column, or of a list. Requires: lowered lookups.
    Raises UsageError for an op that computes anything else of ids.
    """
    return _Readers(net, columns, renumber).rewritten()


class _Readers:
    """`_marks` are values whose numbers are ids, [2, ...], each by its column; `_known` those that no batch changes."""

    def __init__(self, net: Net, columns: Mapping[str, Sequence[str]], renumber: Renumber) -> None:
        self._net, self._renumber = net, renumber
        self._tables = [table for tables in columns.values() for table in tables]
        self._marks = dict(_marked(net, columns))
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
            self._known.update(zip(op.outputs, self._run(op, self._known), strict=True))

    def _passes_on(self, op: Op) -> bool:
        """Whether an op gives ids again, compares ids of one column with each other, or all of a table alike, which new numbers leave as it is."""
        if self._asks_of_all(op):
            return True
        values = {**self._known, **self._marks}
        if any(name not in values for name in op.inputs):
            return False
        if op.type in ("Equal", "NotEqual") and all(name in self._marks for name in op.inputs):
            return bool((self._marks[op.inputs[0]] == self._marks[op.inputs[1]]).all())
        made = dict(zip(op.outputs, self._run(op, values), strict=True))
        if not all(self._are_ids(value) for value in made.values()):
            return False
        self._marks.update(made)
        return True

    def _asks_of_all(self, op: Op) -> bool:
        """Whether an op asks for an order of ids and a number that none of their tables has a row of."""
        ids = next((name for name in op.inputs if name in self._marks), "")
        other = next((name for name in op.inputs if name in self._known), "")
        if op.type not in _FLIPPED or not ids or not other or self._known[other].is_floating_point():
            return False
        rows, _ = self._rows(ids, self._known[other])
        return all(new < 0 for new in self._new(ids, rows))

    def _rows(self, ids: str, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of the data's tables that numbers are beside ids, and what a model has added to those, int64[1, ...]."""
        rest = self._marks[ids][:1] & ((1 << _SHIFT) - 1)
        return numbers.to(torch.int64) - rest, rest

    def _new(self, ids: str, rows: torch.Tensor) -> list[int]:
        """The new numbers of rows, -1 for what is none."""
        tables, rows = torch.broadcast_tensors(self._marks[ids][:1] >> _SHIFT, rows)
        return [
            self._renumber(self._tables[k - 1], row)
            for k, row in zip(tables.flatten().tolist(), rows.flatten().tolist(), strict=True)
        ]

    def _are_ids(self, value: torch.Tensor) -> bool:
        numbers = value >> _SHIFT if value.dtype == torch.int64 else torch.zeros(1)
        return bool(((numbers >= 1) & (numbers <= len(self._tables))).all())

    def _run(self, op: Op, values: dict[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        return OPS[op.type].run(op, [values[name] for name in op.inputs], _BATCH)

    def _compare(self, op: Op) -> None:
        """Write a comparison of ids with constants. Raises UsageError for what is none."""
        found = self._compared(op)
        if found is None:
            raise UsageError(
                f"{op.label} computes with ids themselves, besides looking rows up, and a partition gives them other numbers: compare them with those of rows "
                "(ids != 0), or with each other, give the model what it computes of them as another input, or hold tables another way (--sparse-sync)"
            )
        ids, rows, negated = found
        new = torch.tensor(self._new(ids, rows))
        rest = self._rows(ids, rows)[1].expand(rows.shape)
        original = rows + rest
        wanted = torch.where(new < 0, -1, new + rest.flatten()).reshape(rows.shape)
        if wanted.dim() <= self._marks[ids].dim() and len(wanted.unique()) == len(original.unique()) == 1:
            wanted, original = wanted.flatten()[0], original.flatten()[0]
        constant = self._builder.add("Constant", (), attrs={"value": constant_of(wanted)}, module=op.module)[0]
        attrs = {"original": constant_of(original)}
        if negated:
            same = self._builder.add("IsRow", (ids, constant), attrs=attrs, module=op.module)
            self._builder.add("Not", same, module=op.module, outputs=op.outputs)
        else:
            self._builder.add("IsRow", (ids, constant), attrs=attrs, module=op.module, outputs=op.outputs)

    def _compared(self, op: Op) -> tuple[str, torch.Tensor, bool] | None:
        """The ids that an op compares, with which rows of their tables, and whether it asks for others than these."""
        ids = next(name for name in op.inputs if name in self._marks)
        rows, rest = self._rows(ids, torch.zeros(()))
        if op.type == "Not" or (op.type == "Cast" and op.attrs["to"] == "bool"):
            return None if rest.any() else (ids, rows, op.type == "Cast")
        other = next((name for name in op.inputs if name in self._known), "")
        if len(op.inputs) != 2 or not other or self._known[other].is_floating_point():
            return None
        rows, _ = self._rows(ids, self._known[other])
        if op.type in ("Equal", "NotEqual"):
            return ids, rows, op.type == "NotEqual"
        type = _FLIPPED.get(op.type, "") if ids == op.inputs[1] else op.type
        beside, negated = _AGAINST_ZERO.get(type, (None, False))
        return (ids, torch.zeros_like(rows), negated) if beside is not None and bool((rows == beside).all()) else None


def _marked(net: Net, columns: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The inputs of a net that are ids, as markers of their columns."""
    first = 1
    for name, tables in columns.items():
        numbers = torch.arange(first, first + len(tables)) << _SHIFT
        first += len(tables)
        if name in net.blobs:
            shape = [d.at(_BATCH) if isinstance(d, BatchDim) else d for d in net.blobs[name].shape]
            yield name, (numbers if len(tables) > 1 else numbers.reshape(())).expand(shape).clone()


def _is_constant(op: Op, net: Net) -> bool:
    """Whether an op gives the same whatever a batch has, and how many examples."""
    shape = net.blob(op.outputs[0]).shape
    return not OPS[op.type].needs_batch and all(isinstance(d, int) for d in shape)
