"""A random batch for a model: ids that have rows, some of them often; lengths, lists and numbers of every kind that its inputs take."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from htrain.net.net import Blob, Net
from htrain.self_check.reads import RowReads, Tensors, columns_of

_OFTEN = (0, 1, 2)  # ids that come several times in a batch
_SPARE = 4  # examples drawn for each that is kept
_MOST_COLUMNS = 128  # of an input: of more, all have the limit of the smallest table
_LONGEST_LIST = 3


@dataclass(frozen=True)
class Drawing:
    """How a batch is drawn. `tame`: numbers between 0 and 1 and no empty lists, for models that divide or take logarithms."""

    count: int
    tame: bool
    generator: torch.Generator

    def below(self, limit: int, shape: Sequence[int]) -> torch.Tensor:
        """Random whole numbers from 0 to `limit` - 1, int64 of a shape; zeros where `limit` is 0."""
        return torch.randint(0, max(limit, 1), tuple(shape), generator=self.generator)


class Inputs:
    """The inputs of a net and how many rows each of their numbers may address, found once by trying."""

    def __init__(self, net: Net, example: Tensors, parameters: Tensors, *, often: Collection[int]) -> None:
        self._net, self._example = net, example
        self._reads = RowReads(net, parameters)
        self._often = sorted({*_OFTEN, *often})
        self._whole = [
            n
            for n in net.inputs
            if "int" in net.blobs[n].dtype and not n.endswith("_offsets") and not _is_length(n, net)
        ]
        self._limits = self._find_limits()

    def draw(self, drawing: Drawing) -> dict[str, torch.Tensor]:
        """A batch of `drawing.count` examples, every one of which reads rows that exist as far as that can be found out."""
        bags = [name for name in self._net.inputs if f"{name}_offsets" in self._net.inputs]
        spare = Drawing(drawing.count * (1 if bags else _SPARE), drawing.tame, drawing.generator)
        drawn = self._drawn(spare)
        good = torch.nonzero(~self._reads.misses(drawn, spare.count)).reshape(-1)
        if bags:  # lists lie one behind the other: a batch of them is taken whole
            return drawn if len(good) == drawing.count else self.zeros(drawing.count)
        if not len(good):
            return self.zeros(drawing.count)
        kept = good[torch.arange(drawing.count) % len(good)]
        return {name: value[kept] for name, value in drawn.items()}

    def zeros(self, count: int) -> dict[str, torch.Tensor]:
        """Examples that read row 0 everywhere, in lists of one id."""
        return {name: self._one(self._net.blobs[name], count) for name in self._net.inputs}

    def _one(self, blob: Blob, count: int) -> torch.Tensor:
        if blob.name.endswith("_offsets"):
            return torch.arange(count)
        return torch.zeros((count, *blob.shape[1:]), dtype=getattr(torch, blob.dtype))  # type: ignore[arg-type]

    # -- limits ------------------------------------------------------------------------------------------------------

    def _find_limits(self) -> dict[str, torch.Tensor | None]:
        """For each input of whole numbers the first number, by column, that has no row; None where it reads none."""
        most = max(self._reads.sizes, default=0)
        candidates = sorted(
            {s - 1 for s in self._reads.sizes if s} | {(1 << bit) - 1 for bit in range(1, most.bit_length())}
        )
        columns = columns_of(self.zeros(2), self._whole)
        return {name: self._limits_of(name, columns[name], candidates) for name in self._whole}

    def _limits_of(self, name: str, columns: int, candidates: Sequence[int]) -> torch.Tensor | None:
        if not candidates:
            return None
        together = columns > _MOST_COLUMNS
        tried = 1 if together else columns
        inputs = self.zeros(tried * len(candidates))
        blob, flat = inputs[name], inputs[name].reshape(tried * len(candidates), -1)
        for column in range(tried):
            rows = slice(column * len(candidates), (column + 1) * len(candidates))
            values = torch.tensor(candidates, dtype=blob.dtype)
            flat[rows, slice(None) if together else column] = values[:, None] if together else values
        missed = self._reads.misses({**inputs, name: flat.reshape(blob.shape)}, len(flat)).reshape(tried, -1)
        if not missed.any():
            return None
        reach = (missed.cumsum(1) == 0).sum(1)  # candidates below the first one that misses
        limits = torch.tensor([0, *candidates])[reach] + 1
        return limits.expand(columns) if together else limits

    # -- drawing -----------------------------------------------------------------------------------------------------

    def _drawn(self, drawing: Drawing) -> dict[str, torch.Tensor]:
        drawn: dict[str, torch.Tensor] = {}
        for name in self._net.inputs:
            if f"{name}_offsets" in self._net.inputs:
                sizes = drawing.below(_LONGEST_LIST, (drawing.count,)) + drawing.tame
                drawn[f"{name}_offsets"] = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)[:-1]])
                drawn[name] = self._numbers(name, (int(sizes.sum()),), drawing)
            elif name not in drawn:
                shape = (drawing.count, *(d for d in self._net.blobs[name].shape[1:] if isinstance(d, int)))
                drawn[name] = self._numbers(name, shape, drawing)
        for name, padded, width in _lengths(self._net):
            drawn[name] = (drawing.below(width + 1 - drawing.tame, (drawing.count,)) + drawing.tame).to(
                drawn[name].dtype
            )
            beyond = torch.arange(width) >= drawn[name][:, None]
            drawn[padded] = drawn[padded].masked_fill(beyond, 0)
        return drawn

    def _numbers(self, name: str, shape: Sequence[int], drawing: Drawing) -> torch.Tensor:
        blob = self._net.blobs[name]
        dtype = getattr(torch, blob.dtype)
        if name in self._whole:
            return self._ids(name, shape, drawing).to(dtype)
        if blob.dtype == "bool":
            return drawing.below(2, shape).bool()
        numbers = (
            torch.rand(shape, generator=drawing.generator)
            if drawing.tame
            else torch.randn(shape, generator=drawing.generator)
        )
        return numbers.to(dtype)

    def _ids(self, name: str, shape: Sequence[int], drawing: Drawing) -> torch.Tensor:
        """Half of them among few, so that rows are read several times, padding rows too."""
        limits = self._limits.get(name)
        if limits is None:
            seen = self._example.get(name)
            limits = torch.tensor([max(int(seen.max()) + 1 if seen is not None and seen.numel() else 1, 2)])
        limits = limits.reshape(1, -1)
        wide = torch.rand(
            (shape[0], int(torch.tensor(shape[1:]).prod())), generator=drawing.generator, dtype=torch.float64
        )
        anywhere = (wide * limits).long()
        few = torch.tensor(self._often)[drawing.below(len(self._often), wide.shape)]
        choose_few = (drawing.below(2, wide.shape) == 0) & (few < limits)
        return torch.where(choose_few, few, anywhere).reshape(tuple(shape))


def _lengths(net: Net) -> Iterator[tuple[str, str, int]]:
    """Inputs that say how many numbers of another one count: their name, the other's, and its width."""
    for name in net.inputs:
        if _is_length(name, net):
            padded = name.removesuffix("_length")
            width = net.blobs[padded].shape[1]
            assert isinstance(width, int)
            yield name, padded, width


def _is_length(name: str, net: Net) -> bool:
    padded = name.removesuffix("_length")
    return (
        padded != name
        and padded in net.inputs
        and len(net.blobs[padded].shape) == 2
        and len(net.blobs[name].shape) == 1
    )
