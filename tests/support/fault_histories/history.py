"""One history: a case, faults and their times by a seed, and what came of it."""

import gc
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from fault_histories.counting import MANY_BATCHES, MOST_BATCHES, Case, cases
from fault_histories.disk import Disk, damage, in_place
from fault_histories.planted import NOTHING, Planted
from fault_histories.rules import Rules, newest_files
from fault_histories.tries import Job, User
from fault_histories.wires import TAKEN, Weather
from fault_histories.world import Process, Violation, World
from htrain.executor.roles.limits import may_be_alone
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import LAUNCHER
from htrain.net.names import SPARSE_PS, role_of

_CALM_SECONDS = 60.0  # for a run to come to its end, once all is calm


@dataclass(frozen=True)
class Told:
    """What came of a history. `broken` is the rule that it breaks, "" where all hold; `seen` counts faults, tries and checkpoints by their kind."""

    seed: int
    case: str
    broken: str
    seen: dict[str, int] = field(default_factory=dict)
    num_events: int = 0
    seconds: float = 0.0
    lines: Sequence[str] = ()


@cache
def _cases() -> Sequence[Case]:
    return cases()


def play(seed: int, planted: Planted = NOTHING, *, keep_lines: bool = False) -> Told:
    """The history of a seed, to its end or to the first rule that it breaks. What decides is the product, but for the bug that is `planted`."""
    world = World(seed)
    (case,) = world.draw.choices(_cases()[:4], (3, 3, 3, 2))
    apart = random.Random(-1 - seed)  # draws of which histories that have nothing to do with them have none
    if case is _cases()[3] and apart.random() < 0.5:
        case = _cases()[4]
    folder = Path(tempfile.mkdtemp(prefix="history", dir=_memory()))
    disk = Disk(world, folder)
    history = _History(world, case, folder, disk, planted, apart)
    broken, collects = "", gc.isenabled()
    gc.disable()  # it costs a fifth of a history
    try:
        with in_place(disk):
            history.play()
    except Violation as violation:
        broken = str(violation)
    except Exception as error:
        broken = f"what nobody has foreseen: {type(error).__name__}: {error}"
    finally:
        history.end()
        shutil.rmtree(folder)
        if collects:
            gc.enable()
    lines = [f"{at:9.4f} {who:16} {text % values}" for at, who, text, values in world.lines] if keep_lines else ()
    shown = [text.replace(str(folder), "run") for text in (broken, *lines)]
    return Told(seed, case.name, shown[0], world.seen, num_events=world.num_events, seconds=world.now, lines=shown[1:])


class _History:
    def __init__(
        self, world: World, case: Case, folder: Path, disk: Disk, planted: Planted, apart: random.Random
    ) -> None:
        draw = world.draw
        self._world, self._case, self._disk, self._folder = world, case, disk, folder
        batches = draw.randint(2, 4) if draw.random() < 0.7 else MOST_BATCHES
        kills = draw.choice((0.0, 0.0, 0.01, 0.03, 0.1))
        weather = Weather(lost=draw.choice((0.0, 0.0, 0.001, 0.01)), again=draw.choice((0.0, 0.0, 0.01, 0.05)))
        every = draw.choice((0.03, 0.1, 0.1, 0.3, "end"))
        retry = _retry(draw.random())
        self._goes_back = goes_back = retry == "partial"
        if goes_back:  # to a checkpoint, which has to be there
            batches, every = MANY_BATCHES, draw.choice((0.03, 0.1, 0.2))
            weather = replace(weather, again=draw.choice((0.0, 0.05, 0.3)))
        ps_kills = draw.choice((0.0, 0.01, 0.03, 0.1)) if goes_back else 0.0
        group_kills = apart.choice((0.0, 0.0, 0.02, 0.1)) if retry != "whole" else 0.0
        among_rounds = case.plan.cluster.dense_ps and retry != "whole"  # some of them between two rounds, or in one
        if among_rounds:  # which a run has to come to
            batches, group_kills = MANY_BATCHES, apart.choice((0.0, 0.01, 0.02, 0.04))
            kills *= apart.choice((0.0, 0.0, 0.0, 1.0))
        settings = RunSettings(
            folder,
            "synthetic:",
            folder,
            deadline_seconds=1.5,
            warm_up_seconds=2.0,
            liveness_seconds=1.5,
            checkpoint_seconds=every,
            retry=retry,
        )
        self._wires = planted.wires(world, weather)
        self._rules = Rules(world, case, batches, folder)
        tells = draw.random() < (0.9 if goes_back else 0.6)
        job = Job(
            case, settings, batches, planted.machines, tells=tells, kills=kills, ps_kills=ps_kills, group_kills=group_kills, apart=apart
        )  # fmt: skip
        self._user = User(world, self._wires, self._rules, job)
        disk.full = draw.choice((0.0, 0.0, 0.0, 0.05))
        disk.kills = draw.choice((0.0, 0.0, 0.01, 0.03))
        world.note(
            "history", "%s, %d batches a trainer, a checkpoint every %s s, %s", case.name, batches, every, weather
        )
        world.calm = draw.choice((0.0, 0.5, 0.8, 1.2, 2.5))
        if among_rounds:  # many processes are long in coming up
            world.calm = max(world.calm, apart.choice((1.2, 2.5)))
        self._plan_faults()

    def play(self) -> None:
        world = self._world
        self._user.launch()
        world.run(lambda: self._user.is_done or world.now > world.calm + _CALM_SECONDS)
        if not self._user.is_done:
            raise Violation(f"all is calm for {_CALM_SECONDS:.0f} s, and the run is not over")
        self._rules.check_newest()
        if not self._rules.closed or self._rules.closed[-1] != self._user.result.checkpoint.name:
            raise Violation("a run has ended without a checkpoint of its end")
        if taken := world.seen.get(TAKEN, 0):
            raise Violation(f"{taken} {TAKEN}, though nothing came of them")

    def end(self) -> None:
        """Roles that still live, of whatever try, give back what they have."""
        for process in self._world.processes:
            if process.name != LAUNCHER:
                self._world.kill(process, "the history is over")

    # -- faults ------------------------------------------------------------------------------------------------------

    def _plan_faults(self) -> None:
        draw, world = self._world.draw, self._world
        kinds: list[Callable[[], None]] = [
            self._kill_role, self._kill_role, self._kill_launcher, self._lose_power, self._stop, self._stop, self._cut, self._cut, self._ask, self._damage,
        ]  # fmt: skip
        if self._goes_back:
            kinds += [self._kill_sparse_ps, self._kill_sparse_ps, self._spoil]
        if world.calm:
            for _ in range(draw.choice((0, 1, 1, 2, 3, 5))):
                world.later(world.calm * draw.random(), None, draw.choice(kinds))

    def _living(self) -> list[Process]:
        roles = self._user.launching.roles if self._user.launching else []
        return [role.process for role in roles if not role.process.dead]

    def _kill_role(self) -> None:
        if living := self._living():
            process = self._world.draw.choice(living)
            (self._world.count if may_be_alone(process.name) else self._world.trouble)("roles killed")
            self._world.kill(process, "it is killed")

    def _kill_sparse_ps(self) -> None:
        if living := [process for process in self._living() if role_of(process.name) == SPARSE_PS]:
            self._world.count("roles killed")
            self._world.kill(self._world.draw.choice(living), "it is killed")

    def _spoil(self) -> None:
        """A sparse PS dies when the checkpoint that it is to go back to may be damaged."""
        self._damage()
        if self._rules.damaged:
            self._kill_sparse_ps()

    def _kill_launcher(self) -> None:
        if not self._user.launcher.dead:
            self._world.trouble("launchers killed")
            self._world.kill(self._user.launcher, "it is killed")

    def _lose_power(self) -> None:
        self._world.trouble("hosts lost")
        self._world.note("history", "the host is off")
        for process in self._world.processes.copy():
            self._world.kill(process, "the host is off")
        self._disk.lose_power()

    def _stop(self) -> None:
        """A process stands still, such as one without a CPU."""
        processes = [*self._living(), *([self._user.launcher] if not self._user.launcher.dead else [])]
        if processes:
            process, seconds = self._world.draw.choice(processes), self._world.draw.choice((0.05, 0.5, 3.0, 3.0))
            process.stopped_until = self._world.now + seconds
            self._world.trouble("processes stopped", seconds)
            self._world.note(process, "stands still for %g s", seconds)

    def _cut(self) -> None:
        draw = self._world.draw
        one, other = draw.sample([*self._case.plan.cluster.roles, LAUNCHER], 2)
        seconds = draw.choice((0.02, 0.3, 2.5))
        self._world.trouble("links cut", seconds)
        self._wires.cut(one, other, seconds, loses=draw.random() < 0.5)

    def _ask(self) -> None:
        if self._user.launching and not self._user.launching.is_over and not self._user.launcher.dead:
            self._world.trouble("stops asked for")
            self._user.launching.ask()

    def _damage(self) -> None:
        """A file of the newest checkpoint, or of what it builds on, is not as it was written any more, as soon as there is one that shares no file with it."""
        rules, world = self._rules, self._world
        if rules.damaged or world.is_calm:
            return
        newest = rules.whole[-1] if rules.whole else ""
        before = rules.independent(newest) if newest else ""
        if not before:
            world.later(0.1, None, self._damage)
            return
        if (self._folder / "checkpoints" / before / "manifest.json").exists():
            name = world.draw.choice(sorted({newest} | rules.needs[newest]))
            path = world.draw.choice(newest_files(self._folder / "checkpoints" / name))
            world.trouble("files damaged")
            world.note("history", "%s of %s is damaged", path.name, name)
            damage(path, world.draw)
            rules.damage(path)


def _retry(drawn: float) -> str:
    return "alone" if drawn < 0.5 else "partial" if drawn < 0.75 else "whole"


def _memory() -> str | None:
    """Where files cost least: in memory, where there is such a folder."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
