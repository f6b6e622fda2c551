"""Running plans in this process, and the same training by PyTorch alone."""

import copy
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from paper_ftrl import PaperFtrl
from row_optimizers import PartialRowwiseAdam, SparseMomentum
from torch import nn
from torch_schedules import scheduler

from htrain.data import START, Malformed, open_data
from htrain.executor.launch.role import RunningRole
from htrain.executor.roles.address_book import AddressBooks
from htrain.executor.settings import RunSettings
from htrain.executor.transport.port import Network
from htrain.plan.plan import Plan
from htrain.spec.clipping import Clip, ClipGlobalNorm, ClipNorm, ClipValue
from htrain.spec.optimizers import (
    Adagrad,
    Adam,
    AdamW,
    Ftrl,
    LazyMomentum,
    Optimizer,
    RowwiseAdagrad,
    RowwiseAdam,
    Sgd,
    SparseAdam,
)
from htrain.spec.options import Options


def run_roles(plan: Plan, folder: Path, settings: RunSettings, *, seconds: float = 60.0) -> dict[str, RunningRole]:
    """Run every role of a plan in this process to the end of the data; return them, stopped."""
    plan.save(folder)
    network = Network("inproc")
    roles = {name: RunningRole(name, plan, settings, network) for name in plan.cluster.roles}
    book = {name: address for role in roles.values() for name, address in role.endpoints.items()}
    try:
        for role in roles.values():
            if role.trainer:
                role.trainer.keep_losses = True
            role.fill()
        for name, own in AddressBooks(plan).of(list(roles), book):
            roles[name].start(own)
        deadline = time.monotonic() + seconds
        finished = False
        while not finished:
            finished = all(role.finished for role in roles.values() if role.trainer)
            for role in roles.values():
                if failed := role.error or role.reader_error:
                    raise failed
            assert time.monotonic() < deadline, f"not done after {seconds} s"
            time.sleep(0.002)
        return roles
    finally:
        for role in roles.values():
            role.stop()
        network.close()


def losses_of(plan: Plan, folder: Path, data: str) -> list[float]:
    """The loss of every step of a deterministic run of one trainer."""
    settings = RunSettings(folder, data, folder / "run", deterministic=True, deadline_seconds=20)
    role = run_roles(plan, folder, settings)["trainer:0:0"]
    assert role.trainer
    return role.trainer.losses


def torch_losses(model: nn.Module, data: str, options: Options, *, logit: str = "") -> list[float]:
    """The loss of every step when PyTorch trains a copy of `model` on the same batches."""
    model = copy.deepcopy(model)
    dense_step, sparse_step = sparse_and_dense_steps(model, options)
    criterion = nn.BCEWithLogitsLoss() if options.loss == "bce" else nn.MSELoss()
    asked = RowsAskedFor(model)
    schedules = [
        scheduler(step, schedule)
        for step, schedule in ((dense_step, options.dense_schedule), (sparse_step, options.sparse_schedule))
    ]
    losses = []
    for batch in batches_of(data, options.batch_size):
        label = batch.pop("label")
        outputs = model(**{name: value for name, value in batch.items() if name in _arguments(model)})
        output = outputs[logit] if logit else outputs
        loss = criterion(output.reshape(-1), label)
        model.zero_grad()
        (loss + asked.decay(options)).backward()
        clip_gradients(dense_step, options.dense_clip)
        dense_step.step()
        sparse_step.step()
        for changing in schedules:
            changing.step()
        losses.append(loss.item())
    return losses


def own_losses(model: nn.Module, data: str, options: Options) -> list[float]:
    """The loss of every step when PyTorch trains a copy of `model`, which returns its loss, on the same batches."""
    model = copy.deepcopy(model)
    steps, losses = sparse_and_dense_steps(model, options), []
    for batch in batches_of(data, options.batch_size):
        outputs = model(batch["dense"], batch["sparse"], batch["label"])
        loss = outputs["loss"] if isinstance(outputs, dict) else next(output for output in outputs if not output.dim())
        losses.append(stepped(model, loss, steps))
    return losses


def stepped(model: nn.Module, loss: torch.Tensor, steps: Sequence[torch.optim.Optimizer]) -> float:
    """The loss, once each optimizer has stepped by its gradients."""
    model.zero_grad()
    loss.backward()
    for step in steps:
        step.step()
    return loss.item()


def sparse_and_dense_steps(model: nn.Module, options: Options) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """The optimizer of a model's dense weights, and that of its tables."""
    lookups = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.num_embeddings > 16]
    for module in lookups:
        module.sparse = isinstance(options.sparse_optimizer, SparseAdam | RowwiseAdam | LazyMomentum)
    tables = [module.weight for module in lookups]
    sparse = {id(p) for p in tables}
    dense_step = _optimizer(options.dense_optimizer, [p for p in model.parameters() if id(p) not in sparse])
    sparse_step = _table_optimizer(options.sparse_optimizer, list({id(p): p for p in tables}.values()))
    for step in (dense_step, sparse_step):
        _set_rates(step, model, options)
    return dense_step, sparse_step


def _set_rates(step: torch.optim.Optimizer, model: nn.Module, options: Options) -> None:
    """A group for each parameter, with a rate of its own where a pattern of the options matches it; a rate of 0 is no gradient."""
    shares = {
        parameter: share
        for pattern, share in options.rates
        for name, parameter in model.named_parameters()
        if fnmatch(name, pattern)
    }
    for parameter in (p for p, share in shares.items() if not share):
        parameter.requires_grad_(False)
    step.param_groups = [
        {**group, "params": [p], "lr": group["lr"] * shares.get(p, 1.0)}
        for group in step.param_groups
        for p in group["params"]
        if p.requires_grad
    ]


class RowsAskedFor:
    """The distinct rows that the lookups of a model asked for since `decay` was last asked."""

    def __init__(self, model: nn.Module) -> None:
        self._ids: dict[nn.Parameter, list[torch.Tensor]] = {}
        for module in model.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.num_embeddings > 16:
                module.register_forward_pre_hook(self._note)

    def _note(self, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._ids.setdefault(module.weight, []).append(inputs[0].flatten())  # type: ignore[arg-type]

    def decay(self, options: Options) -> torch.Tensor:
        """What lazy weight decay adds to the loss: half of it times their squares."""
        ids, self._ids = self._ids, {}
        if not (decay := getattr(options.sparse_optimizer, "lazy_weight_decay", 0.0)):
            return torch.zeros(())  # gradients of tables may be sparse
        return sum(table[torch.cat(asked).unique()].square().sum() for table, asked in ids.items()) * decay / 2  # type: ignore[no-any-return]


def clip_gradients(step: torch.optim.Optimizer, clip: Clip) -> None:
    """Bound the gradient of each weight of an optimizer by itself, or those of all."""
    if isinstance(clip, ClipGlobalNorm):
        nn.utils.clip_grad_norm_([p for group in step.param_groups for p in group["params"]], clip.max_norm)
    for weight in (p for group in step.param_groups for p in group["params"]):
        if isinstance(clip, ClipNorm):
            nn.utils.clip_grad_norm_(weight, clip.max_norm)
        elif isinstance(clip, ClipValue):
            nn.utils.clip_grad_value_(weight, clip.max_value)


def _arguments(model: nn.Module) -> Sequence[str]:
    return model.forward.__code__.co_varnames[1 : model.forward.__code__.co_argcount]


def batches_of(data: str, batch_size: int) -> list[dict[str, torch.Tensor]]:
    """Every batch of a dataset, in order."""
    batches = open_data(data).batches(
        batch_size=batch_size, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()
    )
    return [{name: torch.from_numpy(column) for name, column in batch.columns.items()} for batch in batches]


class TableAdagrad(torch.optim.Optimizer):
    """torch.optim.Adagrad with a square root that is rounded correctly: torch's own may be off by its last bit (MKL's)."""

    def __init__(self, params: Sequence[nn.Parameter], lr: float, eps: float, first: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "first": first})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in _with_gradient(group):
                total = self.state.setdefault(p, {}).setdefault("sum", torch.full_like(p, group["first"]))
                total.addcmul_(p.grad, p.grad)
                p.addcdiv_(p.grad, exact_sqrt(total).add_(group["eps"]), value=-group["lr"])


def _with_gradient(group: Mapping[str, Any]) -> list[nn.Parameter]:
    """Those that the loss depends on: the others stay as they are, as with torch's own optimizers."""
    return [p for p in group["params"] if p.grad is not None]


def exact_sqrt(x: torch.Tensor) -> torch.Tensor:
    return x.double().sqrt().float()


class RowWiseAdagrad(torch.optim.Optimizer):
    """One accumulator per row, of the mean of the squared gradient: written from the formula, dense."""

    def __init__(self, params: Sequence[nn.Parameter], lr: float, eps: float, first: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "first": first})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in _with_gradient(group):
                total = self.state.setdefault(p, {}).setdefault("sum", torch.full(p.shape[:1], group["first"]))
                square = torch.zeros_like(total)
                for column in p.grad.unbind(1):
                    square += column * column
                total += square / p.shape[1]
                rate = torch.full_like(total, group["lr"]) / (exact_sqrt(total) + group["eps"])
                p -= rate[:, None] * p.grad


class FtrlByThePaper(torch.optim.Optimizer):
    """The paper's learner of each parameter; a gradient of 0 changes nothing, so that rows without one stay."""

    def __init__(self, params: Sequence[nn.Parameter], asked: Ftrl) -> None:
        super().__init__(params, {"lr": asked.lr})
        self._asked = asked

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for p in (p for group in self.param_groups for p in _with_gradient(group)):
            if "paper" not in self.state[p]:
                asked = self._asked
                first = p.double().numpy()
                self.state[p]["paper"] = PaperFtrl(first, asked.lr, asked.beta, asked.l1, asked.l2)
            self.state[p]["paper"].step(p.grad.double().numpy())
            p.copy_(torch.from_numpy(self.state[p]["paper"].weights))


def _optimizer(asked: Optimizer, params: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    if not params:
        return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=asked.lr)
    if isinstance(asked, Adagrad):
        first = asked.initial_accumulator
        return torch.optim.Adagrad(
            params, lr=asked.lr, eps=asked.eps, weight_decay=asked.weight_decay, initial_accumulator_value=first
        )
    if isinstance(asked, Ftrl):
        return FtrlByThePaper(params, asked)
    if isinstance(asked, Adam | AdamW):
        kind = torch.optim.Adam if isinstance(asked, Adam) else torch.optim.AdamW
        betas = (asked.beta1, asked.beta2)
        return kind(params, lr=asked.lr, betas=betas, eps=asked.eps, weight_decay=asked.weight_decay)
    assert isinstance(asked, Sgd)
    return torch.optim.SGD(
        params,
        lr=asked.lr,
        momentum=asked.momentum,
        dampening=asked.dampening,
        nesterov=asked.nesterov,
        weight_decay=asked.weight_decay,
    )


def _table_optimizer(asked: Optimizer, tables: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    if tables and isinstance(asked, Adagrad):
        return TableAdagrad(tables, asked.lr, asked.eps, asked.initial_accumulator)
    if tables and isinstance(asked, RowwiseAdagrad):
        return RowWiseAdagrad(tables, asked.lr, asked.eps, asked.initial_accumulator)
    if tables and isinstance(asked, Ftrl):
        return FtrlByThePaper(tables, asked)
    if tables and isinstance(asked, SparseAdam):
        return torch.optim.SparseAdam(tables, lr=asked.lr, betas=(asked.beta1, asked.beta2), eps=asked.eps)
    if tables and isinstance(asked, RowwiseAdam):
        return PartialRowwiseAdam(tables, asked)
    if tables and isinstance(asked, LazyMomentum):
        return SparseMomentum(tables, asked)
    return _optimizer(Sgd(asked.lr), tables)


def relative_differences(seen: Sequence[float], wanted: Sequence[float]) -> list[float]:
    """|seen - wanted| / |wanted| of each step."""
    assert len(seen) == len(wanted)
    return [abs(a - b) / max(abs(b), 1e-12) for a, b in zip(seen, wanted, strict=True)]


Values = Mapping[str, torch.Tensor]
