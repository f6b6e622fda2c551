"""Models with Fourier transforms are trained as by PyTorch."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.torch_model import capture
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options

Forward = Callable[[nn.Module, torch.Tensor], torch.Tensor]
IDS = {"ids": torch.zeros(3, 5, dtype=torch.int64)}


class Spectrum(nn.Module):
    """Rows[B,L,K] of ids[B,L], and a layer over what a test makes of them."""

    def __init__(self, then: Forward) -> None:
        super().__init__()
        self.rows, self.top = nn.Embedding(30, 4), nn.Linear(4, 1)
        self.filter = nn.Parameter(torch.randn(3, 4, 2))
        self.then = then

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(torch.tanh(self.then(self, self.rows(ids))).flatten(1).unfold(1, 4, 4).sum(1)).squeeze(1)


def filtered(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """FMLP's layer: a filter of what a sequence is made of."""
    spectrum = torch.fft.rfft(rows, dim=1, norm="ortho")
    return torch.fft.irfft(spectrum * torch.view_as_complex(model.filter), n=rows.shape[1], dim=1, norm="ortho")


def convolved(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """A circular convolution, as of holographic embeddings."""
    x, y = (torch.view_as_real(torch.fft.fft(each)) for each in (rows[:, 1:], rows[:, :-1]))
    real, imaginary = x[..., 0] * y[..., 0] - x[..., 1] * y[..., 1], x[..., 0] * y[..., 1] + x[..., 1] * y[..., 0]
    return torch.view_as_real(torch.fft.ifft(torch.view_as_complex(torch.stack([real, imaginary], -1))))[..., 0]


def rotated(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Rotary positions, by complex numbers of size 1 that are a constant."""
    angles = torch.outer(torch.arange(5.0), 0.5 ** torch.arange(2.0))
    turns = torch.polar(torch.ones_like(angles), angles).view(1, 5, 2)
    return torch.view_as_real(torch.view_as_complex(rows.reshape(*rows.shape[:-1], -1, 2)) * turns).flatten(2)


def correlated(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """A circular correlation, as of holographic embeddings."""
    x, y = (torch.fft.rfft(each) for each in (rows[:, 1:], rows[:, :-1]))
    return torch.fft.irfft(torch.conj(x) * y, n=4)


def arranged(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """By steps and by channels, joined, cut and averaged."""
    spectrum = torch.fft.rfft(rows, dim=1)
    mean = spectrum.transpose(1, 2).mean(2).unsqueeze(1).expand(-1, 3, -1)
    both = torch.cat([spectrum, -mean], 1)
    heads = both.reshape(len(rows), 6, 2, 2).permute(0, 2, 1, 3)
    return torch.view_as_real(heads.sum(1) / 3)[..., 1] + heads[:, 0].real + heads[:, 1].imag


def in_parts(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """A rotation of each row by another, as of RotatE, and its size and angle."""
    turned = torch.polar(rows[..., :2].exp(), rows[..., 2:]) * torch.complex(rows[..., :2], rows[..., 2:])
    return torch.cat([turned.abs(), torch.sin(turned.angle())], 2)


FORWARDS: dict[str, Forward] = {
    "rotary positions": rotated,
    "a correlation": correlated,
    "in parts": in_parts,
    "arranged": arranged,
    "sizes": lambda m, rows: torch.fft.rfft(rows, dim=1).abs() + rows[:, :3].abs(),
    "a filter": filtered,
    "a convolution": convolved,
    "an even length": lambda m, rows: torch.fft.irfft(torch.fft.rfft(rows, norm="forward") * 0.5, norm="forward"),
    "a shorter length": lambda m, rows: torch.fft.irfft(torch.fft.rfft(rows, dim=1), n=4, dim=1),
    "sums": lambda m, rows: torch.view_as_real(torch.fft.fft(rows) + torch.fft.fft(rows, norm="backward") * rows - torch.fft.fft(rows.flip(1))),
    "back": lambda m, rows: torch.view_as_real(torch.fft.fft(torch.fft.ifft(torch.fft.fft(rows, dim=1), dim=1, norm="ortho"), dim=1))[..., 1],
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARDS)
def test_what_is_transformed_is_trained_as_by_pytorch(name: str) -> None:
    model = capture_model(Spectrum(FORWARDS[name]), schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert model.compare(Options()).notes == ()


REFUSED: dict[str, Forward] = {
    "over the batch": lambda m, rows: torch.fft.irfft(torch.fft.rfft(rows, dim=0), n=rows.shape[0], dim=0),
    "a quotient": lambda m, rows: torch.view_as_real(torch.fft.fft(rows) / torch.fft.fft(rows)),
    "a number beside": lambda m, rows: torch.view_as_real(torch.fft.fft(rows) + 1),
    "two dimensions": lambda m, rows: torch.fft.irfft2(torch.fft.rfft2(rows)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_of_complex_numbers_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=r"cannot (be compiled|capture)"):
        capture(Spectrum(REFUSED[name]), IDS)
