"""The check: a captured model and its reference on a few random batches, and what is said where they differ."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from htrain.errors import ModelError
from htrain.frontend.captured import Captured
from htrain.ops.draw import is_draw
from htrain.self_check.compare import Difference, differences, noise_between
from htrain.self_check.evaluation import Batch, Evaluating, EvaluationCheck
from htrain.self_check.inputs import Drawing, Inputs
from htrain.self_check.other_examples import DEPENDS, depends_on_others
from htrain.self_check.ours import Ours, without_draws
from htrain.self_check.outcome import Outcome, Rows
from htrain.self_check.values import Table, Values, draw_values
from htrain.self_check.without_dropouts import KNOWN_DRAWS, all_drawn
from htrain.spec.options import Options
from htrain.transform.padding import starts_as_zeros

_MOST_DENSE_BYTES = 1 << 30
_LARGEST_LOGIT = 4.0  # a larger one leaves a sigmoid without a gradient
_HALVINGS = 12
_LAST_BITS = 3e-7  # by how much of themselves values are changed to see what rounding does
_DRAWS = 3
_PROBABILITY_DRAWS = 8
_REPEATED = 6  # examples of a batch, of which some have short sequences

Tensors = Mapping[str, torch.Tensor]


class Reference(Evaluating, Protocol):
    """What a captured model is compared with: `name` in messages, the number of examples that it takes, and the rows that it takes for padding."""

    name: str
    batch_size: int
    padding_rows: frozenset[int]
    dense_bytes: int

    def run(self, values: Values, inputs: Tensors, label: torch.Tensor, loss: str, *, probability: bool) -> Outcome:
        """One pass over a batch. Raises whatever the model raises."""

    def check_stateless(self, values: Values, inputs: Tensors, other: Tensors | None) -> None:
        """Raises ModelError where another pass over the same batch gives another result, behind a pass over the `other` batch too, or could."""

    def check_follows(self, values: Values, later: Values, inputs: Tensors) -> None:
        """Raises ModelError where a pass by `later` values gives another result behind one by the first `values`."""


class Unsuitable(Exception):
    """No batch was found on which the model and its reference can be compared; says why."""


@dataclass(frozen=True)
class Draw:
    """A batch, the values of the parameters, and what the reference makes of them."""

    values: Values
    inputs: Tensors
    label: torch.Tensor
    theirs: Outcome


@dataclass(frozen=True)
class Found:
    """`notes` say what could not be compared, none where everything was and is equal up to rounding. `captured` is the model, which may do something else in
    evaluation than it was known to do."""

    notes: tuple[str, ...]
    captured: Captured


def check(
    captured: Captured,
    reference: Reference,
    example: Tensors,
    options: Options,
    *,
    evaluation: Callable[[], Captured] | None = None,
) -> Found:
    """Compare a captured model with its reference; `evaluation` captures it in evaluation, where that is something else.

    Raises ModelError naming the loss or the parameter that would be trained otherwise than by the reference, or the op that does not run.
    """
    if reference.dense_bytes > _MOST_DENSE_BYTES:
        size = f"its dense weights take {reference.dense_bytes / 2**30:.1f} GiB, more than a self-check may"
        return Found((f"not compared with {reference.name}: {size}",), captured)
    try:
        with _one_thread():
            of_evaluation = EvaluationCheck(captured, reference, options, evaluation)
            found = _Check(captured, reference, example, options).run(of_evaluation)
    except Unsuitable as error:
        if not _draws(captured):
            return Found((f"not compared with {reference.name}: {error}",), captured)
        return _check_by_other_draws(captured, reference, example, options, unsuitable=error)
    if _draws(captured):
        _check_by_other_draws(captured, reference, example, options)
    return found


def _draws(captured: Captured) -> bool:
    return any(is_draw(op) for op in captured.net.ops)


def _check_by_other_draws(
    captured: Captured,
    reference: Reference,
    example: Tensors,
    options: Options,
    *,
    unsuitable: Unsuitable | None = None,
) -> Found:
    """The same with another number for all that is drawn, which masks of few places pick by. What a model does in evaluation is not asked again.

    Where it could not be compared by the first, for the reason that is `unsuitable`, nor can it by this, that is what is found.
    """
    try:
        with _one_thread(), all_drawn(KNOWN_DRAWS[1]):
            _Check(captured, reference, example, options).compare()
    except Unsuitable:
        if unsuitable:
            return Found((f"not compared with {reference.name}: {unsuitable}",), captured)
    return Found((), captured)


@contextmanager
def _one_thread() -> Iterator[None]:
    """A small batch is done before threads have met."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Check:
    def __init__(self, captured: Captured, reference: Reference, example: Tensors, options: Options) -> None:
        self._captured, self._reference, self._example, self._loss = captured, reference, example, options.loss
        self._options = options
        self._ours = Ours(captured, options)
        self._inputs: Inputs | None = None

    def run(self, of_evaluation: EvaluationCheck) -> Found:
        draw = self._draw(0)
        if self._loss == "bce_probability":
            _check_probability(draw.theirs.outputs)
        self._reference.check_stateless(draw.values, draw.inputs, self._other_inputs())
        self._reference.check_follows(draw.values, self._values(_DRAWS, positive=False, scale=0.5), draw.inputs)
        others = (self._values(100 + seed, positive=False, scale=1.0 + seed) for seed in range(_PROBABILITY_DRAWS))
        batch = Batch(draw.values, draw.inputs, draw.label, others)
        captured = of_evaluation.run(self._ours, batch)
        self._compare(draw)
        of_one = self._of_one_example(draw)
        if self._captured.supposed:
            self._check_nothing_picked(draw)
        if self._captured.of_lengths:
            self._check_short_sequences(draw)
        if self._loss == "bce" and not self._ours.probability:
            self._check_range(draw)
        of_others = [DEPENDS] if self._depends_on_others(captured, draw) else []
        return Found((*of_evaluation.notes, *of_one, *of_others), captured)

    def compare(self) -> None:
        """Loss and gradients alone. Raises ModelError where they differ, and Unsuitable."""
        self._compare(self._draw(0))

    def _compare(self, draw: Draw) -> None:
        found = self._differences(draw)
        for seed in range(1, _DRAWS):  # one may come of a kink that a value happens to lie on
            if found and (again := self._differences(self._draw(seed))):
                lines, name = self._captured.of_lengths, self._reference.name
                raise ModelError(_message_of_lengths(again[0], lines, name) if lines else _message(again, name))

    def _of_one_example(self, draw: Draw) -> list[str]:
        """A sentence where the reference does something else with a batch of one example, as an if of the batch's size may: no net has another way to go, and
        torch.export follows that of more. What it raises would end a training with PyTorch."""
        assert self._inputs
        for seed in range(2):  # one may come of a kink
            generator = torch.Generator().manual_seed(seed)
            inputs, label = self._inputs.draw(Drawing(1, False, generator)), draw.label[:1]
            inputs = {**inputs, "label": label} if "label" in draw.inputs else inputs
            theirs = self._theirs_if_any(draw.values, inputs, label)
            if theirs is None or not self._differences(replace(draw, inputs=inputs, label=label, theirs=theirs)):
                return []
        return [
            "a batch of one example, as the last of an epoch may be, is trained as one of more, and forward() goes another way there: give a --batch-size that "
            "leaves no single one"
        ]

    def _depends_on_others(self, captured: Captured, draw: Draw) -> bool:
        """Whether examples depend on each other by ops of which no note tells."""
        if captured.mixing or (captured.evaluation and captured.evaluation.mixing) or len(draw.label) < 2:
            return False
        ours = self._ours if captured is self._captured else Ours(captured, self._options)
        try:
            draws = (self._draw(seed) if seed else draw for seed in range(2))  # one may come of a kink
            return all(depends_on_others(ours, Batch(d.values, d.inputs, d.label)) for d in draws)
        except (Unsuitable, ModelError):  # nothing is known of batches that it does not run on
            return False

    def _check_nothing_picked(self, draw: Draw) -> None:
        """Raises ModelError where the reference goes another way in batches of which most masks pick nothing: ids that are padding, no click and
        numbers below 0; and, for masks of the others, one id, clicks alone and numbers above 0.

        What it raises of such a batch, or makes of it that is not finite, would end a training with PyTorch: there is nothing to compare.
        """
        for number in (0, 1):
            inputs = {name: _of_one_kind(name, value, number) for name, value in draw.inputs.items()}
            label = torch.full_like(draw.label, number)
            theirs = self._theirs_if_any(draw.values, inputs, label)
            if theirs is None:
                continue
            found = differences(self._ours.run(draw.values, inputs, label), theirs, noise={})
            if found:
                raise ModelError(_message_of_nothing(found[0], self._captured.supposed, self._reference.name))

    def _check_short_sequences(self, draw: Draw) -> None:
        """Raises ModelError where the reference makes something else of a batch whose longest sequence is shorter than what was packed: batches of one
        example again and again, whose sequences are all as long. Those of which it raises would end a training with PyTorch."""
        for place in range(_REPEATED):
            inputs = {name: _repeated(name, value, place, draw.inputs) for name, value in draw.inputs.items()}
            label = draw.label[[place] * len(draw.label)]
            theirs = self._theirs_if_any(draw.values, inputs, label)
            if theirs is None:
                continue
            found = self._differences(replace(draw, inputs=inputs, label=label, theirs=theirs))
            if found:
                raise ModelError(_message_of_lengths(found[0], self._captured.of_lengths, self._reference.name))

    def _other_inputs(self) -> Tensors | None:
        """Another batch than the first; None where none is found."""
        try:
            return self._draw(_DRAWS).inputs
        except (Unsuitable, ModelError):
            return None

    def _theirs_if_any(self, values: Values, inputs: Tensors, label: torch.Tensor) -> Outcome | None:
        """What the reference makes of a batch of a special kind; None where it raises something, or it is not finite. Raises ModelError."""
        try:
            theirs = self._theirs(values, inputs, label)
        except ModelError:
            raise
        except Exception:  # the user's forward() may raise anything
            return None
        return theirs if _is_finite(theirs) else None

    def _differences(self, draw: Draw) -> list[Difference]:
        ours = self._ours.run(draw.values, draw.inputs, draw.label)
        found = differences(ours, draw.theirs, noise={})
        if not found:
            return []
        disturbed = self._theirs(_disturbed(draw.values), draw.inputs, draw.label)
        return differences(ours, draw.theirs, noise=noise_between(draw.theirs, disturbed))

    def _theirs(self, values: Values, inputs: Tensors, label: torch.Tensor) -> Outcome:
        return self._reference.run(values, inputs, label, self._loss, probability=self._ours.probability)

    # -- batches -----------------------------------------------------------------------------------------------------

    def _draw(self, seed: int) -> Draw:
        """Values and a batch on which the loss is finite. Raises Unsuitable, or ModelError where our ops cannot be run on any."""
        failed: Exception | None = None
        why = ""
        for kind in ("any", "tame", "example"):
            try:
                draw = self._settled(self._drawn(kind, seed))
            except ModelError as error:
                failed = error
            except Exception as error:  # the user's forward() may raise anything
                why = f"it raises {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            else:
                if _is_finite(draw.theirs):
                    return draw
                why = "its loss is not finite on random batches"
        if failed is not None:
            raise failed
        raise Unsuitable(why)

    def _drawn(self, kind: str, seed: int) -> Draw:
        generator = torch.Generator().manual_seed(seed)
        count, tame = self._reference.batch_size, kind == "tame"
        values = self._values(seed, positive=tame, scale=1.0)
        if self._inputs is None:
            self._inputs = Inputs(
                without_draws(self._captured.net), self._example, values.dense, often=self._padding_rows()
            )
        inputs: Tensors = self._example
        if kind != "example":
            inputs = self._inputs.draw(Drawing(count, tame, generator))
        else:
            count = _num_examples(inputs)
        label = torch.randint(0, 2, (count,), generator=generator).float()
        if self._loss == "mse":
            label = torch.randn(count, generator=generator)
        if "label" in inputs:  # of a model that computes its own loss
            inputs = {**inputs, "label": label}
        values = self._moderate(values, inputs, label, seed, positive=tame)
        return Draw(values, inputs, label, self._theirs(values, inputs, label))

    def _values(self, seed: int, *, positive: bool, scale: float) -> Values:
        generator = torch.Generator().manual_seed(1000 + seed)
        return draw_values(self._captured, generator, positive=positive, scale=scale)

    def _moderate(self, values: Values, inputs: Tensors, label: torch.Tensor, seed: int, *, positive: bool) -> Values:
        """Values that give no logit that is large."""
        for halving in range(1, _HALVINGS + 1):
            logits = self._ours.logits(values, inputs, label)
            if logits.abs().max() <= _LARGEST_LOGIT:
                break
            values = self._values(seed, positive=positive, scale=0.5**halving)
        return values

    def _padding_rows(self) -> frozenset[int]:
        rows = {op.attrs.get("padding_idx", -1) for op in self._captured.net.ops}
        return self._reference.padding_rows | {row for row in rows if isinstance(row, int) and row >= 0}

    def _settled(self, draw: Draw) -> Draw:
        """`draw` with zeros in the padding rows that start as zeros and that the reference never steps: nobody need read them."""
        tables = {
            name: replace(table, zero_rows=frozenset(self._zero_rows(name, table, draw.theirs)))
            for name, table in draw.values.tables.items()
        }
        if all(table.zero_rows == draw.values.tables[name].zero_rows for name, table in tables.items()):
            return draw
        values = replace(draw.values, tables=tables)
        return replace(draw, values=values, theirs=self._theirs(values, draw.inputs, draw.label))

    def _zero_rows(self, name: str, table: Table, theirs: Outcome) -> Iterator[int]:
        gradient = theirs.gradients.get(name)
        for row in self._padding_rows():
            if row < table.num_rows and starts_as_zeros(
                self._captured.net.parameters[name], row, self._captured.values.get(name)
            ):
                stepped = isinstance(gradient, Rows) and bool(gradient.rows[gradient.ids == row].any())
                if not stepped:
                    yield row

    # -- a loss that stands twice ------------------------------------------------------------------------------------

    def _check_range(self, draw: Draw) -> None:
        """Raises ModelError for a model that gives a probability, whatever its weights: the bce loss takes its sigmoid."""
        for seed in range(_PROBABILITY_DRAWS):
            outputs = draw.theirs.outputs
            if outputs.min() < 0 or outputs.max() > 1:
                return
            values = self._values(100 + seed, positive=False, scale=1.0 + seed)
            draw = replace(draw, theirs=self._theirs(values, draw.inputs, draw.label))
        raise ModelError(
            "the model's output is between 0 and 1 whatever its weights are: a probability, of which the bce loss would take the sigmoid again: "
            "return the logit (name it with --logit), or train with --loss bce_probability"
        )


def _check_probability(outputs: torch.Tensor) -> None:
    """Raises ModelError for outputs that are no probabilities."""
    if outputs.min() < 0 or outputs.max() > 1:
        raise ModelError(
            f"the model's output is {float(outputs.min()):.3g} to {float(outputs.max()):.3g} on a random batch, no probability, as the loss bce_probability "
            "takes it: train a logit with --loss bce"
        )


def _of_one_kind(name: str, value: torch.Tensor, number: int) -> torch.Tensor:
    """All ids and labels are 0 or 1, and all numbers of the sign that goes with it."""
    if name == "label" or not value.is_floating_point():
        return torch.full_like(value, number)
    return value.abs() if number else -value.abs()


def _repeated(name: str, value: torch.Tensor, place: int, inputs: Tensors) -> torch.Tensor:
    """One example again and again; lists of bags, which are no sequences, stay as they are."""
    is_bag = f"{name}_offsets" in inputs or name.endswith("_offsets")
    return value if is_bag else value[[place] * len(value)]


def _disturbed(values: Values) -> Values:
    generator = torch.Generator().manual_seed(7)

    def changed(value: torch.Tensor) -> torch.Tensor:
        if not value.is_floating_point():
            return value
        return value * (1 + _LAST_BITS * torch.randn(value.shape, generator=generator)).to(value.dtype)

    tables = {name: replace(table, base=changed(table.base)) for name, table in values.tables.items()}
    return Values({name: changed(value) for name, value in values.dense.items()}, tables)


def _num_examples(inputs: Tensors) -> int:
    return next(len(value) for name, value in inputs.items() if f"{name}_offsets" not in inputs)


def _is_finite(outcome: Outcome) -> bool:
    entries = (g.rows if isinstance(g, Rows) else g for g in outcome.gradients.values())
    return math.isfinite(outcome.loss) and all(bool(torch.isfinite(e).all()) for e in entries)


def _message_of_nothing(found: Difference, lines: Sequence[str], reference: str) -> str:
    return (
        f"forward() goes another way where a mask picks nothing ({', '.join(lines)}): in a batch of which ids and labels are 0, "
        f"{found.what} is {found.ours:.4g}, by {reference} {found.theirs:.4g}; what is picked of nothing is a sum of 0 here: "
        f"divide it by max(len(picked), 1), and write the other way as torch.where; --no-self-check compiles it all the same"
    )


def _message_of_lengths(found: Difference, lines: Sequence[str], reference: str) -> str:
    return (
        f"forward() asks how long the longest sequence of a batch is, or takes all steps of packed sequences together ({', '.join(lines)}): {found.what} is "
        f"{found.ours:.4g}, by {reference} {found.theirs:.4g}; here sequences are as long as what was packed, with zeros behind their ends: give "
        f"pad_packed_sequence total_length, and no weight to what is behind an end; --no-self-check compiles it all the same"
    )


def _message(found: list[Difference], reference: str) -> str:
    first, others = found[0], len(found) - 1
    if math.isinf(first.share):
        how = f"is {first.ours:.4g}, by {reference} {first.theirs:.4g}"
    else:
        how = f"differs by {first.share:.2%} ({first.ours:.6g}, by {reference} {first.theirs:.6g})"
    more = f", and {others} more" if others else ""
    return (
        f"the self-check found that this model would not be trained as by {reference}: {first.what} {how}{more}; look in forward() for what no exported "
        f"graph holds (hooks, state, a backward of its own) and write it as ops; --no-self-check compiles it all the same"
    )
