"""A model trained for a moment, its scores, and the same of what was exported: by plain PyTorch, and by ONNX Runtime."""

import copy
import inspect
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from harness import batches_of, losses_of, relative_differences, torch_losses
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn

import htrain
from htrain.compiler.pipeline import compile_net
from htrain.frontend.torch_model import capture
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

Scores = NDArray[np.float32]


def trained(plan: Plan, data: str, folder: Path) -> Path:
    """The folder of a run of a plan."""
    plan.save(folder / "plan")
    htrain.run(folder / "plan", data=data, out=folder / "run", hosting="threads")
    return folder / "run"


def predicted(run: Path, data: str, folder: Path, **asked: str) -> Scores:
    """What `htrain predict` writes."""
    out = folder / f"scores{len(list(folder.glob('*.npy')))}.npy"
    htrain.predict(run, data=data, out=out, **asked)
    return np.load(out)["score"]


def inputs_of(data: str) -> dict[str, torch.Tensor]:
    """All examples of a dataset, as one batch."""
    (batch,) = batches_of(data, 1 << 20)
    return batch


def by_torch(
    run: Path, model: nn.Module, inputs: Mapping[str, torch.Tensor], folder: Path, *, logit: str = "", **asked: str
) -> Scores:
    """Probabilities by the module, with the weights that were exported; a module with `gives_probabilities` makes them itself."""
    out = folder / "weights.safetensors"
    htrain.export(run, to="torch", out=out, **asked)
    module = copy.deepcopy(model).eval()
    for parameter in module.parameters():
        nn.init.constant_(parameter, float("nan"))
    found = module.load_state_dict(load_file(out), strict=False)
    assert not found.unexpected_keys
    with torch.no_grad():
        wanted = set(inspect.signature(module.forward).parameters)
        outputs = module(**{name: value for name, value in inputs.items() if name in wanted})
    scores = (outputs[logit] if logit else outputs).reshape(-1)
    return (scores if getattr(model, "gives_probabilities", False) else torch.sigmoid(scores)).numpy()


def by_onnx(run: Path, inputs: Mapping[str, torch.Tensor], folder: Path, **asked: str) -> Scores:
    """Scores by ONNX Runtime, of all examples at once."""
    out = folder / "model.onnx"
    htrain.export(run, to="onnx", out=out, **asked)
    session = session_of(out)
    (score,) = session.run(["score"], _taken(session, inputs))
    return score


def session_of(path: Path) -> onnxruntime.InferenceSession:
    """A model that ONNX Runtime has loaded, for this thread alone."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])


def _taken(session: onnxruntime.InferenceSession, inputs: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {value.name: inputs[value.name].numpy() for value in session.get_inputs()}


def assert_alike(
    run: Path, model: nn.Module, data: str, folder: Path, *, logit: str = "", atol: float = 1e-5, **asked: str
) -> Scores:
    """The module and the ONNX model that were exported give the scores that `htrain predict` writes, which are returned."""
    scores, inputs = predicted(run, data, folder, **asked), inputs_of(data)
    assert scores.std() > 1e-4, "a model that says the same of all examples shows nothing"
    np.testing.assert_allclose(by_torch(run, model, inputs, folder, logit=logit, **asked), scores, rtol=0, atol=atol)
    np.testing.assert_allclose(by_onnx(run, inputs, folder, **asked), scores, rtol=0, atol=atol)
    return scores


def assert_trained_and_exported_alike(
    model: nn.Module, inputs: Mapping[str, torch.Tensor], data: str, folder: Path, *, batch_size: int, **roles: int
) -> None:
    """A plan of such roles has the losses of PyTorch, step by step, and what is exported of its run the scores of that."""
    options = with_flags(batch_size=batch_size, net_replicas=1, fc_dtype="float32", dense_lr=0.01, sparse_lr=0.05)
    plan = compile_net(capture(model, inputs), this_machine(**roles), options, name="model", solver="rules")
    losses = losses_of(plan, folder / "held", data)
    assert max(relative_differences(losses, torch_losses(model, data, options))) < 1e-5
    assert_alike(trained(plan, data, folder), model, data, folder)
