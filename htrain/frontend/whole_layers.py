"""Recurrent layers as one op while a model is captured: torch follows each of their steps to know what they give, some hundred milliseconds for each."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_OPS: dict[Any, str] = {torch.gru: "gru", torch.lstm: "lstm", torch.rnn_tanh: "rnn_tanh", torch.rnn_relu: "rnn_relu"}


class WholeLayers(TorchFunctionMode):
    """Within, torch.gru, lstm, rnn_tanh and rnn_relu of padded sequences are ops of the same schema, of which the shapes of the results alone are made."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _OPS and not kwargs and isinstance(args[3], bool):
            _library()
            return getattr(torch.ops.htrain, _OPS[func])(*args)
        return func(*args, **(kwargs or {}))


@cache
def _library() -> torch.library.Library:
    """The ops, with the arguments of ATen's."""
    library = torch.library.Library("htrain", "FRAGMENT")
    for name in _OPS.values():
        schema = str(getattr(torch.ops.aten, name).input._schema)
        library.define(name + schema[schema.index("(") :])
        for key in ("Meta", "CPU"):
            library.impl(name, _of_lstm if name == "lstm" else _of_one_state, key)
    return library


def _of_one_state(
    input: torch.Tensor, hx: torch.Tensor, params: Sequence[torch.Tensor], *settings: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return _output(input, hx, bidirectional=settings[4]), torch.empty_like(hx)


def _of_lstm(
    input: torch.Tensor, hx: Sequence[torch.Tensor], params: Sequence[torch.Tensor], *settings: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        _output(input, hx[0], bidirectional=settings[4]),
        *(torch.empty_like(each) for each in hx),
    )  # type: ignore[return-value]


def _output(input: torch.Tensor, state: torch.Tensor, *, bidirectional: bool) -> torch.Tensor:
    """float[B,L,H] or [L,B,H] of each direction."""
    return input.new_empty(*input.shape[:2], state.shape[2] * (2 if bidirectional else 1))
