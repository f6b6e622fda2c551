"""What trainers tell each other of their caches, against the same on one heap."""

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from htrain.executor.transport.peers import Ids, Peers, Rows


class Heap:
    """A collective of trainers that are called in turn: what each of `said` would have given is known beforehand."""

    def __init__(self, rank: int, said: list[list[torch.Tensor]]) -> None:
        self.rank, self.size = rank, len(said)
        self._said = said
        self._turn = 0

    def all_gather(self, own: torch.Tensor, sizes: Sequence[int] | None = None) -> list[torch.Tensor]:
        self._turn += 1
        everybody = [said[self._turn - 1] for said in self._said]
        assert torch.equal(everybody[self.rank], own)
        assert (sizes or [len(own)] * self.size) == [len(each) for each in everybody]
        return everybody

    def all_reduce(self, flat: torch.Tensor) -> None:
        flat.copy_(torch.stack(self.all_gather(flat.clone())).sum(0))

    def broadcast(self, flat: torch.Tensor) -> None:
        flat.copy_(self._said[0][0])


Parts = list[list[int]]


@st.composite
def parts_of_all(draw: st.DrawFn) -> list[Parts]:
    """The parts of up to three trainers, as many on each."""
    count = draw(st.integers(1, 4))
    ids = st.lists(st.integers(0, 2**40), max_size=5)
    return draw(st.lists(st.lists(ids, min_size=count, max_size=count), min_size=1, max_size=3))


@given(parts_of_all())
def test_everybody_hears_all_parts(trainers: list[Parts]) -> None:
    counts = [torch.tensor([len(part) for part in parts]) for parts in trainers]
    flat = [torch.tensor([i for part in parts for i in part], dtype=torch.int64) for parts in trainers]
    for rank, parts in enumerate(trainers):
        peers = Peers(Heap(rank, [list(said) for said in zip(counts, flat, strict=True)]))
        found = peers.gather([np.array(part, np.int64) for part in parts])
        assert [[ids.tolist() for ids in of_part] for of_part in found] == [
            list(of_part) for of_part in zip(*trainers, strict=True)
        ]


def test_without_parts_or_peers_nothing_is_exchanged() -> None:
    ids: Ids = np.arange(3)
    rows: Rows = np.ones((3, 2), np.float32)
    alone = Peers(None)
    assert alone.is_first
    assert alone.gather([ids]) == [[ids]]
    assert alone.share([rows])[0] is rows
    assert alone.average([rows])[0] is rows
    nothing = Peers(Heap(1, [[], []]))
    assert nothing.gather([]) == []
    assert not nothing.is_first
    assert nothing.average([rows[:0]])[0].shape == (0, 2)


def test_rows_are_those_of_the_first_or_the_mean_of_all() -> None:
    first = [np.arange(6, dtype=np.float32).reshape(3, 2), np.ones((1, 5), np.float32)]
    second = [np.zeros((3, 2), np.float32), np.full((1, 5), 3.0, np.float32)]
    said = [[torch.from_numpy(np.concatenate([a.reshape(-1) for a in arrays]))] for arrays in (first, second)]
    for rank, own in enumerate((first, second)):
        shared = Peers(Heap(rank, said)).share(own)
        assert all((a == b).all() and a.shape == b.shape for a, b in zip(shared, first, strict=True))
        means = Peers(Heap(rank, said)).average(own)
        assert all((m == (a + b) / 2).all() for m, a, b in zip(means, first, second, strict=True))
