"""What a user may say of one run, or of one simulation, of a plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

Workers = Annotated[int, Meta(ge=1, le=1024)] | Literal["auto"]  # threads of a PS that run ops
CheckpointSeconds = Annotated[float, Meta(gt=0)] | Literal["end"]  # between two checkpoints; `end` is the last alone
ValidEvery = (
    Annotated[int, Meta(ge=1, le=1 << 40)] | Literal["end"]
)  # examples between two validations; `end` is the last alone
EarlyStop = Annotated[int, Meta(ge=1, le=1 << 30)] | Literal["never"]  # validations in a row without a better value
BestBy = Literal["loss", "auc", "gauc", "ndcg", "recall", "mrr"]  # what makes a validation better than another
PublishSeconds = Annotated[float, Meta(gt=0)] | Literal["end"]  # between two versions; `end` is the last alone
MostRetries = (
    Annotated[int, Meta(ge=0, le=1000)] | Literal["auto"]
)  # of a run that fails, in a row; `auto` is 3 where roles can be started again
# What is begun again with the rows of a checkpoint where a role dies: all, or nothing that can do without (a trainer that keeps nothing that others need, a
# group PS, whose weights outlive its process), or a sparse PS's own, which lose what they have learnt since.
RetryWhat = Literal["alone", "partial", "whole"]
MostAccesses = Annotated[int, Meta(ge=1, le=1 << 40)] | Literal["all"]  # kept of what caches are asked for
MOST_ACCESSES = 1 << 21  # distinct rows of batches that `htrain advise` keeps of what caches are asked for

SchemaOf = str | Path | Mapping[str, Any]  # a schema file, or what one holds


@dataclass(frozen=True)
class Elsewhere:
    """Roles that are started elsewhere, by `htrain role`, and join the launcher: at `listen`, ADDRESS[:PORT] with an address or an interface of its host, and
    any port that is free where none is said. They have the same `secret`, a file of mode 0600 with 32 bytes or more. Those that have not come within
    `join_seconds`, or come again when one was lost, are named, and the run ends.

    With `hosts`, a cluster file with a section of that name, the launcher starts them there itself, by ssh, and has a secret of its own where none is said.
    """

    listen: str
    secret: str | Path = ""
    join_seconds: float = 600.0
    hosts: str | Path = ""
