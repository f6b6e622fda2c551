"""AllReduce and AllGather among threads, each a trainer: sums and lists of what everybody gave."""

import shutil
import threading
from collections.abc import Callable, Sequence

import psutil
import pytest
import torch

from htrain.errors import PeerLost
from htrain.executor.host.sockets import sockets_folder
from htrain.executor.transport.collective import Collective, Connector, buckets_of, gathered
from htrain.executor.transport.port import Network
from htrain.net.net import Net, Op
from tests.support.ports import SCHEMES

TRAINERS = ["trainer:0:0", "trainer:1:0", "trainer:2:0"]


def together(
    work: Callable[[int, Collective], object],
    *,
    scheme: str = "inproc",
    purposes: Sequence[str] = ("test",),
    deadline_seconds: float = 20.0,
) -> list[object]:
    """`work` of each trainer, all at once, for every purpose at the same time; what each gave, or raised, in order of purpose and trainer."""
    shared = Network("inproc")
    folder = sockets_folder() if scheme == "ipc" else None
    networks = [shared] * len(TRAINERS) if scheme == "inproc" else [Network(scheme, folder=folder) for _ in TRAINERS]
    connectors = [Connector(t, TRAINERS, n, deadline_seconds) for t, n in zip(TRAINERS, networks, strict=True)]
    book = {name: address for connector in connectors for name, address in connector.endpoints.items()}
    found: list[object] = [None] * len(TRAINERS) * len(purposes)

    def run(rank: int, number: int) -> None:
        place = number * len(TRAINERS) + rank
        try:
            found[place] = work(rank, connectors[rank](book, purposes[number]))
        except Exception as error:
            found[place] = error

    threads = [
        threading.Thread(target=run, args=(rank, n)) for n in range(len(purposes)) for rank in range(len(TRAINERS))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for network in {id(n): n for n in networks}.values():
        network.close()
    if folder:
        shutil.rmtree(folder)
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
def test_allreduce_gives_everybody_the_same_sum(scheme: str) -> None:
    def work(rank: int, collective: Collective) -> torch.Tensor:
        flat = torch.arange(10_000, dtype=torch.float32) * (rank + 1)
        collective.all_reduce(flat)
        return flat

    found = together(work, scheme=scheme)
    assert all(isinstance(flat, torch.Tensor) and torch.equal(flat, torch.arange(10_000.0) * 6) for flat in found)


def test_allgather_brings_ids_and_rows_of_different_numbers_and_widths() -> None:
    """Trainer r has r ids of the first table, which is of width 2, and 2 of the second, of width 1."""

    def work(rank: int, collective: Collective) -> list[torch.Tensor]:
        ids = torch.arange(rank) + 10 * rank
        other = torch.tensor([rank, 7])
        return gathered(collective, [ids, ids[:, None] * torch.ones(1, 2), other, 0.5 * other[:, None]])

    first, second = torch.tensor([10, 20, 21]), torch.tensor([0, 7, 1, 7, 2, 7])
    for found in together(work):
        assert isinstance(found, list)
        wanted = [first, first[:, None] * torch.ones(1, 2), second, 0.5 * second[:, None]]
        assert all(torch.equal(seen, want) for seen, want in zip(found, wanted, strict=True))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_collectives_for_two_purposes_do_not_meet(scheme: str) -> None:
    def work(rank: int, collective: Collective) -> list[float]:
        flat = torch.full((1000,), float(rank))
        for _ in range(20):
            collective.broadcast(flat)
            flat += 1
        return flat.tolist()

    for found in together(work, scheme=scheme, purposes=("rows", "gradients")):
        assert found == [20.0] * 1000


def test_a_trainer_that_never_comes_is_an_error_within_the_deadline() -> None:
    network = Network("inproc")
    connector = Connector("trainer:0:0", TRAINERS, network, 1.0)
    with pytest.raises(PeerLost, match="AllReduce did not end within 1 s, or another trainer is gone"):
        connector({}, "test")
    network.close()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_everybody_has_the_parts_of_all_whatever_their_lengths(scheme: str) -> None:
    lengths = [0, 3, 50_000]

    def work(rank: int, collective: Collective) -> list[torch.Tensor]:
        own = torch.full((lengths[rank], 2), float(rank))
        return [part for _ in range(3) for part in collective.all_gather(own, lengths)]

    for found in together(work, scheme=scheme):
        assert isinstance(found, list)
        assert [part.tolist() for part in found] == [[[float(r)] * 2] * n for r, n in enumerate(lengths)] * 3


def test_a_trainer_that_leaves_before_a_gather_is_an_error_within_the_deadline() -> None:
    def work(rank: int, collective: Collective) -> list[torch.Tensor]:
        return collective.all_gather(torch.ones(4)) if rank else []

    first, *others = together(work, deadline_seconds=2.0)
    assert first == []
    assert all(isinstance(error, PeerLost) for error in others)


def test_the_store_of_trainers_on_several_hosts_listens_at_their_address_alone() -> None:
    network = Network("tcp")
    before = listening()
    connector = Connector(TRAINERS[0], TRAINERS, network, 20.0)
    (address,) = connector.endpoints.values()
    assert listening() - before == {address}
    network.close()


def listening() -> set[str]:
    found = psutil.Process().net_connections("tcp")
    return {f"{each.laddr.ip}:{each.laddr.port}" for each in found if each.status == psutil.CONN_LISTEN}


def test_what_two_collectives_of_a_step_read_is_there_for_both() -> None:
    """A weight and a table that are added to each other have one gradient: it was gone when it was to be gathered."""
    ops = (
        Op("AllReduce", ("a_grad", "b_grad"), ("a_sum", "b_sum")),
        Op("AllGather", ("ids", "a_grad", "more", "a_grad"), ("1", "2", "3", "4")),
    )
    first, second = buckets_of(Net("trainer", ops, (), (), {}, {}))
    assert (first.frees, second.frees) == ({"b_grad"}, {"ids", "a_grad", "more"})
