"""Twenty steps of a plan of one trainer, and the same steps by PyTorch alone: the same batches, the same values dropped."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from htrain.compiler.pipeline import compile_net
from htrain.data import START, Malformed, open_data
from htrain.frontend.captured import Captured
from htrain.frontend.unchanged import unchanged
from htrain.net.net import Op
from htrain.ops import OPS
from htrain.ops.draw import DRAWS
from htrain.ops.dropout_loops import kept
from htrain.plan.plan import Plan
from htrain.self_check.torch_reference import pick
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.transform.loss import final_sigmoid
from library_models.case import Case, Ids, Inputs, drawn

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from harness import _optimizer, _table_optimizer, losses_of, relative_differences

STEPS = 20
_DROPOUTS, _ATTENTION = frozenset({F.dropout, torch.dropout}), F.scaled_dot_product_attention
_DRAWN = frozenset(
    {torch.randn, torch.randn_like, torch.rand, torch.rand_like, torch.Tensor.normal_, torch.Tensor.uniform_}
)
_INSIDE = ("dropout", "scaled_dot_product_attention")  # of attention


def _called_as(call: Callable[[tuple, Mapping[str, Any]], Any]) -> Callable[..., Any]:
    """A function of arguments from one of their tuple and their mapping."""
    return lambda *args, **given: call(args, given)


class Training:
    """`model` as it is, trained by its plan and by PyTorch on the same rows."""

    def __init__(self, model: nn.Module, case: Case, captured: Captured, options: Options, folder: Path) -> None:
        self._case, self._captured, self._options = case, captured, options
        self._state = {name: value.clone() for name, value in model.state_dict().items()}
        self._folder = folder
        self._data = written(case.inputs, STEPS * options.batch_size, folder)
        self._wanted: list[float] = []

    def difference(self) -> float:
        """The largest relative difference between the losses of the plan and those of PyTorch."""
        plan = compile_net(
            self._captured,
            this_machine(group_ps=1, sparse_ps=1),
            self._options,
            name=self._case.name,
            solver="rules",
        )
        self._dropouts = _dropouts(self._captured, plan)
        seen = losses_of(plan, self._folder / "plan", self._data)
        self._wanted = self._by_torch(self._fresh())
        return max(relative_differences(seen, self._wanted))

    def difference_of_ulp(self) -> float:
        """The same between PyTorch and itself, begun from the neighbouring floats."""
        torch.manual_seed(1)
        nudged = self._fresh()
        with torch.no_grad():
            for p in nudged.parameters():
                away = torch.where(torch.rand_like(p) < 0.5, torch.inf, -torch.inf)
                p.copy_(torch.nextafter(p, away.to(p.dtype)))
        return max(relative_differences(self._by_torch(nudged), self._wanted))

    def _fresh(self) -> nn.Module:
        """The model anew, at the values it began with: what a library's model keeps of a batch forbids to copy it."""
        torch.manual_seed(0)
        model = self._case.build()
        model.load_state_dict(self._state)
        return model

    def _by_torch(self, model: nn.Module) -> list[float]:
        """The loss of every step; `model` is trained."""
        steps = _steps(model, self._captured, self._options)
        loss = self._options.loss
        probability = loss == "bce_probability" or final_sigmoid(self._captured.net, loss) is not None
        criterion = F.binary_cross_entropy if probability else F.binary_cross_entropy_with_logits
        losses = []
        for key, batch in _batches(self._data, self._options.batch_size):
            label = batch.pop("label")
            with (
                unchanged(model),
                Dropping(self._dropouts, key),
            ):  # some keep what they have computed for the next batch
                outputs = pick(model(**batch), self._case.logit)
            total = criterion(outputs.reshape(-1), label)
            model.zero_grad()
            total.backward()
            for step in steps:
                step.step()
            losses.append(total.item())
        return losses


class Dropping(TorchFunctionMode):
    """Within, dropouts drop what those of a net do, in the order of its ops, of the batch of this key."""

    def __init__(self, dropouts: Sequence[Op], key: int) -> None:
        super().__init__()
        self._left, self._key = iter(dropouts), key

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is F.multi_head_attention_forward:
            # written in Python: what it calls does not come here, and with this mode around it would call itself
            inside = {name: partial(self.__torch_function__, getattr(F, name), types) for name in _INSIDE}
            with patch.multiple(F, **{name: _called_as(call) for name, call in inside.items()}):
                return func(*args, **given)
        if func in _DROPOUTS:
            x = args[0] if args else given["input"]
            p = args[1] if len(args) > 1 else given.get("p", 0.5)
            training = args[2] if len(args) > 2 else given.get("training", given.get("train", True))
            return self._dropped(x) if training and p else x
        if func in _DRAWN:
            made = func(*args, **given)  # in place, or of this shape
            return made.copy_(self._drawn(made))
        if func is _ATTENTION and (args[4] if len(args) > 4 else given.get("dropout_p", 0.0)):
            return self._attended(*args[:4], **{name: value for name, value in given.items() if name != "dropout_p"})
        return func(*args, **given)

    def _attended(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attn_mask: Any = None, **rest: Any) -> Any:
        """softmax(q @ k.T * scale + mask), some of it dropped, @ v."""
        scale = rest.get("scale") or q.shape[-1] ** -0.5
        scores = q @ k.transpose(-2, -1) * scale
        if rest.get("is_causal"):
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None:
            is_bool = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if is_bool else scores + attn_mask
        return self._dropped(scores.softmax(-1)) @ v

    def _drawn(self, made: torch.Tensor) -> torch.Tensor:
        op = self._next()
        extra = {**op.attrs, "shape": tuple(made.shape)}
        return OPS[op.type].kernel(torch.tensor([self._key]), **extra, batch=1)

    def _next(self) -> Op:
        op = next(self._left, None)
        if op is None:
            raise RuntimeError("the model drops or draws more often than its net")
        return op

    def _dropped(self, x: torch.Tensor) -> torch.Tensor:
        op = self._next()
        p, seed = float(op.attrs["p"]), int(op.attrs["seed"])  # type: ignore[arg-type]
        mask = torch.from_numpy(kept(x.numel(), seed, self._key, p)).view(x.shape)
        return x * mask / (1 - p) if p < 1 else x * 0


def _dropouts(captured: Captured, plan: Plan) -> list[Op]:
    """The dropouts of the net in the order in which forward() has them, with the seeds of the plan."""
    drawing = ("Dropout", *DRAWS)
    seeded = {op.outputs[0]: op for op in plan.train.ops if op.type in drawing}
    return [seeded[op.outputs[0]] for op in captured.net.ops if op.type in drawing]


def _steps(model: nn.Module, captured: Captured, options: Options) -> list[torch.optim.Optimizer]:
    named = {name: p for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    tables = {id(p): p for name, p in named.items() if _is_table(name, captured)}
    dense = {id(p): p for p in named.values() if id(p) not in tables}
    return [
        _optimizer(options.dense_optimizer, list(dense.values())),
        _table_optimizer(options.sparse_optimizer, list(tables.values())),
    ]


def _is_table(name: str, captured: Captured) -> bool:
    return name in captured.net.parameters and captured.net.parameters[name].kind == "table"


def _batches(data: str, batch_size: int) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
    """Every batch in order, with the key that its dropouts are drawn by."""
    for batch in open_data(data).batches(
        batch_size=batch_size, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()
    ):
        yield batch.position.key, {name: torch.from_numpy(column) for name, column in batch.columns.items()}


def written(inputs: Inputs, num_rows: int, folder: Path) -> str:
    """Random rows in a CSV file and its schema; what --data calls them."""
    values = drawn(inputs, num_rows, seed=1)
    label = torch.randint(0, 2, (num_rows, 1), generator=torch.Generator().manual_seed(2))
    columns = {name: [f"{name}_{k}" for k in range(kind.width)] for name, kind in inputs.items()}
    schema = ["label: label", "inputs:"]
    for name, kind in inputs.items():
        listed = ", ".join(columns[name])
        schema.append(
            f"  {name}: {{kind: ids, columns: [{listed}], rows: {kind.rows}}}"
            if isinstance(kind, Ids)
            else f"  {name}: {{kind: dense, columns: [{listed}]}}"
        )
    (folder / "schema.yaml").write_text("\n".join(schema) + "\n")
    lines = [",".join(["label", *(c for name in inputs for c in columns[name])])]
    parts = [label, *(values[name] for name in inputs)]
    for k in range(num_rows):
        lines.append(",".join(repr(v) for part in parts for v in part[k].tolist()))
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return f"csv:{folder / 'rows.csv'}?schema={folder / 'schema.yaml'}"
