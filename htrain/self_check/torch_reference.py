"""The module itself under PyTorch: loss and gradients by autograd, on values that are put in for the time of a check."""

import io
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from htrain.errors import ModelError
from htrain.frontend.captured import Captured
from htrain.frontend.draws import in_evaluation
from htrain.frontend.graph_outputs import as_head, output_names
from htrain.frontend.unchanged import unchanged
from htrain.self_check.evaluation import Evaluated
from htrain.self_check.hidden_state import Counted, generators
from htrain.self_check.lazy_tables import LazyTables, stand_in
from htrain.self_check.outcome import Gradient, Outcome, Rows, loss_of, summed_rows
from htrain.self_check.values import Table, Values, draw, draw_table
from htrain.self_check.without_dropouts import WithoutDropouts

Slot = tuple[dict[str, Any], str]  # a module's parameters, and the name of one


class TorchReference:
    """`module`, which is left as it was; on the meta device or with values, of which none are used."""

    name = "PyTorch"
    batch_size = 13  # no dimension of a model's own

    def __init__(self, module: nn.Module, captured: Captured, logit: str | int) -> None:
        self._module, self._logit, self._own = module, logit, captured.has_own_loss
        self._captured = captured
        self._without = WithoutDropouts()
        self._parameters, self._slots = _parameters(module, captured)
        self._beside = {name: p for name, p in self._parameters.items() if name not in captured.net.parameters}
        paddings = (getattr(part, "padding_idx", None) for part in module.modules())
        self.padding_rows = frozenset(row for row in paddings if isinstance(row, int) and row >= 0)
        dense = [p.num_bytes for p in captured.net.parameters.values() if p.kind != "table"]
        self.dense_bytes = sum(dense) + sum(p.numel() * p.element_size() for p in self._beside.values() if p.dim() != 2)

    def run(
        self, values: Values, inputs: Mapping[str, torch.Tensor], label: torch.Tensor, loss: str, *, probability: bool
    ) -> Outcome:
        """One pass, forward and backward. Raises whatever the module raises."""
        with self._prepared(values) as (held, tables, mode), redirect_stdout(io.StringIO()):
            returned = self._run(inputs)
            outputs, total = self._scored(returned, label, loss, probability=probability)
            if total.requires_grad:
                total.backward()
            gradients = _gradients(held, tables, mode)
            return Outcome(
                float(total.detach()), outputs.detach(), gradients, _heads_in(returned, self._captured.heads)
            )

    def _scored(
        self, returned: Any, label: torch.Tensor, loss: str, *, probability: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What is scored, and the loss: the module's own, or one of ours."""
        if loss == "own":
            total, outputs = pick_own(returned, self._logit)
            return outputs.reshape(-1).float(), total
        outputs = pick(returned, self._logit).reshape(-1).float()
        return outputs, loss_of(outputs, label, loss, probability=probability)

    def _run(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        return self._module(**{name: value.clone() for name, value in inputs.items()})

    @contextmanager
    def _prepared(self, values: Values) -> Iterator[tuple[dict[str, nn.Parameter], dict[str, Table], LazyTables]]:
        """Within, the module can be run on `values`; afterwards it is as it was."""
        tables, dense = self._values_beside(values)
        lazy = {name: table for name, table in tables.items() if not table.is_small}
        dense.update({name: table.whole() for name, table in tables.items() if table.is_small})
        with (
            unchanged(self._module),
            self._holding(dense, lazy) as held,
            _buffers_kept(self._module),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            stand_ins = {id(held[name]): (name, table, self._parameters[name]) for name, table in lazy.items()}
            self._without = WithoutDropouts()
            with torch.enable_grad(), self._without, LazyTables(stand_ins) as mode:
                yield held, tables, mode

    def check_stateless(
        self, values: Values, inputs: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor] | None
    ) -> None:
        """Raises ModelError where forward() gives another result, or other gradients, the second time, behind another batch, or after many: what it keeps from
        one batch to the next is in no net; and where it draws by what torch.export cannot see."""
        with self._prepared(values) as prepared, redirect_stdout(io.StringIO()):
            counted, drawn = Counted(self._module), generators()
            first, second = (self._results(inputs, *prepared) for _ in range(2))
            if generators() != drawn:
                raise ModelError(
                    f"forward() of {type(self._module).__name__} draws by Python's random or by numpy, which a net cannot draw again: draw by torch.rand or "
                    f"torch.randn; --no-self-check compiles what it did the first time"
                )
            if not _are_alike(first, second):
                raise ModelError(
                    f"forward() of {type(self._module).__name__} gives another result for the same batch the second time: it draws random numbers or "
                    f"keeps something from one batch to the next, which no net does; --no-self-check compiles what it did the first time"
                )
            if other is not None:
                with suppress(Exception):  # with these values the user's forward() may raise anything of it
                    self._results(other, *prepared)
                if not _are_alike(first, self._results(inputs, *prepared)):
                    raise ModelError(
                        f"forward() of {type(self._module).__name__} gives another result for the same batch behind another one: it keeps something from one "
                        f"batch to the next, which no net does; --no-self-check compiles what it did the first time"
                    )
            name = counted.first_that_matters(lambda: _are_alike(first, self._results(inputs, *prepared)))
        if name:
            raise ModelError(
                f"forward() counts in '{name}', and gives another result for the same batch when it has counted far: every batch would be trained as the "
                f"first; make what changes an input, or constant; --no-self-check compiles what it did the first time"
            )

    def check_follows(self, values: Values, later: Values, inputs: Mapping[str, torch.Tensor]) -> None:
        """Raises ModelError where forward() gives another result by `later` values of its parameters behind a pass by the first `values`: it keeps what it made
        of these, which no net does. What it raises by one of them is not told."""
        try:
            with redirect_stdout(io.StringIO()):
                with self._prepared(later) as prepared:
                    wanted = self._results(inputs, *prepared)
                with self._prepared(values) as before:
                    self._results(inputs, *before)
                    with self._prepared(later) as prepared:
                        found = self._results(inputs, *prepared)
        except Exception:  # the user's forward() may raise anything
            return
        if not _are_alike(wanted, found):
            raise ModelError(
                f"forward() of {type(self._module).__name__} keeps what it once made of its parameters, and gives another result when these have changed: here "
                f"it would be made anew of each step's; make it in __init__ and register it as a buffer; --no-self-check compiles it so"
            )

    def _results(
        self,
        inputs: Mapping[str, torch.Tensor],
        held: Mapping[str, nn.Parameter],
        tables: Mapping[str, Table],
        mode: LazyTables,
    ) -> list[torch.Tensor]:
        """All that forward() returns, and the gradients of a sum of it, whose weights are the same each time."""
        mode.leaves.clear()
        for parameter in held.values():
            parameter.grad = None
        leaves = [leaf for leaf in _pytree.tree_leaves(self._run(inputs)) if isinstance(leaf, torch.Tensor)]
        generator = torch.Generator().manual_seed(0)
        parts = [
            (leaf.float() * torch.rand(leaf.shape, generator=generator)).sum()
            for leaf in leaves
            if leaf.requires_grad and leaf.is_floating_point()
        ]
        with suppress(RuntimeError):  # nobody asks for the gradient of each of them
            torch.stack(parts).sum().backward()
        found = [gradient for _, gradient in sorted(_gradients(held, tables, mode).items())]
        gradients = [gradient.rows if isinstance(gradient, Rows) else gradient for gradient in found]
        return [each.detach().clone() for each in (*leaves, *gradients)]

    def evaluated(self, values: Values, inputs: Mapping[str, torch.Tensor], captured: Captured) -> Evaluated:
        """What is scored in evaluation, and those of the heads that are there. Raises whatever the module raises."""
        with (
            self._prepared(values),
            in_evaluation(self._module),
            redirect_stdout(io.StringIO()),
            torch.no_grad(),
            _padded_encoders(self._module) as padded,
        ):
            outputs = self._run(inputs)
            if captured is self._captured and self._own and _returns_loss(outputs):
                _, scores = pick_own(outputs, self._logit)
            else:
                scores = pick(outputs, self._logit if captured is self._captured else captured.scored)
            told = [scores, *_heads_in(outputs, captured.heads).values()]
            return Evaluated(
                torch.cat([each.reshape(-1).float().detach() for each in told]),
                drops=self._without.drops,
                blanks=bool(padded),
            )

    def _values_beside(self, values: Values) -> tuple[dict[str, Table], dict[str, torch.Tensor]]:
        """Values for all parameters: those of the net, and others for what the logit does not need."""
        generator = torch.Generator().manual_seed(0)
        tables, dense = dict(values.tables), dict(values.dense)
        for name, p in self._beside.items():
            if p.dim() == 2:
                tables[name] = draw_table(tuple(p.shape), generator, positive=False, scale=1.0)
            else:
                dense[name] = draw(
                    tuple(p.shape), str(p.dtype).removeprefix("torch."), generator, positive=False, scale=1.0
                )
        return tables, {name: value for name, value in dense.items() if name in self._parameters}

    @contextmanager
    def _holding(
        self, dense: Mapping[str, torch.Tensor], lazy: Mapping[str, Table]
    ) -> Iterator[dict[str, nn.Parameter]]:
        """Within, the module's parameters hold these values; the parameters that stand for them, by name, without gradients.

        A parameter with values keeps its identity, whoever has hold of it; one on the meta device is replaced, with its hooks.
        """
        held: dict[str, nn.Parameter] = {}
        saved: list[tuple[nn.Parameter, torch.Tensor, torch.Tensor | None]] = []
        try:
            for name, parameter in self._parameters.items():
                value = stand_in(lazy[name]) if name in lazy else dense[name].to(parameter.dtype).clone()
                if parameter.is_meta:
                    held[name] = _twin(parameter, value)
                    for space, key in self._slots[name]:
                        space[key] = held[name]
                else:
                    saved.append((parameter, parameter.data, parameter.grad))
                    parameter.data, parameter.grad = value, None
                    held[name] = parameter
            yield held
        finally:
            for parameter, value, gradient in saved:
                parameter.grad, parameter.data = None, value
                parameter.grad = gradient
            for name, slots in self._slots.items():
                for space, key in slots:
                    space[key] = self._parameters[name]


@contextmanager
def _padded_encoders(module: nn.Module) -> Iterator[list[nn.Module]]:
    """The encoders that are told within which places are padding, and for which PyTorch would take its fast path, did nobody listen."""
    found: list[nn.Module] = []

    def note(encoder: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if (given[2] if len(given) > 2 else named.get("src_key_padding_mask")) is not None:
            found.append(encoder)

    encoders = [part for part in module.modules() if getattr(part, "use_nested_tensor", False)]
    hooks = [part.register_forward_pre_hook(note, with_kwargs=True) for part in encoders]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _heads_in(returned: Any, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Those of the outputs that were captured as heads, by name, as far as they are there."""
    named = {
        as_head(name): leaf for name, leaf in zip(output_names(returned), _pytree.tree_leaves(returned), strict=True)
    }
    return {name: named[name].detach().float() for name in names if isinstance(named.get(name), torch.Tensor)}


def _are_alike(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    """Whether two passes over a batch gave the same, but for the order of their sums."""
    return len(first) == len(second) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-6, atol=1e-7, equal_nan=True)
        for a, b in zip(first, second, strict=True)
    )


def _parameters(module: nn.Module, captured: Captured) -> tuple[dict[str, nn.Parameter], dict[str, list[Slot]]]:
    """Every parameter once, by the name that the net has for it, and where modules keep it. Masks, places and sparse matrices, which the net has as constants,
    stay as they are.
    """
    names: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name in captured.net.parameters or id(parameter) not in names:
            names[id(parameter)] = name
    slots: dict[str, list[Slot]] = {name: [] for name in names.values()}
    for owner in module.modules():
        for key, value in owner._parameters.items():
            if value is not None:
                slots[names[id(value)]].append((owner._parameters, key))
    drawn = [
        p
        for p in module.parameters()
        if (p.is_floating_point() and p.layout == torch.strided) or names[id(p)] in captured.net.parameters
    ]
    return {names[id(p)]: p for p in drawn}, {names[id(p)]: slots[names[id(p)]] for p in drawn}


def _twin(parameter: nn.Parameter, value: torch.Tensor) -> nn.Parameter:
    """A parameter with a value and the hooks of one without."""
    twin = nn.Parameter(value, requires_grad=parameter.requires_grad)
    for hook in (parameter._backward_hooks or {}).values():
        twin.register_hook(hook)
    for hook in (parameter._post_accumulate_grad_hooks or {}).values():
        twin.register_post_accumulate_grad_hook(hook)
    return twin


@contextmanager
def _buffers_kept(module: nn.Module) -> Iterator[None]:
    kept = [
        (buffer, buffer.clone()) for buffer in module.buffers() if not buffer.is_meta and buffer.layout == torch.strided
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in kept:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


def _gradients(held: Mapping[str, nn.Parameter], tables: Mapping[str, Table], mode: LazyTables) -> dict[str, Gradient]:
    found: dict[str, Gradient] = {}
    for name, parameter in held.items():
        if name in mode.leaves:
            parts = [(ids, rows.grad.to_dense()) for ids, rows in mode.leaves[name] if rows.grad is not None]
            if parts:
                found[name] = summed_rows(parts)
        elif parameter.grad is not None:
            dense = parameter.grad.to_dense() if parameter.grad.layout != torch.strided else parameter.grad
            found[name] = summed_rows([(torch.arange(len(dense)), dense)]) if name in tables else dense
    return found


def _returns_loss(outputs: Any) -> bool:
    """Whether what forward() returns has what may be its loss, and something beside it."""
    tensors = [leaf for leaf in _pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    return len(tensors) > 1 and ("loss" in output_names(outputs) or any(not leaf.dim() for leaf in tensors))


def pick_own(outputs: Any, logit: str | int) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss that a model returns, and what is scored, as the frontend finds them."""
    leaves, names = _pytree.tree_leaves(outputs), output_names(outputs)
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    place = names.index("loss") if "loss" in names else next(i for i in tensors if not leaves[i].dim())
    others = [i for i in tensors if i != place and (not str(logit) or str(logit) in (names[i], str(i)))]
    return leaves[place], leaves[others[0]]


def pick(outputs: Any, logit: str | int) -> torch.Tensor:
    """The output that `logit` names, by key or position, as the frontend does. Raises ModelError."""
    leaves, names = _pytree.tree_leaves(outputs), output_names(outputs)
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)] or [0]
    place = names.index(str(logit)) if str(logit) in names else tensors[int(logit) if str(logit).isdigit() else 0]
    if not isinstance(leaves[place], torch.Tensor):
        raise ModelError(f"output {names[place]} of the model is no tensor")
    return leaves[place]
