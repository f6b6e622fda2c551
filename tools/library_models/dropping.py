"""What a net drops and draws, and which rows it asks for, of PyTorch's own forward(): for one batch, by its key."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from htrain.frontend.captured import Captured
from htrain.net.net import Op
from htrain.ops import OPS
from htrain.ops.draw import DRAWS
from htrain.ops.dropout_loops import kept
from htrain.plan.plan import Plan

_DROPOUTS, _ATTENTION = frozenset({F.dropout, torch.dropout}), F.scaled_dot_product_attention
_SIGMOIDS = frozenset({torch.sigmoid, torch.Tensor.sigmoid, F.sigmoid})
_DRAWN = frozenset(
    {torch.randn, torch.randn_like, torch.rand, torch.rand_like, torch.Tensor.normal_, torch.Tensor.uniform_}
    | {nn.init.normal_, nn.init.uniform_}
)
_INSIDE = ("dropout", "scaled_dot_product_attention")  # of attention


_LOOKUPS: Mapping[Any, Callable[..., tuple[Any, Any]]] = {
    F.embedding: lambda input, weight, *_, **__: (weight, input),
    F.embedding_bag: lambda input, weight, *_, **__: (weight, input),
    torch.index_select: lambda input, dim, index: (input, index),
    torch.Tensor.index_select: lambda input, dim, index: (input, index),
    torch.Tensor.__getitem__: lambda table, ids: (table, ids),
}  # table[R,D] and the ids of rows, of the arguments of what looks them up


def _called_as(call: Callable[[tuple, Mapping[str, Any]], Any]) -> Callable[..., Any]:
    """A function of arguments from one of their tuple and their mapping."""
    return lambda *args, **given: call(args, given)


class Dropping(TorchFunctionMode):
    """Within, dropouts of `model` drop what those of a net do, of the batch of this key: each module's in the order of the net's ops.

    Dropouts that the net does not have, as those of a task without a logit, are left to PyTorch. `asked` has a list for the id of each table, which gets
    the rows that are looked up in it, in the backward pass: those that the loss depends on.
    """

    def __init__(
        self, model: nn.Module, dropouts: Sequence[Op], key: int, asked: Mapping[int, list[torch.Tensor]]
    ) -> None:
        super().__init__()
        self._names = {id(module): name for name, module in model.named_modules()}
        self._left: dict[str, list[Op]] = {}
        for op in dropouts:
            self._left.setdefault(op.module, []).append(op)
        self._key, self._asked = key, asked
        self._within: list[str] = []  # the names of the modules that are running, the innermost last
        self._hooks: list[RemovableHandle] = []
        self._sigmoids: list[tuple[torch.Tensor, torch.Tensor]] = []  # what each takes and gives

    def before_sigmoid(self, outputs: torch.Tensor) -> torch.Tensor:
        """The logit[B] whose sigmoid `outputs` are. Raises RuntimeError where they are none's."""
        for taken, given in reversed(self._sigmoids):
            same = given.numel() == outputs.numel()
            if same and torch.allclose(given.reshape(-1), outputs.reshape(-1), rtol=0, atol=0, equal_nan=True):
                return taken.reshape(-1)
        raise RuntimeError("the model's output is not seen to be that of a sigmoid")

    def __enter__(self) -> Self:
        self._hooks = [
            register_module_forward_pre_hook(lambda module, _: self._within.append(self._names.get(id(module), ""))),
            register_module_forward_hook(lambda *_: self._left_module(), always_call=True),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        left = [op.outputs[0] for ops in self._left.values() for op in ops]
        if left and not error:
            raise RuntimeError(f"the net drops or draws {', '.join(left)}, which forward() does not")

    def _left_module(self) -> None:
        self._within.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in _LOOKUPS:
            table, ids = _LOOKUPS[func](*args, **given)
            return self._noting(func(*args, **given), id(table), ids)
        if func is F.multi_head_attention_forward:
            # written in Python: what it calls does not come here, and with this mode around it would call itself
            inside = {name: partial(self.__torch_function__, getattr(F, name), types) for name in _INSIDE}
            with patch.multiple(F, **{name: _called_as(call) for name, call in inside.items()}):
                return func(*args, **given)
        if func in _SIGMOIDS:
            self._sigmoids.append((args[0] if args else given["input"], func(*args, **given)))
            return self._sigmoids[-1][1]
        if func in _DROPOUTS:
            x = args[0] if args else given["input"]
            p = args[1] if len(args) > 1 else given.get("p", 0.5)
            training = args[2] if len(args) > 2 else given.get("training", given.get("train", True))
            op = self._next() if training and p else None
            return self._dropped(x, op) if op else func(*args, **given)
        if func in _DRAWN:
            made, op = func(*args, **given), self._next()  # in place, or of this shape
            return made.copy_(self._drawn(made, op)) if op else made
        if func is _ATTENTION and (args[4] if len(args) > 4 else given.get("dropout_p", 0.0)) and (op := self._next()):
            rest = {name: value for name, value in given.items() if name != "dropout_p"}
            return self._attended(op, *args[:4], **rest)
        return func(*args, **given)

    def _noting(self, looked_up: torch.Tensor, table: int, ids: Any) -> torch.Tensor:
        """What has been looked up, which notes its rows once the loss is seen to depend on it: in the backward pass."""
        if table in self._asked and looked_up.requires_grad:
            looked_up.register_hook(lambda _: self._asked[table].append(torch.as_tensor(ids).flatten()))
        return looked_up

    def _attended(
        self, op: Op, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attn_mask: Any = None, **rest: Any
    ) -> Any:
        """softmax(q @ k.T * scale + mask), some of it dropped, @ v."""
        scale = rest.get("scale") or q.shape[-1] ** -0.5
        scores = q @ k.transpose(-2, -1) * scale
        if rest.get("is_causal"):
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None:
            is_bool = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if is_bool else scores + attn_mask
        return self._dropped(scores.softmax(-1), op) @ v

    def _drawn(self, made: torch.Tensor, op: Op) -> torch.Tensor:
        extra = {**op.attrs, "shape": tuple(made.shape)}
        return OPS[op.type].kernel(torch.tensor([self._key]), **extra, batch=1)

    def _next(self) -> Op | None:
        """The next op of the innermost running module that has one left."""
        for name in [*reversed(self._within), ""]:
            if ops := self._left.get(name):
                return ops.pop(0)
        return None

    def _dropped(self, x: torch.Tensor, op: Op) -> torch.Tensor:
        p, seed = float(op.attrs["p"]), int(op.attrs["seed"])  # type: ignore[arg-type]
        mask = torch.from_numpy(kept(x.numel(), seed, self._key, p)).view(x.shape)
        return x * mask / (1 - p) if p < 1 else x * 0


def dropouts_of(captured: Captured, plan: Plan) -> list[Op]:
    """The dropouts of the net in the order in which forward() has them, with the seeds of the plan and the modules of the model."""
    drawing = ("Dropout", *DRAWS)
    seeded = {op.outputs[0]: op for op in plan.train.ops if op.type in drawing}
    return [replace(seeded[op.outputs[0]], module=op.module) for op in captured.net.ops if op.type in drawing]
