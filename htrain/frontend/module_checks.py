"""What an nn.Module carries beside its forward() and would change how PyTorch trains it: refused by name, for no exported graph has it."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules import module as global_hooks
from torch.nn.parameter import is_lazy

from htrain.errors import ModelError
from htrain.frontend.shared_memory import TrainedMemory

_MODULE_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = ("_global_backward_hooks", "_global_backward_pre_hooks")
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def check_module(model: nn.Module) -> None:
    """Raises ModelError for hooks on gradients, and for parameters that share memory. Hooks of the forward pass are traced like its code."""
    check_shapes(model)
    for what in _hooks(model):
        raise ModelError(
            f"{what} has a hook on gradients, which htrain does not run: remove it, and write what it does as ops of forward()"
        )
    _check_norms(model)
    _check_layouts(model)
    TrainedMemory(model).require_apart()


def check_shapes(model: nn.Module) -> None:
    """Raises ModelError for a parameter of a lazy module that has seen no batch: it has no shape."""
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ModelError(
                f"parameter '{name}' is of a lazy module and has no shape yet: give its layer the width of its input, as nn.Linear(13, 1) for nn.LazyLinear(1)"
            )


def _check_norms(model: nn.Module) -> None:
    """Raises ModelError for a batch norm that averages all batches alike: how many there were is known to no op."""
    for path, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.momentum is None and module.training:
            raise ModelError(
                f"module '{path}' has momentum=None, an average over all batches: give it a number, such as 0.1"
            )


def _hooks(model: nn.Module) -> Iterator[str]:
    """What has a hook on gradients, as messages name it."""
    for name in _GLOBAL_HOOKS:
        if getattr(global_hooks, name, None):
            yield "every module (torch.nn.modules.module)"
    for path, module in model.named_modules():
        if any(getattr(module, name, None) for name in _MODULE_HOOKS):
            yield f"module '{path}'" if path else f"the model {type(model).__name__}"
    for path, parameter in model.named_parameters(remove_duplicate=False):
        if any(getattr(parameter, name, None) for name in _TENSOR_HOOKS):
            yield f"parameter '{path}'"


def _check_layouts(model: nn.Module) -> None:
    """Raises ModelError for a parameter that is a sparse tensor."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.numel() and parameter.layout != torch.strided:
            raise ModelError(
                f"parameter '{name}' is a sparse tensor that is trained: train its values, and make it of them in forward(), by "
                f"torch.sparse_coo_tensor(places, values, size); one that stays as it is: register_buffer('{name}', ...)"
            )
