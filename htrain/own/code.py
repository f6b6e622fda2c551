"""The user's own Python, run inside htrain: whatever it does, a compile ends with a plan or with one line that names it."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from htrain.errors import Error, ModelError
from htrain.files import require_regular


@contextmanager
def user_code(what: str, kind: type[Error]) -> Iterator[None]:
    """Run code that is not htrain's. What it raises becomes `kind`, its message beginning with `what`; Ctrl-C stays what it is.

    `sys.exit` is such an exception too: nobody who compiles a model means to end without a plan and without a word.
    """
    try:
        yield
    except (Error, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise kind(
            f"{what}: it called sys.exit({error.code!r}), which ends Python: leave that to `if __name__ == '__main__'`"
        ) from error
    except BaseException as error:
        raise kind(f"{what}: {type(error).__name__}: {_words_of(error)}") from error


def _words_of(error: BaseException) -> str:
    """The message of an exception of somebody else's class, which may fail at saying it."""
    try:
        return str(error)
    except Exception:
        return "(its message cannot be shown)"


def import_place(place: str) -> ModuleType:
    """The module of a Python file or a package's module. Raises ModelError in one line, whatever goes wrong."""
    if not place.replace(".py", ""):
        raise ModelError(f"'{place}': want a file such as models/dlrm.py, package.module:factory, or model.onnx")
    try:
        with user_code(f"{place}: cannot be imported", ModelError):
            return _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except ModelError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):
            raise ModelError(
                f"{place}: {error.__cause__}; want a file such as models/dlrm.py, package.module:factory, or model.onnx"
            ) from error
        raise


def attribute_of(module: ModuleType, name: str, spec: str) -> Any:
    """What a user's module calls `name`, None where it has no such thing; a module may compute it. Raises ModelError."""
    with user_code(f"{spec}: '{name}' cannot be read", ModelError):
        return getattr(module, name, None)


def _from_file(path: Path) -> ModuleType:
    """Run a model file with its folder on sys.path, as Python does for a script."""
    try:
        require_regular(path)
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no such file") from error
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent.resolve())
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module
