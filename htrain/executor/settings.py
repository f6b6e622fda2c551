"""How one run of a plan goes: what the plan leaves open."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from htrain.data.growth import Extent
from htrain.data.left import Left
from htrain.membership.served import Serving
from htrain.publishing.shares import Publishing
from htrain.spec.settings import CheckpointSeconds, PublishSeconds, RetryWhat, Workers


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run, the same for every role.

    `deterministic` reads, steps and syncs in one fixed order: no prefetch. A role that hears nothing for `deadline_seconds` gives up; in its first
    steps, when all compile their loops, for `warm_up_seconds`. The launcher gives up a role that is silent for `liveness_seconds`.
    `workers` are the threads of a PS that run ops, `auto` for one on each of its cores, as far as there are steps to serve.
    `checkpoint_seconds` is the time between two checkpoints, or `end` for none but the last. `stop_after_steps` ends every
    replica early. `begin_with` are the plan and the checkpoint of another run, or of this one with another cluster, whose parameters come in the place of
    first values; those that are to `grow` may have fewer rows there. `positions` are what trainers had read and trained where the run goes on; of epochs that
    another cluster has begun, of what it has `left`.
    Of the data an `extent` is read; all, where that has no files.
    `ops` are the files, and modules of packages, with ops of the user's own, which every process of the run loads. `serving` is what sparse PSs are told that
    have no trainers beside them, and serve workers from outside. `network` and `trainer_network` are those in which hosts reach each other, and trainers,
    such as 10.1.0.0/16; empty where hosts are reached under their names, and where trainers have none of their own;
    what goes between hosts is encrypted where a run `encrypts`. A checkpoint is taken to be validated every `valid_every` examples of
    the whole job, 0 for none but the last; `validated` of them had been trained at the one before. A version of the model is published as `publishing` says,
    every `publish_seconds`, `end` for the last alone. What is begun again where a role dies says `retry`: all, or a trainer that keeps nothing alone, or a
    sparse PS as well. `plan_header` is the digest of the plan.yaml that
    the launcher has read, and roles have to find; empty where it is not known.
    """

    plan_folder: Path
    data: str
    run_folder: Path
    epochs: int = 1
    deadline_seconds: float = 60.0
    warm_up_seconds: float = 600.0
    liveness_seconds: float = 60.0
    checkpoint_seconds: CheckpointSeconds = 300.0
    deterministic: bool = False
    malformed_share: float = 0.01
    workers: Workers = "auto"
    stop_after_steps: int | None = None
    restore: str = ""
    begin_with: tuple[str, str] = ("", "")
    grow: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    positions: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: tuple[Left, ...] = ()
    extent: Extent = field(default_factory=Extent)
    serving: Serving | None = None
    network: str = ""
    trainer_network: str = ""
    encrypts: bool = True
    valid_every: int = 0
    validated: int = 0
    publishing: Publishing | None = None
    publish_seconds: PublishSeconds = "end"
    retry: RetryWhat = "alone"
    plan_header: str = ""
