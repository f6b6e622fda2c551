"""What the processes of one group PS leave to each other (htrain.executor.host.parameter_memory)."""

import torch


class Kept:
    """Of a role, in one try. `values` are those that its last process had when it ended."""

    def __init__(self) -> None:
        self.values: dict[str, torch.Tensor] = {}
        self.is_filled = self.in_round = False
        self.next_round = 0

    def begins_round(self, number: int) -> None:
        self.in_round, self.next_round = True, number + 1

    def ends_round(self) -> None:
        self.in_round = False

    @property
    def is_whole(self) -> bool:
        return self.is_filled and not self.in_round
