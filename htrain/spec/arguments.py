"""What the API's functions are called with: values of the right kind and within bounds, or a UsageError that names the argument."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import Meta, ValidationError

from htrain.decoding import converted
from htrain.errors import UsageError
from htrain.net.placement import Split
from htrain.printable import is_unicode
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.spec.settings import (
    BestBy,
    CheckpointSeconds,
    EarlyStop,
    MostAccesses,
    MostRetries,
    PublishSeconds,
    RetryWhat,
    ValidEvery,
    Workers,
)

_LONGEST = 200  # characters of a value in a message
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Threads = Annotated[int, Meta(ge=1, le=1024)]
_KINDS: Mapping[str, Any] = {
    "epochs": Count, "workers": Workers, "num_threads": Threads, "most_groups": Count,
    "steps": Annotated[int, Meta(ge=4, le=1_000_000)],
    "trace": str, "zipf": Annotated[float, Meta(ge=0, le=10)] | Literal["none"], "trace_batches": Count,
    "seed": Annotated[int, Meta(ge=0, le=2**63 - 1)], "eps": Annotated[float, Meta(ge=1)], "time_limit_seconds": Annotated[float, Meta(ge=0.1)],
    "deadline_seconds": Annotated[float, Meta(ge=1)], "liveness_seconds": Annotated[float, Meta(ge=2)],
    "lease_seconds": Annotated[float, Meta(ge=1)],
    "checkpoint_seconds": CheckpointSeconds, "retries": MostRetries, "retry": RetryWhat,
    "num_workers": Annotated[int, Meta(ge=2, le=1024)], "batch_size": Count, "hosts": tuple[Count, ...], "replicas": Annotated[float, Meta(ge=0, le=1)],
    "sample_slack": Annotated[float, Meta(ge=1, le=10)], "row_slack": Annotated[float, Meta(ge=1, le=10)], "link_cost": Annotated[float, Meta(ge=1, le=1e6)],
    "malformed_share": Annotated[float, Meta(ge=0, le=1)],
    "listen": str, "join_seconds": Annotated[float, Meta(ge=1)],
    "encrypt": bool, "or_resume": bool, "publish": str, "publish_every": PublishSeconds, "publish_full_every": Count,
    "valid": str, "valid_every": ValidEvery, "early_stop": EarlyStop, "keep_best": bool, "best_by": BestBy, "valid_group_by": str, "group_by": str,
    "valid_top": Count, "top": Count, "checkpoint": Literal["last", "best"],
    "deterministic": bool, "at_random": bool, "python_lock": bool, "self_check": bool, "data": str, "label": str, "network": str, "trainer_network": str,
    "min_count": Count, "most": Annotated[int, Meta(ge=0, le=2**40)], "most_values": Annotated[int, Meta(ge=1000, le=2**40)],
    "columns": tuple[str, ...], "grow": tuple[str, ...], "rows": Count, "together": tuple[tuple[str, ...], ...],
    "most_accesses": MostAccesses, "to": Literal["torch", "onnx", "tables"], "format": Literal["safetensors", "parquet", "npy"], "piece_rows": Count,
    "labels": dict[str, str], "table_splits": dict[str, int], "fc_splits": Literal["auto"] | dict[str, Split],
    "rules": str, "replica": str, "logit": str | int, "solver": Literal["rules", "greedy", "ilp", "cbc"],
    "hosting": Literal["processes", "threads", "mpi", "ray"],
}  # fmt: skip
_CLASSES: Mapping[str, type | tuple[type, ...]] = {
    "cluster": Cluster, "options": Options, "plan": (str, Path), "out": (str, Path), "resume": (str, Path), "begin_with": (str, Path), "extends": (str, Path),
    "run_folder": (str, Path), "secret": (str, Path), "hosts_file": (str, Path), "partition": (str, Path), "rates": (str, Path),
    "example_inputs": Mapping, "on_validation": (Callable, type(None)),  # type: ignore[dict-item]
}  # fmt: skip


def require_arguments(function: str, **values: object) -> None:
    """Raises UsageError, in the name of `function`, for the first of its arguments that is of another kind, out of bounds or no number."""
    for name, value in values.items():
        if name in _CLASSES and not isinstance(value, _CLASSES[name]):
            hint = f", where {name}.save(FOLDER) has put it" if callable(getattr(value, "save", None)) else ""
            raise UsageError(f"{function}: {name}: is a {type(value).__name__}, want a {_names(_CLASSES[name])}{hint}")
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{function}: {name}: {value} is not a finite number")
        if isinstance(value, str | Path) and ("\x00" in str(value) or not is_unicode(str(value))):
            raise UsageError(f"{function}: {name}: {str(value)!r} holds what no name can")
        try:
            converted(value, _KINDS.get(name, Any))
        except ValidationError as error:
            raise UsageError(
                f"{function}: {name}: {error}, got {_shown(value)}{_words(_KINDS[name])}{_cure(name, value)}"
            ) from error


def _shown(value: object) -> str:
    """A value as messages show it: in one line, however long it is."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _cure(name: str, value: object) -> str:
    """What to do about data that is no address of data."""
    in_memory = name in ("data", "valid") and not isinstance(value, str | Path | int | float)
    return (
        ": say FORMAT:PATH; htrain.pack makes a packed file of a table, a Dataset or a DataLoader" if in_memory else ""
    )


def _words(kind: Any) -> str:
    """What may be said in place of a word that is none, for an error."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words = [word for each in kinds if get_origin(each) is Literal for word in get_args(each)]
    if not words:
        return ""
    others = ["a number" for each in kinds if get_origin(each) is Annotated]
    first, last = [*others, *words[:-1]], words[-1]
    return f": want {', '.join(first)} or {last}" if first else f": want {last}"


def _names(kinds: type | tuple[type, ...]) -> str:
    return " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
