"""Numbers that Python code makes of a batch's size, or takes out of a tensor, are those of each batch, not of the example."""

import math
import sys
from collections.abc import Callable
from math import log as natural
from math import sqrt as root

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.torch_model import capture
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options
from tests.frontend.test_torch_model import interpret

Number = Callable[[int], float]


def _of_two(parts: tuple[tuple[str, Number], tuple[str, Number], str]) -> tuple[str, Number]:
    (left, f), (right, g), kind = parts
    made: dict[str, Number] = {
        "+": lambda b: f(b) + g(b),
        "-": lambda b: f(b) - g(b),
        "*": lambda b: f(b) * g(b),
        "/": lambda b: f(b) / (g(b) * g(b) + 1),
    }
    return f"({left} {kind} {right})", made[kind]


def _of_one(parts: tuple[tuple[str, Number], str]) -> tuple[str, Number]:
    (text, f), kind = parts
    made: dict[str, Number] = {
        "-": lambda b: -f(b),
        "half": lambda b: f(b) * 0.5,
    }
    return f"{kind}({text})", made[kind]


def _whole(number: int) -> tuple[str, Number]:
    return str(number), lambda b: number


WHOLE: dict[str, Number] = {
    "b": lambda b: b,
    "root": lambda b: b**0.5,
    "power": lambda b: 1.5**b,
    "3b+2": lambda b: 3 * b + 2,
    "b//2": lambda b: b // 2,
    "b%3": lambda b: b % 3,
    "max": lambda b: max(b, 4),
}
NUMBERS = st.recursive(
    st.sampled_from(sorted(WHOLE.items())) | st.integers(-3, 5).map(_whole),
    lambda part: (
        st.tuples(part, part, st.sampled_from(["+", "-", "*", "/"])).map(_of_two)
        | st.tuples(part, st.sampled_from(["-", "half"])).map(_of_one)
    ),
    max_leaves=5,
)


class Several(nn.Module):
    """x times each of several numbers."""

    def __init__(self, numbers: list[Number]) -> None:
        super().__init__()
        self.numbers = numbers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x * number(len(x)) for number in self.numbers], 1)


@settings(deadline=None, max_examples=8)
@given(st.lists(NUMBERS, min_size=1, max_size=10))
def test_a_number_made_of_the_batch_size_is_that_of_each_batch(numbers: list[tuple[str, Number]]) -> None:
    module = Several([number for _, number in numbers])
    net = capture(module, {"x": torch.ones(6)}).net
    for batch in (2, 3, 17):
        x = torch.linspace(-1, 2, batch)
        torch.testing.assert_close(interpret(net, {}, {"x": x}, batch), module(x))


class Bags(nn.Module):
    """The mean number of tags of an example is known of each batch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.top = nn.EmbeddingBag(30, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, tags: torch.Tensor, tags_offsets: torch.Tensor) -> torch.Tensor:
        rare = tags.shape[0] / len(x) - len(tags) * 0.01
        return self.top(self.tags(tags, tags_offsets) * rare + x).squeeze(1)


class Taken(nn.Module):
    """Numbers that are taken out of tensors, a fill with one of them, and ranges that begin elsewhere than at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.top = nn.Embedding(30, 4), nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.rows(ids)
        b, scale, count = len(ids), rows.abs().mean().item(), (ids > 3).sum().item()
        places = torch.arange(b, 2 * b) - torch.arange(1, 2 * b, 2)
        rows = rows * scale + (1 + count) / b + torch.full((4,), 1 / b) + torch.full_like(rows, b - 1) * torch.tensor(b)
        return self.top(torch.tanh(rows)).squeeze(1) + places * rows.clamp(max=b).sum(1)


EXAMPLES = {
    Bags: {"x": torch.zeros(5, 4), "tags": torch.zeros(10, dtype=torch.int64), "tags_offsets": torch.arange(5) * 2},
    Taken: {"ids": torch.zeros(6, dtype=torch.int64)},
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_what_is_counted_or_taken_is_of_the_batch(kind: type[nn.Module]) -> None:
    """Without a gradient through item()."""
    model = capture_model(kind(), schema=CRITEO, example_inputs=EXAMPLES[kind], logit="", label="")
    assert model.compare(Options()).notes == ()


class Frame:
    """Columns of a batch, whose len() is how many examples it has."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)


def test_len_of_an_object_that_holds_a_batch_is_of_each_batch() -> None:
    class Prompted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prompt = nn.Parameter(torch.ones(1, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            frame = Frame(x)
            return (frame.x * self.prompt.repeat(len(frame), 1)).sum(1) / (len(frame) + len([1, 2]))

    module = Prompted()
    net = capture(module, {"x": torch.ones(6, 2)}).net
    x = torch.linspace(-1, 2, 34).view(17, 2)
    torch.testing.assert_close(interpret(net, {"prompt": module.prompt.detach()}, {"x": x}, 17), module(x))


def test_a_range_from_elsewhere_is_of_any_example() -> None:
    class Next(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[torch.arange(1, len(x) + 1) - 1, torch.arange(1, len(x) + 1) % 2]

    net = capture(Next(), {"x": torch.zeros(4, 2)}).net
    x = torch.linspace(-1, 2, 10).view(5, 2)
    torch.testing.assert_close(interpret(net, {}, {"x": x}, 5), Next()(x))


def _float(x: torch.Tensor) -> torch.Tensor:
    """The regularisation of LightGCN, by the file's own names."""
    shares = (
        x.norm(dim=1).pow(2).sum() / float(len(x)) + math.log2(8.0) * float("0.5") + float(int(x.shape[0])) * int("3")
    )
    assert isinstance(1.0, float)
    assert not isinstance(1, float)
    assert isinstance(len([1]), int)
    bits = math.log(len(x)) - math.log(x.shape[0] / 2, 10) + math.log2(3 * len(x)) + natural(2.0 + x.size(0))
    return x / math.sqrt(len(x)) * shares + bits + root(x.shape[0] * 2.0) / int(x.size(0) / 2 + 1)


def _by_numpy(x: torch.Tensor) -> torch.Tensor:
    whole = int(np.ceil(len(x) / 2)) + np.prod(x.shape[1:]) + np.arange(4)[1] + np.sqrt(2, dtype=np.float32)
    return x / np.sqrt(x.shape[0]) + whole * np.log(len(x) + 1) - np.log2(len(x)) * np.log10(x.size(0) / 2)


def test_functions_of_numpy_of_the_batch_size_are_of_each_batch() -> None:
    class Counted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _by_numpy(x)

    net = capture(Counted(), {"x": torch.ones(6, 2)}).net
    for batch in (1, 2, 3, 17):
        x = torch.linspace(-1, 2, 2 * batch).view(batch, 2)
        torch.testing.assert_close(interpret(net, {}, {"x": x}, batch), _by_numpy(x))
    assert np is sys.modules["numpy"]


def test_an_array_of_numpy_that_is_as_long_as_a_batch_is_refused_with_its_line() -> None:
    class Ones(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[np.arange(len(x))]

    with pytest.raises(ModelError, match=r"other functions of numpy than .*test_symbolic_numbers.py:\d+\)$"):
        capture(Ones(), {"x": torch.zeros(4)})


def test_casts_of_the_batch_size_are_of_each_batch() -> None:
    class Cast(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _float(x)

    net = capture(Cast(), {"x": torch.ones(6, 2)}).net
    for batch in (2, 3, 17):
        x = torch.linspace(-1, 2, 2 * batch).view(batch, 2)
        torch.testing.assert_close(interpret(net, {}, {"x": x}, batch), _float(x))
    assert not {"float", "int"} & set(globals())


def test_casts_by_which_the_code_goes_another_way_are_refused_with_their_line() -> None:
    class Another(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if float(len(x)) > 8 else 2 * x

    with pytest.raises(ModelError, match=r"fixes the batch dimension: .*test_symbolic_numbers.py:\d+\)$"):
        capture(Another(), {"x": torch.zeros(4, 2)})
    assert not {"float", "int"} & set(globals())
