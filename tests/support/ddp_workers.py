"""Workers of DistributedDataParallel at the servers of a run folder, forked from this process, which has imported what they need; losses as JSON.

python ddp_workers.py RUN WORKERS STEPS MEETING
"""

import json
import os
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import htrain.client

USERS, ITEMS, DIM = 300, 200, 8
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Model(nn.Module):
    """A lookup of a user, one of an item, and an MLP."""

    def __init__(self, user: nn.Module, item: nn.Module) -> None:
        super().__init__()
        self.user, self.item = user, item
        self.scores = nn.Sequential(nn.Linear(2 * DIM, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """users[B], items[B] -> logit[B]."""
        return self.scores(torch.cat([self.user(users), self.item(items)], dim=1)).squeeze(1)


def weights_alike(model: Model) -> None:
    """The MLP begins as on every other worker, and in the reference."""
    torch.manual_seed(5)
    for parameter in model.scores.parameters():
        nn.init.uniform_(parameter, -0.3, 0.3)


def batches(rank: int, steps: int) -> Iterator[Batch]:
    """The share of one worker."""
    draw = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        users, items = (torch.randint(0, rows, (16,), generator=draw) for rows in (USERS, ITEMS))
        yield users, items, ((users + items) % 3 == 0).float()


def work(folder: str, rank: int, workers: int, steps: int, meeting: str) -> list[float]:
    """Train; this worker's losses."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=workers)
    losses = []
    with htrain.client.connect(folder, worker=f"rank {rank}") as tables:
        model = Model(htrain.client.HetEmbedding(tables, "user"), htrain.client.HetEmbedding(tables, "item"))
        weights_alike(model)
        parallel = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        for users, items, label in batches(rank, steps):
            loss = nn.functional.binary_cross_entropy_with_logits(parallel(users, items), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tables.step()
            losses.append(float(loss.detach()))
    dist.destroy_process_group()
    return losses


def main(folder: str, workers: int, steps: int, meeting: str) -> None:
    """A child for each worker."""
    torch.set_num_threads(1)
    pipes = []
    for rank in range(workers):
        near, far = os.pipe()
        if os.fork() == 0:
            os.write(far, json.dumps(work(folder, rank, workers, steps, meeting)).encode())
            os._exit(0)
        os.close(far)
        pipes.append(near)
    print(json.dumps([json.loads(os.fdopen(near).read()) for near in pipes]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
