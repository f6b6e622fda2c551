"""A worker from outside against plain PyTorch: lookups, steps, announced batches, several workers (HET 3)."""

import copy
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from harness import RowWiseAdagrad
from serving import Kind, Serve
from torch import nn

from htrain.client.modules import HetEmbedding, HetEmbeddingBag
from htrain.client.tables import Tables
from htrain.errors import DataError, PeerLost, RunError, UsageError

ROWS, WIDTH = {"a": 60, "b": 45, "wide": 60}, {"a": 4, "b": 4, "wide": 1}
Optimizer = Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]


def tables_of(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: (0.3 * random.standard_normal((rows, WIDTH[name]))).astype(np.float32) for name, rows in ROWS.items()}


def reference_optimizer(kind: Kind) -> Optimizer:
    return {
        "sgd": lambda weights: torch.optim.SGD(weights, kind.lr),
        "adagrad": lambda weights: torch.optim.Adagrad(weights, kind.lr, eps=kind.eps),
        "rowwise_adagrad": lambda weights: RowWiseAdagrad(weights, kind.lr, kind.eps),
    }[kind.optimizer]


class Model(nn.Module):
    """Two lookups of one table, a bag, a table of width 1; `made` are the embeddings."""

    def __init__(self, first: nn.Module, bag: nn.Module, wide: nn.Module) -> None:
        super().__init__()
        self.first, self.bag, self.wide = first, bag, wide
        self.linear = nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor, others: torch.Tensor, bags: torch.Tensor) -> torch.Tensor:
        deep = self.first(ids).mean(1) * self.first(others).sum(1) + self.bag(bags)
        return torch.tanh(self.linear(deep)).squeeze(1) + self.wide(ids).sum((1, 2))


def plain(tables: dict[str, np.ndarray]) -> Model:
    torch.manual_seed(1)
    modules = {
        name: nn.Embedding.from_pretrained(torch.from_numpy(t.copy()), freeze=False) for name, t in tables.items()
    }
    bag = nn.EmbeddingBag.from_pretrained(torch.from_numpy(tables["b"].copy()), freeze=False, mode="sum")
    return Model(modules["a"], bag, modules["wide"])


def served(tables: Tables) -> Model:
    torch.manual_seed(1)
    return Model(HetEmbedding(tables, "a"), HetEmbeddingBag(tables, "b", mode="sum"), HetEmbedding(tables, "wide"))


def batches(
    count: int, size: int = 6, seed: int = 3
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
    random = np.random.default_rng(seed)

    def ids(rows: int, width: int) -> torch.Tensor:
        return torch.from_numpy(np.minimum(random.zipf(1.4, (size, width)), rows) - 1)

    return [
        (ids(60, 3), ids(60, 2), ids(45, 5), torch.from_numpy(random.standard_normal(size).astype(np.float32)))
        for _ in range(count)
    ]


def loss_of(model: Model, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    *inputs, label = batch
    return ((model(*inputs) - label) ** 2).mean()


def plain_losses(data: Sequence[tuple[torch.Tensor, ...]], kind: Kind) -> tuple[list[float], Model]:
    model = plain(tables_of())
    weights = [model.first.weight, model.bag.weight, model.wide.weight]
    dense, sparse = torch.optim.SGD(model.linear.parameters(), 0.05), reference_optimizer(kind)(weights)
    losses = []
    for batch in data:
        loss = loss_of(model, batch)
        for optimizer in (dense, sparse):
            optimizer.zero_grad()
        loss.backward()
        for optimizer in (dense, sparse):
            optimizer.step()
        losses.append(float(loss.detach()))
    return losses, model


def trained(tables: Tables, data: Sequence[tuple[torch.Tensor, ...]], *, announced: int = 0) -> list[float]:
    model = served(tables)
    dense = torch.optim.SGD(model.linear.parameters(), 0.05)
    tables.step_after(dense)
    losses, ahead = [], 0
    for number, batch in enumerate(data):
        while announced and ahead < min(len(data), number + announced):
            ids, others, bags, _ = data[ahead]
            tables.announce({"a": [ids, others], "b": bags, "wide": ids})
            ahead += 1
        loss = loss_of(model, batch)
        dense.zero_grad()
        loss.backward()
        dense.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize(
    ("optimizer", "staleness", "capacity", "announced"),
    [
        *(
            (optimizer, 0, 1000, announced)
            for optimizer in ("sgd", "adagrad", "rowwise_adagrad")
            for announced in (0, 4)
        ),
        *(("sgd", *rest) for rest in ((3, 1000, 0), (3, 1000, 1), (100, 20, 4), (-1, 1000, 4))),
    ],
)
def test_one_worker_follows_plain_pytorch(optimizer: str, staleness: int, capacity: int, announced: int) -> None:
    """A lone worker reads its own updates, whatever its staleness; those that leave together are one step, which for SGD is the same."""
    kind = Kind(staleness, capacity, optimizer=optimizer, lr=0.02)
    data = batches(200)
    wanted, model = plain_losses(data, kind)
    with Serve(tables_of(), kind) as servers:
        with servers.connect() as tables:
            if announced != 1:
                tables.warm()
            losses = trained(tables, data, announced=announced)
        np.testing.assert_allclose(losses, wanted, rtol=1e-5, atol=1e-5)
        for name, module in (("a", model.first), ("b", model.bag), ("wide", model.wide)):
            np.testing.assert_allclose(servers.table(name), module.weight.detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_without_staleness_workers_follow_their_joint_batch(workers: int, optimizer: str) -> None:
    """Weights beside the tables are not trained here: DistributedDataParallel does that (tests/system/test_serve.py)."""
    kind = Kind(0, optimizer=optimizer, lr=0.05)
    shares = [batches(60, seed=10 + worker) for worker in range(workers)]
    reference = plain(tables_of())
    sparse = reference_optimizer(kind)([reference.first.weight, reference.bag.weight, reference.wide.weight])
    wanted = []
    for step in range(60):
        sparse.zero_grad()
        losses = [loss_of(reference, share[step]) for share in shares]
        torch.stack(losses).mean().backward()
        sparse.step()
        wanted.append([float(loss.detach()) for loss in losses])
    with Serve(tables_of(), kind) as servers, ThreadPoolExecutor(workers) as pool:
        joined = [servers.connect(f"w{worker}", gradient_scale=1 / workers) for worker in range(workers)]
        joined[0].warm()
        torch.manual_seed(1)
        models = [served(tables) for tables in joined]
        all_here = threading.Barrier(workers)

        def work(worker: int) -> list[float]:
            tables, losses = joined[worker], []
            for number, batch in enumerate(shares[worker]):
                loss = loss_of(models[worker], batch)
                if number == 0:
                    all_here.wait(30)
                loss.backward()
                tables.step()
                losses.append(float(loss.detach()))
            tables.close()
            return losses

        seen = list(pool.map(work, range(workers)))
        np.testing.assert_allclose(np.transpose(seen), wanted, rtol=1e-5, atol=1e-5)
        for name, module in (("a", reference.first), ("b", reference.bag), ("wide", reference.wide)):
            np.testing.assert_allclose(servers.table(name), module.weight.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_no_update_is_lost_or_doubled_over_eight_workers() -> None:
    """SGD on a loss whose gradient is known: what the tables have moved by is the sum over all workers, whoever joins or leaves in the middle."""
    before = tables_of()
    kind = Kind(5, capacity=15, lr=1.0)
    with Serve(before, kind) as servers, ThreadPoolExecutor(8) as pool:

        def work(worker: int) -> np.ndarray:
            random, total = np.random.default_rng(worker), np.zeros(60)
            for _ in range(2):  # leaves, and comes back
                with servers.connect(f"w{worker}") as tables:
                    embedding = HetEmbedding(tables, "a")
                    for number in range(40):
                        ids = torch.from_numpy(np.minimum(random.zipf(1.3, 12), 60) - 1)
                        embedding(ids).sum().backward()
                        np.add.at(total, ids.numpy(), 1.0)
                        tables.step()
                        if number % 15 == 14:
                            tables.flush()
            return total

        total = sum(pool.map(work, range(8)))
        np.testing.assert_allclose(servers.table("a"), before["a"] - total[:, None], rtol=1e-4, atol=1e-3)
        assert servers.members[0].counts.joined == servers.members[0].counts.left == 16


def test_gradients_of_several_backward_passes_are_one_step() -> None:
    kind = Kind(0, optimizer="adagrad", lr=0.1)
    data = batches(24)
    reference = plain(tables_of())
    sparse = reference_optimizer(kind)([reference.first.weight, reference.bag.weight, reference.wide.weight])
    with Serve(tables_of(), kind) as servers, servers.connect() as tables:
        model = served(tables)
        for number, batch in enumerate(data):
            for each in (model, reference):
                loss_of(each, batch).backward()
            if number % 3 == 2:
                tables.step()
                sparse.step()
                sparse.zero_grad()
        tables.flush()
        np.testing.assert_allclose(servers.table("a"), reference.first.weight.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_evaluation_reads_what_the_servers_have_and_trains_nothing() -> None:
    with Serve(tables_of(), Kind(100)) as servers, servers.connect() as tables:
        tables.warm()
        embedding, bag = HetEmbedding(tables, "a"), HetEmbeddingBag(tables, "b", mode="max")
        ids = torch.tensor([[1, 2], [2, 3]])
        embedding(ids).sum().backward()
        tables.step()
        assert tables.unsent == 3
        with torch.no_grad():
            seen = embedding(ids)
        assert tables.unsent == 0
        wanted = tables_of()["a"][ids.numpy()] - 0.1 * np.array([[[1], [2]], [[2], [1]]])
        np.testing.assert_allclose(seen.numpy(), wanted, rtol=1e-6)
        np.testing.assert_allclose(seen.numpy(), servers.table("a")[ids.numpy()])
        bag.eval()
        bags = torch.tensor([[1, 2, 44], [0, 0, 5]])
        torch.testing.assert_close(
            bag(bags), nn.EmbeddingBag.from_pretrained(torch.from_numpy(tables_of()["b"]), mode="max")(bags)
        )
        counts = tables.counts
        assert counts["hits"] == 0
        assert tables.counts["unsent"] == 0


def test_rows_whose_loss_is_not_asked_for_are_let_go() -> None:
    with Serve(tables_of(), Kind(0)) as servers, servers.connect() as tables:
        tables.warm()
        embedding = HetEmbedding(tables, "a")
        for _ in range(3):
            embedding(torch.tensor([5, 6]))
            tables.step()
        assert tables.unsent == 0
        np.testing.assert_array_equal(servers.table("a"), tables_of()["a"])


@pytest.mark.parametrize("padding", [None, 2])
def test_bags_are_those_of_torch(padding: int | None) -> None:
    weights = torch.from_numpy(tables_of()["b"].copy())
    with Serve(tables_of(), Kind(0, lr=1.0)) as servers, servers.connect() as tables:
        for mode in ("sum", "mean"):
            before = torch.from_numpy(servers.table("b"))
            reference = nn.EmbeddingBag.from_pretrained(
                before.clone(), freeze=False, mode=mode, padding_idx=padding, include_last_offset=True
            )
            bag = HetEmbeddingBag(tables, "b", mode=mode, padding_idx=padding, include_last_offset=True)  # type: ignore[arg-type]
            ids, offsets = torch.tensor([1, 2, 2, 4, 1, 7]), torch.tensor([0, 3, 3, 6])
            scales = torch.rand(6) if mode == "sum" else None
            for each in (bag, reference):
                (each(ids, offsets, scales) ** 2).sum().backward()
            tables.step()
            tables.flush()
            np.testing.assert_allclose(
                servers.table("b"), (before - reference.weight.grad).numpy(), rtol=1e-5, atol=1e-6
            )
        assert not torch.equal(weights, before)


def test_what_cannot_be_says_what_and_what_to_do() -> None:
    with Serve(tables_of(), Kind(100)) as servers, servers.connect() as tables:
        embedding = HetEmbedding(tables, "a")
        with pytest.raises(DataError, match=r"table 'a': id 60 is out of range, it has 60 rows"):
            embedding(torch.tensor([0, 60]))
        with pytest.raises(DataError, match=r"table 'a': ids are float32, want integers"):
            embedding(torch.tensor([0.5]))
        for wrong, kind in (([1, 2], "list"), (np.array([1]), "ndarray")):
            for module in (embedding, HetEmbeddingBag(tables, "a"), HetEmbedding(tables, "a").eval()):
                with pytest.raises(DataError, match=f"table 'a': ids are of type {kind}, want a tensor of integers"):
                    module(wrong)
        with pytest.raises(DataError, match=r"no table 'c' is served; there are wide, a, b"):
            HetEmbedding(tables, "c")
        embedding(torch.tensor([1]))
        with pytest.raises(RunError, match="flush between a lookup and its step: call"):
            tables.flush()
        tables.step()
        tables.announce({"a": torch.tensor([3])})
        with pytest.raises(DataError, match="with other ids than were announced"):
            embedding(torch.tensor([4]))
        (embedding(torch.tensor([3])) * torch.inf).sum().backward()
        with pytest.raises(RunError, match="gradients of a, summed for each row, are not finite"):
            tables.step()
        assert embedding(torch.empty(0, dtype=torch.int64)).shape == (0, 4)
        tables.step()
        for _ in range(1000):
            embedding(torch.tensor([3]))
        with pytest.raises(RunError, match="1000 lookups were not followed by a step"):
            embedding(torch.tensor([3]))
    with pytest.raises(PeerLost, match="has left its servers"):
        embedding(torch.tensor([1]))


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, 3e38])
def test_a_scale_that_makes_gradients_infinite_is_refused_and_no_row_is_written(scale: float, staleness: int) -> None:
    """As GradScaler's is, where its own scale has come to 0. The step after it trains as if it had not been."""
    arrays = tables_of()
    with Serve(arrays, Kind(staleness=staleness)) as servers, servers.connect() as tables:
        embedding = HetEmbedding(tables, "a")
        (10 * embedding(torch.tensor([3, 50])).sum()).backward()
        said = r"gradients of a, summed for each row, times \S+, are not finite: train with smaller rates"
        with pytest.raises(RunError, match=said):
            tables.step(scale)
        embedding(torch.tensor([3])).sum().backward()
        tables.step(scale=0.5)
        tables.flush()
        expected = arrays["a"].copy()
        expected[3] -= servers.kind.lr * 0.5
        np.testing.assert_allclose(servers.table("a"), expected, rtol=1e-6)


@pytest.mark.parametrize("staleness", [0, 3])
def test_gradients_are_refused_by_the_row_that_has_none_that_is_finite(staleness: int) -> None:
    """Those of a row are summed: that may overflow where each is finite. Those of several rows, whose sum would, are not."""
    arrays = tables_of()
    with Serve(arrays, Kind(staleness, lr=1e-38)) as servers, servers.connect() as tables:
        a, b, wide = (HetEmbedding(tables, name) for name in ("a", "b", "wide"))
        ids = torch.arange(8)

        def backward(scale: float, *more: torch.Tensor) -> None:
            (a(ids).sum() + b(ids).sum() + wide(ids).sum()).backward()
            (scale * torch.cat([each.sum().reshape(1) for each in more])).sum().backward()

        backward(3e38, b(torch.tensor([5, 5])))
        with pytest.raises(RunError, match=r"^gradients of b, summed for each row, are not finite"):
            tables.step()
        backward(3e38, b(torch.tensor([5, 5])), wide(torch.tensor([3, 3])), wide(torch.tensor([4, 4])))
        with pytest.raises(RunError, match=r"^gradients of wide, b, summed for each row, are not finite"):
            tables.step()
        (1e38 * a(ids)).sum().backward()
        tables.step()
        tables.flush()
        np.testing.assert_allclose(servers.table("a")[:8], arrays["a"][:8] - 1, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(servers.table("b"), arrays["b"])


@pytest.mark.parametrize("staleness", [0, 3])
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)])
def test_no_ids_are_looked_up_and_trained_as_by_torch(shape: tuple[int, ...], warm: bool, staleness: int) -> None:
    ids, some = torch.empty(shape, dtype=torch.int64), torch.tensor([[2, 3], [3, 50]])
    weights = torch.from_numpy(tables_of()["a"])
    reference = nn.Embedding.from_pretrained(weights.clone(), freeze=False)
    with Serve(tables_of(), Kind(staleness, lr=1.0)) as servers, servers.connect() as tables:
        if warm:
            tables.warm()
        embedding = HetEmbedding(tables, "a")
        for looked_up in ((ids,), (ids, some), (some, ids), (ids,)):
            for each in looked_up:
                seen, wanted = embedding(each), reference(each)
                assert seen.shape == wanted.shape
                (seen**2).sum().backward()
                (wanted**2).sum().backward()
            tables.step()
            with torch.no_grad():
                reference.weight -= reference.weight.grad
                reference.weight.grad = None
        tables.announce({"a": [ids, some]})
        embedding(ids).sum().backward()
        embedding(some).detach()
        tables.step()
        assert embedding.eval()(ids).shape == (*shape, 4)
        tables.flush()
        torch.testing.assert_close(torch.from_numpy(servers.table("a")), reference.weight.detach())


@pytest.mark.parametrize("staleness", [0, 3])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_without_ids_are_those_of_torch(mode: str, staleness: int) -> None:
    none = torch.empty(0, dtype=torch.int64)
    weights = torch.from_numpy(tables_of()["b"])
    reference = nn.EmbeddingBag.from_pretrained(weights.clone(), freeze=False, mode=mode)
    with Serve(tables_of(), Kind(staleness, lr=1.0)) as servers, servers.connect() as tables:
        tables.warm()
        bag = HetEmbeddingBag(tables, "b", mode=mode)  # type: ignore[arg-type]
        for given in ((none, torch.zeros(3, dtype=torch.int64)), (none, none), (none.reshape(0, 4),)):
            seen, wanted = bag(*given), reference(*given)
            torch.testing.assert_close(seen, wanted)
            seen.sum().backward()
            tables.step()
        tables.flush()
        np.testing.assert_array_equal(servers.table("b"), tables_of()["b"])


@pytest.mark.parametrize("staleness", [0, 3])
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_gradients_that_have_a_graph_of_their_own_are_trained_as_others(warm: bool, staleness: int) -> None:
    ids = torch.tensor([3, 3, 5, 59])
    reference = nn.Embedding.from_pretrained(torch.from_numpy(tables_of()["a"].copy()), freeze=False)
    sgd = torch.optim.SGD(reference.parameters(), 0.1)
    with Serve(tables_of(), Kind(staleness, lr=0.1)) as servers, servers.connect() as tables:
        if warm:
            tables.warm()
        embedding = HetEmbedding(tables, "a")
        for number in range(8):
            for each in (embedding, reference):
                each(ids).pow(2).sum().backward(create_graph=number % 2 == 0)
            tables.step(0.5 if number % 4 == 0 else 1)
            if number % 4 == 0:
                reference.weight.grad = reference.weight.grad / 2
            sgd.step()
            reference.weight.grad = None
        tables.flush()
        torch.testing.assert_close(torch.from_numpy(servers.table("a")), reference.weight.detach())


@pytest.mark.parametrize("staleness", [0, 3])
def test_a_step_that_raises_lets_go_and_one_that_is_broken_off_asks_for_a_rejoin(
    staleness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has read would be held for ever, and without staleness could not be asked for again."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with Serve(tables_of(), Kind(staleness, lr=1.0)) as servers, servers.connect() as tables:
        tables.warm()
        embedding, ids = HetEmbedding(tables, "a"), torch.tensor([1, 2])
        for broken in ("scale", "step"):
            embedding(ids).sum().backward()
            with monkeypatch.context() as patch:
                patch.setattr(tables._sides["cache_4"], broken, stop)
                with pytest.raises(KeyboardInterrupt):
                    tables.step()
            if broken == "step":
                with pytest.raises(PeerLost, match=r"a step of this worker was broken off: tables.rejoin\(\) begins"):
                    embedding(ids)
                assert tables.rejoin() == 0
            embedding(ids).sum().backward()
            tables.step()
            tables.flush()
        np.testing.assert_allclose(servers.table("a")[1:3], tables_of()["a"][1:3] - 2, rtol=1e-5)


@pytest.mark.parametrize(("staleness", "wanted"), [(0, 2), (100, 1)])
def test_a_look_inside_of_a_step_is_without_what_has_not_been_sent(staleness: int, wanted: int) -> None:
    """The first step's update has been sent by a look between steps; the second's has not, but where there is no staleness."""
    ids = torch.tensor([3])
    with Serve(tables_of(), Kind(staleness, lr=1.0)) as servers, servers.connect() as tables:
        tables.warm()
        embedding = HetEmbedding(tables, "a")

        def moved() -> float:
            return float(tables_of()["a"][3, 0] - tables.look("a", ids)[0, 0])

        for number in range(2):
            embedding(ids).sum().backward()
            tables.step()
            if not number:
                assert moved() == pytest.approx(1)
        embedding(torch.tensor([50]))
        assert moved() == pytest.approx(wanted)
        tables.skip()
        assert moved() == pytest.approx(2)


@pytest.mark.parametrize("capacity", [10**15, 10**19, 10**30])
def test_a_cache_that_memory_does_not_hold_is_told_by_its_capacity(capacity: int) -> None:
    with Serve(tables_of(), Kind(3)) as servers, servers.connect(capacity=capacity) as tables:
        for _ in range(2):
            with pytest.raises(
                UsageError, match=f"connect: capacity: .* cache of {capacity} rows of wide: connect with"
            ):
                tables.warm()


@pytest.mark.parametrize("policy", ["light-lfu", "lfu", "lru"])
def test_rows_that_were_let_go_make_room_for_others(policy: str) -> None:
    """They had been in no list of a policy: nothing was evicted, or the search for a victim never ended."""
    with Serve(tables_of(), Kind(100, capacity=8, policy=policy)) as servers, servers.connect() as tables:
        tables.warm()
        embedding = HetEmbedding(tables, "a")
        for first in range(0, 60, 6):
            embedding(torch.arange(first, first + 6)).detach()
            tables.step()
            (_, side) = tables._sides.values()
            assert side._rows.resident <= 8  # type: ignore[union-attr]
        np.testing.assert_array_equal(servers.table("a"), tables_of()["a"])


@pytest.mark.parametrize("warm", [True, False])
def test_a_flush_sends_what_rows_of_announced_batches_have_gathered(warm: bool) -> None:
    """The next batch has been asked for by then, with the same rows."""
    ids = torch.arange(10)
    with Serve(tables_of(), Kind(100, lr=1.0)) as servers, servers.connect() as tables:
        if warm:
            tables.warm()
        embedding = HetEmbedding(tables, "a")
        for _ in range(4):
            tables.announce({"a": ids})
        for number in range(4):
            embedding(ids).sum().backward()
            tables.step()
            for _ in range(2):
                tables.flush()
                assert tables.unsent == 0
            seen = tables.look("a", ids).numpy()
            np.testing.assert_allclose(seen, tables_of()["a"][:10] - (number + 1), rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(servers.table("a")[:10], seen)


def test_a_lookup_that_was_not_announced_is_not_taken_for_one_that_was() -> None:
    with Serve(tables_of(), Kind(100, lr=1.0)) as servers, servers.connect() as tables:
        tables.warm()
        embedding = HetEmbedding(tables, "a")
        first, second = torch.tensor([1, 2]), torch.tensor([3, 4])
        early = embedding(first)
        tables.announce({"a": second})
        late = embedding(second)
        torch.testing.assert_close(late, torch.from_numpy(tables_of()["a"])[second])
        (early.sum() + 2 * late.sum()).backward()
        tables.step()
        embedding(second).sum().backward()
        tables.step()
        tables.flush()
        moved = servers.table("a")[:5] - tables_of()["a"][:5]
        np.testing.assert_allclose(moved[:, 0], [0, -1, -1, -3, -3], rtol=1e-5)


def test_a_step_that_is_skipped_writes_nothing() -> None:
    with Serve(tables_of(), Kind(100, lr=1.0)) as servers, servers.connect() as tables:
        embedding = HetEmbedding(tables, "a")
        ids = torch.tensor([1])
        for announced in (False, True):
            for _ in range(2 * announced):
                tables.announce({"a": ids})
            (embedding(ids) * torch.nan).sum().backward()
            tables.skip()
            embedding(ids).sum().backward()
            tables.step(scale=0.5)
        tables.flush()
        np.testing.assert_allclose(servers.table("a")[1], tables_of()["a"][1] - 1, rtol=1e-5)


def test_modules_are_copied_with_the_tables_that_they_read() -> None:
    with Serve(tables_of(), Kind(100)) as servers, servers.connect() as tables:
        model = served(tables)
        assert copy.deepcopy(model).first.tables is tables
        assert [name for name in model.state_dict() if not name.startswith("linear")] == []
        last = HetEmbedding(tables, "a", padding_idx=-1)
        assert last.padding_idx == 59
        with pytest.raises(DataError, match="padding_idx 60 is out of range, it has 60 rows"):
            HetEmbedding(tables, "a", padding_idx=60)
        for given in ([], [1, 2]):
            with pytest.raises(DataError, match="announce its ids as a tensor, or a list of tensors"):
                tables.announce({"a": given})  # type: ignore[dict-item]
