"""Tensors in one piece of memory: PyTorch's step of one changes the other, which no net does."""

from collections.abc import Iterator

import torch
from torch import nn

from htrain.errors import ModelError


class TrainedMemory:
    """Where the parameters of a model are that are trained, by their memory; on the meta device, too, where they have none."""

    def __init__(self, model: nn.Module) -> None:
        self._held: dict[int, list[tuple[str, torch.Tensor]]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter.numel() and parameter.layout == torch.strided:
                self._held.setdefault(memory_of(parameter), []).append((name, parameter))

    def require_apart(self) -> None:
        """Raises ModelError for two parameters of which an element is the same, which PyTorch steps twice and which here would be two weights."""
        for parameters in self._held.values():
            for place, (name, parameter) in enumerate(parameters):
                for other, before in parameters[:place]:
                    if _overlap(before, parameter):
                        raise ModelError(
                            f"parameters '{other}' and '{name}' share memory but are two: to tie them, assign the one nn.Parameter to both modules"
                        )

    def require_beside(self, tensor: torch.Tensor, what: str) -> None:
        """Raises ModelError for `what` forward() reads, where that is a tensor with an element of a parameter which is trained."""
        for name in self._sharing(tensor):
            raise ModelError(
                f"{what} shares memory with parameter '{name}', which is trained: PyTorch changes both with each step, and here it would stay as it is now; "
                f"read self.{name} in forward() (self.{name}.detach() for no gradient), or give it a copy of its own, by .clone()"
            )

    def _sharing(self, tensor: torch.Tensor) -> Iterator[str]:
        if tensor.layout == torch.strided and tensor.numel() and self._held:
            for name, parameter in self._held.get(memory_of(tensor), ()):
                if parameter is not tensor and _overlap(parameter, tensor):
                    yield name


def memory_of(tensor: torch.Tensor) -> int:
    """A number that is the same for tensors in one piece of memory, also of the meta device."""
    storage = tensor.untyped_storage()
    return int(storage._cdata) if tensor.is_meta else int(storage.data_ptr())


def _overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether an element of one is one of the other, in the same memory: rows or columns of one tensor may be apart."""
    begins, ends = zip(*map(_span, (first, second)), strict=True)
    if max(begins) >= min(ends):
        return False
    if first.element_size() != second.element_size():
        return True
    begin = min(first.storage_offset(), second.storage_offset())
    marks = torch.zeros(max(ends) // first.element_size() - begin, dtype=torch.bool)
    places = [marks.as_strided(t.shape, t.stride(), t.storage_offset() - begin) for t in (first, second)]
    places[0].fill_(True)
    return bool(places[1].any())


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first of its bytes in its memory, and the one behind the last."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    size, offset = tensor.element_size(), int(tensor.storage_offset())
    return offset * size, (offset + reach + 1) * size
