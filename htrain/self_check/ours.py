"""The captured net as a trainer runs it: lowered, with its loss and gradient ops, op by op by htrain's own kernels. Nothing is dropped."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from htrain.compiler.fusing import fuse_forward
from htrain.compiler.lowering import as_trained, evaluation_net, forward_net, net_of_heads
from htrain.errors import ModelError
from htrain.frontend.captured import Captured
from htrain.net.names import head_name
from htrain.net.net import Net, Op
from htrain.net.rewriting import with_heads
from htrain.ops import OPS
from htrain.ops.draw import all_alike, is_draw
from htrain.self_check.outcome import Gradient, Outcome, summed_rows
from htrain.self_check.values import Values
from htrain.self_check.without_dropouts import known_draw
from htrain.spec.options import Options
from htrain.transform.dropout import without_dropouts
from htrain.transform.evaluation import as_evaluated
from htrain.transform.gradient import add_gradients
from htrain.transform.loss import final_sigmoid


def without_draws(net: Net) -> Net:
    """The net with nothing dropped, and one number for all that it draws."""
    return without_dropouts(known_draws(net))


def known_draws(net: Net) -> Net:
    """The net with one number for all that it draws."""
    return net.with_ops(all_alike(op, known_draw()) if is_draw(op) else op for op in net.ops)


class Ours:
    """A captured model, ready to run. `probability`: what the model returns is the sigmoid of the logit; `evaluates_probability`: in evaluation. `ops` are its
    own, with what they draw."""

    def __init__(self, captured: Captured, options: Options) -> None:
        full = replace(
            options.numerics, fc_dtype="float32", fc_gradient_dtype="float32"
        )  # shorter FCs are off by what they were asked to be off by
        exact = replace(options, numerics=full)
        lowered = forward_net(captured, exact)
        self._heads = net_of_heads(captured, exact)
        self.ops = lowered.ops
        apart = evaluation_net(captured, exact)
        self._evaluation = known_draws(as_evaluated(apart or with_heads(as_trained(lowered), self._heads)))
        forward = fuse_forward(without_draws(lowered), exact)
        self.net, self._gradients = add_gradients(forward)
        self._statistics = [name for name, p in self.net.parameters.items() if p.kind == "statistic"]
        self._lookups = {op.inputs[0]: op for op in self.net.ops if op.type == "Lookup"}
        self.probability = final_sigmoid(captured.net, options.loss) is not None
        scored = (captured.evaluation or captured).net
        self.evaluates_probability = final_sigmoid(scored, options.loss) is not None

    def run(self, values: Values, inputs: Mapping[str, torch.Tensor], label: torch.Tensor) -> Outcome:
        """Raises ModelError naming the op that does not run."""
        known = self._known(values, inputs, label)
        loss, logit = (known[name] for name in self.net.outputs[:2])
        outputs = torch.sigmoid(logit) if self.probability else logit
        heads = self._heads_in(known, values, len(label))
        return Outcome(float(loss), outputs.reshape(-1), self._gradients_in(known), heads)

    def logits(self, values: Values, inputs: Mapping[str, torch.Tensor], label: torch.Tensor) -> torch.Tensor:
        """The logits alone. Raises ModelError naming the op that does not run."""
        return self._known(values, inputs, label)[self.net.outputs[1]]

    def evaluated(self, values: Values, inputs: Mapping[str, torch.Tensor], label: torch.Tensor) -> torch.Tensor:
        """What is scored in evaluation, and behind it heads, in one vector. Raises ModelError naming the op that does not run."""
        known = {**values.dense, **inputs, "label": label}
        with torch.no_grad():
            for op in self._evaluation.ops:
                known.update(zip(op.outputs, _run(op, known, values, len(label)), strict=True))
        _, logit, *heads = (known[name].reshape(-1).float() for name in self._evaluation.outputs)
        return torch.cat([torch.sigmoid(logit) if self.evaluates_probability else logit, *heads])

    def _heads_in(self, known: dict[str, torch.Tensor], values: Values, batch_size: int) -> dict[str, torch.Tensor]:
        """The heads, float32[B] or [B,K] each, by name."""
        if not self._heads:
            return {}
        made = dict(known)
        with torch.no_grad():
            for op in self._heads.ops:
                made.update(zip(op.outputs, _run(op, made, values, batch_size), strict=True))
        return {head_name(name): made[name].float() for name in self._heads.outputs}

    def _known(
        self, values: Values, inputs: Mapping[str, torch.Tensor], label: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        # Batch norms move their statistics, which here are the model's own
        statistics = {name: values.dense[name].clone() for name in self._statistics}
        known = {**values.dense, **statistics, **inputs, "label": label}
        with torch.no_grad():
            for op in self.net.ops:
                known.update(zip(op.outputs, _run(op, known, values, len(label)), strict=True))
        return known

    def _gradients_in(self, known: Mapping[str, torch.Tensor]) -> dict[str, Gradient]:
        found: dict[str, Gradient] = {}
        for name, parameter in self.net.parameters.items():
            if parameter.kind == "table":
                lookup = self._lookups[name]
                rows = self._gradients.get(lookup.outputs[0])
                if rows and parameter.trained:
                    found[name] = summed_rows([(known[lookup.inputs[1]], known[rows])])
            elif name in self._gradients:
                found[name] = known[self._gradients[name]]
        return found


def _run(op: Op, known: Mapping[str, torch.Tensor], values: Values, batch_size: int) -> tuple[torch.Tensor, ...]:
    try:
        if op.type == "Lookup":
            return (values.tables[op.inputs[0]].rows(known[op.inputs[1]]),)
        return OPS[op.type].run(op, [known[name] for name in op.inputs], batch_size)
    except (RuntimeError, ValueError, IndexError, TypeError, ZeroDivisionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{op.label} cannot be run: {reason}") from error
