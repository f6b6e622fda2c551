"""Playing a role: build, report, obey the launcher, leave (docs/concepts.md)."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from htrain.errors import Error, RunError
from htrain.executor.assembly import Assembly
from htrain.executor.engine.context import Spread
from htrain.executor.host.bell import Bell
from htrain.executor.host.memory import keep_pages
from htrain.executor.host.threads import begin_thread, share_gil
from htrain.executor.launch.pulse import Pulse
from htrain.executor.launch.role import RunningRole, assembled
from htrain.executor.launch.server_processes import ServerProcess, fork_processes
from htrain.executor.roles.limits import is_checkpoint_of, is_version_name, most_message_bytes
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import Launcher, Link
from htrain.executor.transport.port import Network
from htrain.executor.transport.wire import Order
from htrain.net.names import TRAINER, device_of, role_of
from htrain.plan.plan import Plan, load_part

_LAST_SECONDS = 15.0  # for all of a process to end that have been told to


def play(name: str, plan: Plan, settings: RunSettings, network: Network, launcher: Launcher) -> None:
    """Be role `name` until the launcher says stop, or is gone.

    Raises nothing that goes wrong with the role: the launcher is told of it instead.
    """
    begin_thread()
    replicas = plan.options.net_replicas if role_of(name) == TRAINER else 1
    keep_pages(heaps=replicas)
    share_gil(replicas)
    network.spread = Spread(plan.cluster.trainers, 1 if settings.deterministic else plan.options.net_replicas)
    network.most_bytes = most_message_bytes(plan)
    parts, processes, failure = _divided(name, plan, settings, network)
    bell = Bell()
    link = Link(name, network, launcher, bell)
    pulse = Pulse(name, network, launcher, ends_process=network.scheme != "inproc")
    pulse.on_error = bell.ring
    role: RunningRole | None = None
    try:
        if failure:
            raise failure
        role = RunningRole(name, plan, settings, network, on_change=bell.ring, parts=parts, processes=processes)
        pulse.hangs = role.watch.tick
        book = link.hello({**role.endpoints, **pulse.endpoints}, settings.warm_up_seconds, pulse.check)
        role.fill()
        pulse.metrics = role.metrics
        link.ready(role.metrics())
        _obey(role, link, pulse, book)
    except Error as error:
        link.failed(error)
    except Exception as error:
        link.failed(RunError(f"{name}: {type(error).__name__}: {error}"))
    finally:
        if role:
            role.stop()
        for process in processes if not role else ():
            process.stop()
        pulse.stop()
        link.close()
        bell.close()


def _divided(
    name: str, plan: Plan, settings: RunSettings, network: Network
) -> tuple[Assembly | None, Sequence[ServerProcess], Error | None]:
    """The parts of a PS of several processes, and all of these but this one; or what went wrong, which nobody can be told of yet.

    Where all roles share one process, they share its lock, too, and there is no use in dividing one of them.
    """
    if plan.cluster.processes_of(device_of(name)) == 1 or network.is_shared or settings.serving:
        return None, (), None
    try:
        parts = assembled(name, plan, settings, shared=True)
        return parts, fork_processes(parts, settings, network), None
    except Error as error:
        return None, (), error


def _obey(role: RunningRole, link: Link, pulse: Pulse, book: dict[str, str]) -> None:
    """Carry out orders, and tell what has changed, until told to stop. Raises the error of any of the role's threads.

    It waits for an order, or for the bell, which the role's threads ring when there is something to look at.
    """
    reports = _Reports(role, link)
    while True:
        order = link.order()
        if order and order.verb in ("stop", "abort"):
            link.beat(role.metrics())
            return
        if order and order.verb == "start":
            role.start(book)
        elif order and order.verb == "pause":
            role.pause()
            reports.pause = order
        elif order and order.verb == "resume":
            role.resume()
        elif order and order.verb == "save":
            if is_checkpoint_of(order.folder, role.settings.run_folder):
                reports.save = order
            else:
                link.refuse()
        elif order and order.verb == "publish":
            if is_version_name(order.folder) and is_version_name(order.base):
                role.publish(order.folder, order.base)
                link.state("publishing", {}, order.number)
            else:
                link.refuse()
        pulse.check()
        reports.tell()


class _Reports:
    """What a role tells the launcher by itself, and its answers to the orders that it may not be able to carry out at once: `pause` and `save`."""

    def __init__(self, role: RunningRole, link: Link) -> None:
        self.pause: Order | None = None
        self.save: Order | None = None
        self._role = role
        self._link = link
        self._is_finished = self._is_unreadable = False
        self._saving = 0

    def tell(self) -> None:
        """Tell what has changed. Raises the error of any of the role's threads."""
        role, link = self._role, self._link
        is_finished = (
            role.finished
        )  # before the reader's error, which comes first: else a run that could not read on is told of as finished
        if role.error:
            raise role.error
        if role.reader_error and not self._is_unreadable:
            self._is_unreadable = True
            link.state("unreadable", _told(role.reader_error))
        if is_finished and not self._is_finished:
            self._is_finished = True
            link.beat(role.metrics())
            link.state("finished", role.state())
        if published := role.published():
            link.state("published", published)
        if self.pause and role.quiet:
            link.state("paused", role.state(), self.pause.number)
            self.pause = None
        if (
            self.save and role.quiet
        ):  # a round that others had opened before they were at rest may have begun here since
            link.beat(role.metrics())  # at rest: the reports of all roles are of the same moment
            role.save(Path(self.save.folder))
            link.state("saving", {}, self.save.number)
            self._saving, self.save = self.save.number, None
        if saved := role.saved():
            link.state("saved", saved["saved"], self._saving)


def _told(error: Exception) -> dict[str, Any]:
    """An error as a message carries it."""
    return {
        "kind": type(error).__name__,
        "error": str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}",
    }


def part_of(plan_folder: Path, role: str) -> Plan:
    """What a role has to know of a plan. Raises PlanError."""
    return load_part(plan_folder, device_of(role))


def play_all(
    roles: Sequence[str], plan_of: Callable[[str], Plan], settings: RunSettings, network: Network, launcher: Launcher
) -> None:
    """Be all of some roles in this process, the first of them in this thread; `plan_of` gives what each has to know of the plan."""
    network.is_shared = network.is_shared or len(roles) > 1
    first, *others = roles
    threads = [thread_role(role, plan_of(role), settings, network, launcher) for role in others]
    play(first, plan_of(first), settings, network, launcher)
    for thread in threads:
        thread.join(_LAST_SECONDS)


def thread_role(name: str, plan: Plan, settings: RunSettings, network: Network, launcher: Launcher) -> threading.Thread:
    """Play a role in a thread of this process."""
    thread = threading.Thread(target=play, args=(name, plan, settings, network, launcher), name=name, daemon=True)
    thread.start()
    return thread
