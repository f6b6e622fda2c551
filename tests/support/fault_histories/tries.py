"""A run with its tries, and the user, or whoever watches over the run, who begins it again when its launcher has ended (htrain.executor.launch.tries)."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fault_histories.counting import Case
from fault_histories.launcher import MOST_RETRIES, Launching
from fault_histories.roles import Machines, Role, Try, is_trainer
from fault_histories.rules import Rules
from fault_histories.server import ServerRole
from fault_histories.trainer import TrainerRole
from fault_histories.wires import Wires
from fault_histories.world import Process, Violation, World
from htrain.errors import CheckpointError, Error, Interrupted, PeerLost
from htrain.executor.launch.resuming import gone_on
from htrain.executor.record.kept import find_checkpoints
from htrain.executor.record.run_folder import RunRecord, began, start_record
from htrain.executor.roles.retries import Retries
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import LAUNCHER

_LIVES_ON_SECONDS = 4.0  # a role without its launcher, at most
_MOST_LAUNCHERS = 4  # once all is calm


@dataclass(frozen=True)
class Job:
    """What is to be trained, with the machines that decide. `tells` says whether launchers hear of processes that end; `kills` is the share of a trainer's
    instructions in which its process is killed, `ps_kills` that of a sparse PS's, `group_kills` of a group PS's, which are drawn `apart`."""

    case: Case
    settings: RunSettings
    batches: int
    machines: Machines
    tells: bool
    kills: float = 0.0
    ps_kills: float = 0.0
    group_kills: float = 0.0
    apart: random.Random = field(default_factory=random.Random)


class User:
    """Begins the run, and begins it again whenever its launcher ends without a result: `result` is there once all is trained."""

    def __init__(self, world: World, wires: Wires, rules: Rules, job: Job) -> None:
        self.result: Any = None
        self.launching: Launching | None = None
        self.launcher = Process(LAUNCHER, 0, dead=True)
        self._world, self._wires, self._rules, self._job = world, wires, rules, job
        self._tries = self._launchers = self._calm_launchers = 0
        self._retries = Retries(MOST_RETRIES)

    @property
    def is_done(self) -> bool:
        """Whether all is trained, and told."""
        return self.result is not None

    def launch(self) -> None:
        """Begin the run, or go on with it, as `--or-resume` does."""
        self._launchers += 1
        self._calm_launchers += self._world.is_calm
        if self._calm_launchers > _MOST_LAUNCHERS:
            raise Violation("all is calm, and the run does not come to its end")
        self.launcher = self._world.begin(LAUNCHER, self._launchers)
        self.launcher.on_end.append(self._launcher_ended)
        self._retries = Retries(MOST_RETRIES)
        self._world.later(0.0, self.launcher, lambda: self._try(is_first=True))

    def _launcher_ended(self) -> None:
        """Its roles end with it, or once they miss it."""
        draw = self._world.draw
        self._world.count("launchers lost")
        for role in self.launching.roles if self.launching else ():
            seconds = 0.0 if self._job.tells or draw.random() < 0.3 else draw.uniform(0, _LIVES_ON_SECONDS)
            self._world.later(seconds, None, lambda role=role: self._world.kill(role.process, "its launcher is gone"))  # type: ignore[misc]
        self._again()

    def _again(self) -> None:
        self._world.later(self._world.draw.choice((0.01, 0.01, 0.5)), None, self.launch)

    # -- one try -----------------------------------------------------------------------------------------------------

    def _try(self, *, is_first: bool) -> None:
        job, world = self._job, self._world
        self._tries += 1
        world.count("tries")
        try:
            settings = self._settings(is_first=is_first)
        except CheckpointError as error:
            raise Violation(f"the run cannot go on: {error}") from error
        self._rules.goes_on(settings)
        world.note(self.launcher, "begins try %d from %s", self._tries, Path(settings.restore).name or "its beginning")
        token = world.draw.randbytes(16)
        others = any(not process.dead and process.name != LAUNCHER for process in world.processes)
        attempt = Try(
            self._tries,
            token,
            job.case,
            settings,
            job.batches,
            world,
            self._wires,
            job.machines,
            self._rules.stepped,
            began=world.now,
            has_others=others,
            kills=job.kills,
            ps_kills=job.ps_kills,
            group_kills=job.group_kills,
            apart=job.apart,
        )
        roles: list[Role] = [
            (TrainerRole if is_trainer(name) else ServerRole)(name, attempt) for name in job.case.plan.cluster.roles
        ]
        self.launching = Launching(attempt, self.launcher, roles, self._rules, self._ended, tells=job.tells)
        self.launching.begin()

    def _settings(self, *, is_first: bool) -> RunSettings:
        settings, case = self._job.settings, self._job.case
        holds = began(settings.run_folder)
        start_record(
            settings.run_folder, RunRecord("plan", "synthetic:", 1, False), resume=not is_first or holds != "no run"
        )
        if holds != "checkpoint":
            return settings
        found = find_checkpoints(settings.run_folder)
        return gone_on(
            case.plan, settings, case.identity, found, lambda text: self._world.note(self.launcher, "%s", text)
        )

    # -- between two -------------------------------------------------------------------------------------------------

    def _ended(self, result: Any, error: Error | None) -> None:
        world = self._world
        if error is None:
            self.result = result
            return
        world.note(self.launcher, "the try has failed: %s: %s", type(error).__name__, error)
        if not isinstance(error, PeerLost):
            if not isinstance(error, Interrupted | CheckpointError):
                raise Violation(f"a run ends by {type(error).__name__}: {error}")
            self._leave()
            return
        complete = find_checkpoints(self._job.settings.run_folder).complete
        seconds = self._retries.failed(complete[0][0].name if complete else "")
        if seconds is None:
            self._leave()
        else:
            world.later(seconds, self.launcher, lambda: self._try(is_first=False))

    def _leave(self) -> None:
        """The launcher ends with an error."""
        self.launcher.on_end.clear()
        self._world.kill(self.launcher, "it has told of an error")
        self._again()
