"""Functions of torch that no graph can hold as they are, as they look at the values of a batch to check them, or lose a shape: their formulas while a model
is captured.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from htrain.errors import ModelError

Number = Callable[[], Any]


@dataclass(frozen=True)
class _Counted:
    """A tensor that is a number of what a mask picks, as long as neither it nor what it was made of is changed in place."""

    number: Number
    versions: tuple[tuple[torch.Tensor, int], ...]

    def holds(self) -> bool:
        return all(tensor._version == version for tensor, version in self.versions)


class Formulas(TorchFunctionMode):
    """Within, F.gaussian_nll_loss, F.binary_cross_entropy, torch.cov and torch.corrcoef compute what they would, and check nothing; masked_select of rows picks
    rows. A count of what a mask picks is one number with that of all that picks by it."""

    def __init__(self) -> None:
        super().__init__()
        self._counted: dict[int, _Counted] = {}  # by the ids of tensors that are kept for these

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in _NUMBERS and (counted := self._counted.get(id(args[0]))) is not None and counted.holds():
            return _NUMBERS[func](counted.number())
        result = _FORMULAS.get(func, func)(*args, **given)
        if not given and isinstance(result, torch.Tensor) and (number := _number_of(func, args, self._counted)):
            self._counted[id(result)] = _Counted(number, ((result, result._version), (args[0], args[0]._version)))
        return result


def _gaussian_nll(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """A variance below `eps` counts as that, and has its gradient all the same."""
    var = var if isinstance(var, torch.Tensor) else var * torch.ones_like(input)
    if var.dim() + 1 == input.dim():  # one for all numbers of an example
        var = var.unsqueeze(-1)
    var = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var) + (0.5 * math.log(2 * math.pi) if full else 0.0)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def _binary_cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    """That of each number, which is an op of its own, and their mean or sum: in logarithms, which torch would make of it, the gradient of a probability that is
    0 or 1 is no number."""
    if size_average is not None or reduce is not None or input.dim() != target.dim():
        return F.binary_cross_entropy(
            input, target, weight, size_average=size_average, reduce=reduce, reduction=reduction
        )
    loss = torch.ops.aten.binary_cross_entropy(input, target, weight, 0)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def _covariance(input: torch.Tensor, *, correction: int = 1, **weights: Any) -> torch.Tensor:
    """Of variables along the first dimension."""
    if any(weight is not None for weight in weights.values()):
        return torch.cov(input, correction=correction, **weights)
    rows = input if input.dim() == 2 else input.reshape(1, -1)
    centred = rows - rows.mean(1, keepdim=True)
    found = centred @ centred.transpose(0, 1) / (rows.shape[1] - correction)
    return found if input.dim() == 2 else found.reshape(())


def _correlation(input: torch.Tensor) -> torch.Tensor:
    found = _covariance(input)
    if input.dim() < 2:
        return found / found
    deviation = torch.sqrt(torch.diagonal(found))
    return (found / deviation[:, None] / deviation[None]).clamp(-1, 1)


def _diagonal_filled(input: torch.Tensor, fill_value: float, wrap: bool = False) -> torch.Tensor:
    """Of a matrix over the batch, too, of which torch fixes the size."""
    if input.dim() != 2 or wrap:
        return input.fill_diagonal_(fill_value, wrap)
    rows, columns = (torch.arange(size, device=input.device) for size in input.shape)
    return input.masked_fill_(rows[:, None] == columns, fill_value)


def _selected(input: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """As rows where the mask is one for each row: as many elements as it picks, times those of a row, can be given the shape of rows again."""
    rank = mask.dim()
    while rank and isinstance(mask.shape[rank - 1], int) and mask.shape[rank - 1] == 1:
        rank -= 1
    row = input.shape[rank:]
    alike = mask.dim() == input.dim() and all(map(_may_be_equal, input.shape[:rank], mask.shape[:rank]))
    if not rank or not alike or not all(isinstance(size, int) for size in row):
        return torch.masked_select(input, mask)
    if rank == mask.dim():  # the mask itself, for torch knows how many it picks by what it is
        return input[mask]
    return input[_of_rows(mask, rank)].reshape(-1)


def _of_rows(mask: torch.Tensor, rank: int) -> torch.Tensor:
    """A mask without its last dimensions, of size 1: the very tensor that `mask.view(-1, 1, 1)` was made of, for others may pick by it."""
    base = mask._base
    if rank != 1 or base is None or base.dim() != 1 or str(base.shape) != str(mask.shape[:1]):
        return mask.reshape(mask.shape[:rank])
    same = base.stride() == mask.stride()[:1] and base.storage_offset() == mask.storage_offset()
    return base if same else mask.reshape(mask.shape[:rank])


def _may_be_equal(size: Any, other: Any) -> bool:
    """Of the batch's size each input has a symbol of its own."""
    both = isinstance(size, torch.SymInt) and isinstance(other, torch.SymInt)
    return both or str(size) == str(other)


def _taken_along(input: torch.Tensor, indices: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """torch asks whether the sizes of the batch are 1, to broadcast these."""
    if dim is None or input.dim() != indices.dim():
        return torch.take_along_dim(input, indices, dim)
    along = dim % input.dim()
    sizes = [
        size if isinstance(own, int) and own == 1 else own for own, size in zip(input.shape, indices.shape, strict=True)
    ]
    of_input, of_indices = [*sizes], [*sizes]
    of_input[along], of_indices[along] = input.shape[along], indices.shape[along]
    return input.expand(of_input).gather(along, indices.expand(of_indices))


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Raises ModelError for as many classes as a batch has."""
    if (
        isinstance(num_classes, int)
        and num_classes < 0
        and any(isinstance(size, torch.SymInt) for size in tensor.shape)
    ):
        raise ModelError(
            "forward() calls F.one_hot() without num_classes, which is then the largest id of a batch and 1: give it a number"
        )
    return F.one_hot(tensor, num_classes)


def _times_vector(
    input: torch.Tensor, mat: torch.Tensor, vec: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    return beta * input + alpha * (mat @ vec)


def _multiplied(tensors: Sequence[torch.Tensor], *, out: None = None) -> torch.Tensor:
    """From the left: torch takes the order that is cheapest for the sizes that it sees."""
    return reduce(torch.matmul, tensors)


_FORMULAS: dict[Any, Callable[..., Any]] = {
    F.gaussian_nll_loss: _gaussian_nll,
    F.binary_cross_entropy: _binary_cross_entropy,
    **dict.fromkeys((torch.cov, torch.Tensor.cov), _covariance),
    **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), _correlation),
    torch.Tensor.fill_diagonal_: _diagonal_filled,
    **dict.fromkeys((torch.take_along_dim, torch.Tensor.take_along_dim), _taken_along),
    **dict.fromkeys((torch.addmv, torch.Tensor.addmv), _times_vector),
    **dict.fromkeys((F.one_hot,), _one_hot),
    torch.linalg.multi_dot: _multiplied,
    **dict.fromkeys((torch.masked_select, torch.Tensor.masked_select), _selected),
}


def _number_of(func: Any, args: tuple[Any, ...], counted: Mapping[int, _Counted]) -> Number | None:
    """What gives the number that a tensor without dimensions is: how many elements a mask picks, or whether it picks any, or so many."""
    first = args[0] if args else None
    if not isinstance(first, torch.Tensor):
        return None
    if func in _COUNTED and len(args) == 1 and first.dtype == torch.bool:
        return lambda: _COUNTED[func](first.nonzero().shape[0])
    if func in _COMPARED and id(first) in counted and counted[id(first)].holds() and isinstance(args[1], int):
        number = counted[id(first)].number
        return lambda: _COMPARED[func](number(), args[1])
    return None


_COUNTED: dict[Any, Callable[[Any], Any]] = {
    **dict.fromkeys(
        (torch.sum, torch.Tensor.sum, torch.count_nonzero, torch.Tensor.count_nonzero), lambda count: count
    ),
    **dict.fromkeys((torch.any, torch.Tensor.any), lambda count: count > 0),
}
_COMPARED: dict[Any, Callable[[Any, int], Any]] = {
    getattr(where, name): getattr(operator, python)
    for where in (torch, torch.Tensor)
    for name, python in (("eq", "eq"), ("ne", "ne"), ("gt", "gt"), ("ge", "ge"), ("lt", "lt"), ("le", "le"))
} | {getattr(torch.Tensor, f"__{name}__"): getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")}
_NUMBERS: dict[Any, Callable[[Any], Any]] = {torch.Tensor.item: lambda number: number, torch.Tensor.__bool__: bool}
