"""One model through htrain: captured, compared with PyTorch by the self-check, compiled, and trained for a few steps beside PyTorch."""

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import torch

from htrain.compiler.pipeline import compile_net
from htrain.data import CRITEO
from htrain.errors import Error, ModelError
from htrain.frontend.captured import Captured
from htrain.self_check.capture import Model, capture_model
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from library_models.case import Case, drawn
from library_models.pairs import Pair, placements_of
from library_models.result import BOUND, Result
from library_models.training import Training

_EXAMPLES = 6
_OF_PROBABILITY = "train with --loss bce_probability"
_DIFFERS = "would not be trained as by"
_T = TypeVar("_T")


def limited(case: Case, *, pairs: Sequence[Pair], seconds: float) -> Result:
    """`checked` in a process of its own, which is ended after so many seconds."""
    context = get_context("fork")  # what the library has imported is there already
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(theirs, case, pairs))
    began = time.monotonic()
    child.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return Result(case.library, case.name, "crash", f"not done after {seconds:.0f} s", seconds=seconds)
        result: Result = ours.recv()
        return replace(result, seconds=time.monotonic() - began)
    except EOFError:
        child.join()
        return Result(case.library, case.name, "crash", f"the process ended with {child.exitcode}")
    finally:
        child.kill()
        child.join()


def _send(end: Connection, case: Case, pairs: Sequence[Pair]) -> None:
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # what libraries print while they are built
        os.dup2(nowhere.fileno(), 2)
    torch.set_num_threads(1)
    end.send(checked(case, pairs=pairs))


def checked(case: Case, *, pairs: Sequence[Pair]) -> Result:
    """What becomes of one model; whatever it raises is in the result."""
    result = Result(case.library, case.name, "skipped")
    example = drawn(case.inputs, _EXAMPLES)
    try:
        torch.manual_seed(0)
        model = case.build()
        model(**{name: value.clone() for name, value in example.items()})
        torch.manual_seed(0)
        model = case.build()  # anew: some keep what they have computed
    except Exception as error:  # a library may raise anything
        return replace(result, why=_line(error), text=traceback.format_exc())
    options = Pair("sgd", "sgd").options
    found, refused = _tried(
        lambda: capture_model(model, schema=CRITEO, example_inputs=example, logit=case.logit, label=""), result
    )
    if found is None:
        return refused
    first = replace(result, compiles="yes")
    result, captured = _compared(found, options, first)
    if _OF_PROBABILITY in result.why:  # as the refusal says
        options = with_flags(options, loss="bce_probability")
        result, captured = _compared(found, options, first)
    if result.compiles == "no":
        return result
    compiled, refused = _tried(
        lambda: compile_net(captured, this_machine(group_ps=1, sparse_ps=1), options, name=case.name, solver="rules"),
        result,
    )
    if compiled is None:
        return refused
    return _trained(model, case, captured, result, options.loss, pairs) if pairs else result


def _tried(step: Callable[[], _T], result: Result) -> tuple[_T | None, Result]:
    try:
        return step(), result
    except Error as error:
        return None, replace(result, compiles="no", why=str(error))
    except Exception as error:  # what is no error of htrain's is a bug of htrain
        return None, replace(result, compiles="crash", why=_line(error), text=traceback.format_exc())


def _compared(found: Model, options: Options, result: Result) -> tuple[Result, Captured]:
    """`result` with what the self-check says, and the model with what that has found."""
    result = replace(result, notes=tuple(found.captured.notes))
    try:
        captured = found.checked(options)
    except ModelError as error:
        if _DIFFERS in str(error):
            return replace(result, equal="no", why=str(error), text=str(error)), found.captured
        return replace(result, compiles="no", why=str(error)), found.captured
    except Exception:
        return replace(result, equal="crash", text=traceback.format_exc()), found.captured
    notes = [note for note in captured.notes if note not in found.captured.notes]
    return replace(result, notes=captured.notes, equal=" ".join(notes) or "yes"), captured


def _trained(
    model: torch.nn.Module, case: Case, captured: Captured, result: Result, loss: str, pairs: Sequence[Pair]
) -> Result:
    """`result` with how far the losses of plans are from PyTorch's; where that is too far, from PyTorch's own after a change of an ulp, and at lower rates."""
    trains: dict[str, float | str] = {}
    ulps: dict[str, float] = {}
    calmer: dict[str, float] = {}
    texts = [result.text] if result.text else []
    with tempfile.TemporaryDirectory() as folder:
        training = Training(model, case, captured, Path(folder), loss=loss)
        has_tables = any(p.kind == "table" and p.trained for p in captured.net.parameters.values())
        for asked, placement in _trainings(pairs, has_tables=has_tables):
            name = f"{asked} {placement}"
            try:
                pair = training.steady(asked, placement)
                name = f"{pair} {placement}"
                trains[name] = seen = training.difference(pair, placement)
                if not seen <= BOUND:
                    ulps[name] = training.difference_of_ulp(pair, placement, seen / 2)
                    calmer[name] = _equal_from(training, pair, placement)
            except Exception as error:
                trains[name] = _line(error)
                texts.append(traceback.format_exc())
    return replace(result, trains=trains, ulp=ulps, calmer=calmer, text="\n".join(texts))


def _trainings(pairs: Sequence[Pair], *, has_tables: bool) -> Iterator[tuple[Pair, str]]:
    for number, pair in enumerate(pairs):
        for placement in placements_of(number, pair, has_tables=has_tables):
            yield pair, placement


def _equal_from(training: Training, pair: Pair, placement: str) -> float:
    """The largest of these shares of the rates at which the training is equal to PyTorch's; 0 if at none."""
    shares = (0.1 * pair.share, 0.01 * pair.share)
    return next((s for s in shares if training.difference(replace(pair, share=s), placement) <= BOUND), 0.0)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
