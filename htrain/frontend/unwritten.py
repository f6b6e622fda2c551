"""Tensors that begin as memory which nobody has set, as torch.empty gives it, and are assigned to part by part."""

import torch
from torch import fx

from htrain.errors import ModelError
from htrain.frontend.aten_forms import Call, Handler
from htrain.frontend.translation import Translation, dtype_name

_SET = (
    "slice_scatter",
    "select_scatter",
    "diagonal_scatter",
    "index_put",
    "index_copy",
    "scatter",
    "copy",
    "fill",
    "zero",
    "masked_fill",
)
_VIEWS = ("slice", "select", "view", "_unsafe_view", "reshape", "transpose", "t", "permute", "unsqueeze", "squeeze", "expand", "alias",
          "detach", "diagonal")  # fmt: skip
_OF_SHAPE = ("sym_size", "empty_like", "new_empty", "full_like", "zeros_like", "ones_like", "new_zeros", "new_ones", "new_full")  # fmt: skip


def _unwritten(t: Translation, call: Call) -> None:
    """Infinity, of which the self-check sees what is left, or the least integer. Raises ModelError, once it is read, where it is read as it is."""
    call.told_by_shape()
    like = call.meta["val"]

    def filled() -> str:
        if 0 not in t.shape(call.node) and not _is_set_first(call.node):
            raise ModelError(
                f"'{call.node}' in {t.where(call.node)} is not a tensor that the net computes: nobody has set its memory; begin with torch.zeros"
            )
        value = (
            torch.inf if like.is_floating_point() else 1 if like.dtype == torch.bool else torch.iinfo(like.dtype).min
        )
        shape = t.batch_shape(t.shape(call.node))
        return t.step(call.node, "Fill", (), {"shape": shape, "value": float(value), "dtype": dtype_name(like.dtype)})

    t.when_read[call.node] = filled


def _is_set_first(node: fx.Node) -> bool:
    """Whether every op that takes `node`, or a view of it, assigns to it or asks for its shape."""
    return all(
        (name in _SET and user.args[0] is node and node not in user.args[1:])
        or name in _OF_SHAPE
        or (name in _VIEWS and _is_set_first(user))
        for user in node.users
        for name in [str(user.target).removeprefix("aten.").partition(".")[0]]
    )


UNWRITTEN: dict[str, Handler] = dict.fromkeys(
    (f"aten.{name}" for name in ("empty.memory_format", "empty_like.default", "empty_permuted.default", "new_empty.default")), _unwritten
)  # fmt: skip
