"""A module left as it was, whatever its forward() kept: caches, lists of activations, counters, buffers set anew."""

import sys
import types
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_CLONED_BYTES = 1 << 24  # a larger tensor of an attribute is trusted to stay as it is
_ENTRIES = 1 << 16  # a longer list or dict is data, such as a vocabulary
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, torch.dtype, torch.device)


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Within, `module` may be run; after it, its attributes hold what they held: also lists, dicts, sets and objects that can be reached from it.

    Parameters and buffers are the caller's: their values are not looked at. Other tensors have their entries again, if they are small.
    """
    saved = _reached(module)
    try:
        yield
    finally:
        for holder, content in saved:
            _restore(holder, content)


def _reached(module: nn.Module) -> list[tuple[Any, Any]]:
    """Everything that can be changed in place, with a copy of what it holds."""
    owned = {id(t) for t in (*module.parameters(), *module.buffers())}
    saved: list[tuple[Any, Any]] = []
    seen: set[int] = set()
    pending: list[Any] = [module]
    while pending:
        held = pending.pop()
        if isinstance(held, _PLAIN) or id(held) in seen or id(held) in owned:
            continue
        seen.add(id(held))
        content = _content(held)
        if content is not None:
            saved.append((held, content))
        pending.extend(_parts(held))
    return saved


def _content(held: Any) -> Any:
    """A copy of what `held` holds, one level deep; None for what does not change, or cannot be looked into."""
    if isinstance(held, torch.Tensor):
        small = (
            not held.is_meta and held.layout == torch.strided and held.numel() * held.element_size() <= _CLONED_BYTES
        )
        return held.detach().clone() if small else None
    if isinstance(held, list | deque | dict | set) and len(held) > _ENTRIES:
        return None
    if isinstance(held, list | deque):
        return list(held)
    if isinstance(held, dict):
        return dict(held)
    if isinstance(held, set):
        return set(held)
    return None


def _parts(held: Any) -> list[Any]:
    """What can be reached from `held` in one step: what a model's author put there, not what lies behind torch's and Python's own objects."""
    if isinstance(held, torch.Tensor) or (
        isinstance(held, list | tuple | set | frozenset | deque | dict) and len(held) > _ENTRIES
    ):
        return []
    if isinstance(held, dict):
        return list(held.values())
    if isinstance(held, list | tuple | set | frozenset | deque):
        return list(held)
    if isinstance(held, types.FunctionType):
        return [cell.cell_contents for cell in held.__closure__ or () if cell is not None and _is_filled(cell)]
    if isinstance(held, types.MethodType):
        return [held.__self__]
    attributes = getattr(held, "__dict__", None)
    return (
        [attributes]
        if isinstance(attributes, dict) and (isinstance(held, nn.Module) or _is_authors(type(held)))
        else []
    )


def _is_authors(kind: type) -> bool:
    package = kind.__module__.partition(".")[0]
    return (package != "torch" and package not in sys.stdlib_module_names) or kind.__module__ == "__main__"


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _restore(held: Any, content: Any) -> None:
    if isinstance(held, torch.Tensor):
        if not torch.equal(held, content):
            with torch.no_grad():
                held.copy_(content)
    elif isinstance(held, list):
        held[:] = content
    elif isinstance(held, deque):
        held.clear()
        held.extend(content)
    elif (
        isinstance(held, set) or held.keys() != content.keys() or any(held[key] is not content[key] for key in content)
    ):
        held.clear()
        held.update(content)
