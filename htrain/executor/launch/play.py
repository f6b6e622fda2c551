"""Playing a role: build, report, obey the launcher, leave (docs/concepts.md)."""

import threading
from collections.abc import Callable, Sequence

from htrain.costs.memory import largest_made
from htrain.errors import Error, RunError
from htrain.executor.assembly import Assembly
from htrain.executor.engine.context import Spread
from htrain.executor.host.bell import Bell
from htrain.executor.host.left import NOTHING_LEFT, Left
from htrain.executor.host.memory import heaps_for, keep_large, keep_pages
from htrain.executor.host.threads import begin_thread, share_gil
from htrain.executor.launch.pulse import Pulse, beat_seconds
from htrain.executor.launch.role import RunningRole, assembled
from htrain.executor.launch.server_processes import ServerProcess, fork_processes
from htrain.executor.roles.limits import most_message_bytes
from htrain.executor.roles.obeying import Obeying
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import Launcher, Link
from htrain.executor.transport.port import Network
from htrain.executor.transport.wire import Addresses
from htrain.net.names import TRAINER, device_of, role_of
from htrain.plan.plan import Plan, load_part

_LAST_SECONDS = 15.0  # for all of a process to end that have been told to


def play(
    name: str,
    plan: Plan,
    settings: RunSettings,
    network: Network,
    launcher: Launcher,
    left: Left = NOTHING_LEFT,
) -> None:
    """Be role `name` until the launcher says stop, or is gone. Another may go on from what is `left`.

    Raises nothing that goes wrong with the role: the launcher is told of it instead.
    """
    begin_thread()
    replicas = plan.options.net_replicas if role_of(name) == TRAINER else 1
    largest = largest_made(plan.step_net(device_of(name)), plan.options.batch_size)
    keep_pages(heaps_for(replicas, 0 if network.is_shared else largest))
    share_gil(replicas)
    network.spread = Spread(plan.cluster.trainers, 1 if settings.deterministic else plan.options.net_replicas)
    network.most_bytes = most_message_bytes(plan)
    parts, processes, failure = _divided(name, plan, settings, network)
    bell = Bell()
    incarnation = settings.positions.get(name, {}).get("incarnation", 0)
    link = Link(name, network, launcher, bell, incarnation)
    every = beat_seconds(len(plan.cluster.roles), settings.liveness_seconds)
    pulse = Pulse(
        name, network, launcher, ends_process=network.scheme != "inproc", every_seconds=every,
        liveness_seconds=settings.liveness_seconds, incarnation=incarnation,
    )  # fmt: skip
    pulse.on_error = bell.ring
    role: RunningRole | None = None
    try:
        if failure:
            raise failure
        role = RunningRole(
            name, plan, settings, network, on_change=bell.ring, parts=parts, processes=processes, left=left
        )
        pulse.hangs = role.watch.tick
        known = link.hello({**role.endpoints, **pulse.endpoints}, settings.warm_up_seconds, pulse.check)
        role.fill()
        if not network.is_shared:  # else it is the user's process, too
            keep_large(largest)
        pulse.metrics = role.metrics
        link.ready(role.metrics())
        _obey(role, link, pulse, known)
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


def _obey(role: RunningRole, link: Link, pulse: Pulse, known: Addresses) -> None:
    """Carry out orders, and tell what has changed, until told to stop. Raises the error of any of the role's threads.

    It waits for an order, or for the bell, which the role's threads ring when there is something to look at.
    """
    obeying = Obeying(role, link, known.book, known.ordered)
    pulse.exchanged = obeying.exchanged
    while True:
        order = link.order()
        if order and not obeying.told(order):
            return
        pulse.check()
        obeying.look()


def part_of(settings: RunSettings, role: str) -> Plan:
    """What a role has to know of the plan of a run. Raises PlanError."""
    return load_part(settings.plan_folder, device_of(role), settings.plan_header)


def play_all(
    roles: Sequence[str],
    plan_of: Callable[[str], Plan],
    settings: RunSettings,
    network: Network,
    launcher: Launcher,
    left: Left = NOTHING_LEFT,
) -> None:
    """Be all of some roles in this process, the first of them, in this thread, from which another may go on with what is `left`; `plan_of` gives what each
    has to know of the plan."""
    network.is_shared = network.is_shared or len(roles) > 1
    first, *others = roles
    threads = [thread_role(role, plan_of(role), settings, network, launcher) for role in others]
    play(first, plan_of(first), settings, network, launcher, left=left)
    for thread in threads:
        thread.join(_LAST_SECONDS)


def thread_role(name: str, plan: Plan, settings: RunSettings, network: Network, launcher: Launcher) -> threading.Thread:
    """Play a role in a thread of this process."""
    thread = threading.Thread(target=play, args=(name, plan, settings, network, launcher), name=name, daemon=True)
    thread.start()
    return thread
