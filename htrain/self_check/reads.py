"""Where a net reads rows by number, and which numbers lead to rows that exist."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from htrain.net.net import BatchDim, Net, Op
from htrain.net.slices import leading_to, led_from
from htrain.ops import OPS

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Read:
    """An op that reads rows 0 to `num_rows` - 1 by the blob `ids`."""

    op: Op
    ids: str
    num_rows: int


class RowReads:
    """The reads of a net whose ids are no constants and come from no table, and the ops that lead to them."""

    def __init__(self, net: Net, parameters: Tensors) -> None:
        self.net = net
        self._parameters = parameters
        tabled = _behind_tables(net)
        reads = (_read(net, op) for op in net.ops if OPS[op.type].indexed)
        self.reads = [read for read in reads if read and read.ids not in tabled]
        self._by_op = {id(read.op): read for read in self.reads}
        self._ops = [net.ops[place] for place in leading_to(net.ops, [read.ids for read in self.reads])]

    @property
    def sizes(self) -> set[int]:
        """The numbers of rows of what is read by position."""
        return {read.num_rows for read in self.reads}

    def misses(self, inputs: Tensors, count: int) -> torch.Tensor:
        """bool[count]: the examples of a batch that read a row which does not exist."""
        known = {**self._parameters, **inputs}
        missed = torch.zeros(count, dtype=torch.bool)
        for op in self._ops:
            read = self._by_op.get(id(op))
            arguments = [known[name] for name in op.inputs]
            if read:
                missed |= _missed(known[read.ids], read.num_rows, inputs, count)
                arguments[1] = known[read.ids].clamp(0, max(read.num_rows - 1, 0))
            known.update(zip(op.outputs, OPS[op.type].run(op, arguments, count), strict=True))
        for read in self.reads:
            missed |= _missed(known[read.ids], read.num_rows, inputs, count)
        return missed


def _read(net: Net, op: Op) -> Read | None:
    """None where the ids are a constant's, or count examples."""
    axis = op.attrs.get("axis", 0)
    assert isinstance(axis, int)
    size = net.blob(op.inputs[0]).shape[axis]
    constants = {output for other in net.ops if other.type == "Constant" for output in other.outputs}
    return None if isinstance(size, BatchDim) or op.inputs[1] in constants else Read(op, op.inputs[1], size)


def _behind_tables(net: Net) -> set[str]:
    """The tables, and the blobs that depend on one."""
    return led_from(net.ops, (name for name, parameter in net.parameters.items() if parameter.kind == "table"))


def _missed(ids: torch.Tensor, num_rows: int, inputs: Tensors, count: int) -> torch.Tensor:
    """Which of `count` examples have an id in `ids` that is no row; all, where it cannot be told whose an id is."""
    wrong = (ids < 0) | (ids >= num_rows)
    if not wrong.any():
        return torch.zeros(count, dtype=torch.bool)
    entries = wrong.reshape(wrong.shape[0], -1).any(1) if wrong.dim() else wrong.reshape(1)
    owners = _owners(len(entries), inputs, count)
    if owners is None:
        return torch.ones(count, dtype=torch.bool)
    return torch.zeros(count, dtype=torch.bool).index_put((owners[entries],), torch.tensor(True))


def _owners(num_entries: int, inputs: Tensors, count: int) -> torch.Tensor | None:
    """The example of each entry along the first dimension."""
    for name, starts in inputs.items():
        if name.endswith("_offsets") and len(inputs[name.removesuffix("_offsets")]) == num_entries:
            return torch.searchsorted(starts, torch.arange(num_entries), right=True) - 1
    return torch.arange(num_entries) // (num_entries // count) if num_entries and num_entries % count == 0 else None


def columns_of(inputs: Tensors, names: Sequence[str]) -> dict[str, int]:
    """How many numbers an example has in each of the inputs `names`; a list of any length has one."""
    return {name: 1 if f"{name}_offsets" in inputs else max(1, inputs[name][:1].numel()) for name in names}
