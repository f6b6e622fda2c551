"""Playing a role: build, report, obey the launcher, leave (DESIGN 5)."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path

from htrain.cluster import device_of
from htrain.errors import Error, RunError
from htrain.executor.collective import Connect, GlooConnector
from htrain.executor.link import Link
from htrain.executor.memory import keep_pages
from htrain.executor.port import Network
from htrain.executor.role import Role
from htrain.executor.settings import RunSettings
from htrain.executor.threads import begin_thread, share_gil
from htrain.plan import Plan

_BEAT_SECONDS = 0.5
_TICK_SECONDS = 0.05


def play(
    name: str, plan: Plan, settings: RunSettings, network: Network, launcher: str, connect: Connect = GlooConnector
) -> None:
    """Be role `name` until the launcher says stop; `connect` finds the other trainers where all step together.

    A failure is reported to the launcher, never raised.
    """
    begin_thread()
    replicas = plan.options.net_replicas if device_of(name) == "trainer" else 1
    keep_pages(heaps=replicas)
    share_gil(replicas)
    link = Link(name, network, launcher)
    role: Role | None = None
    try:
        role = Role(name, plan, settings, network, connect)
        book = link.hello(role.endpoints, settings.deadline_seconds)
        role.fill()
        link.ready()
        _obey(role, link, book)
    except Error as error:
        link.failed(error)
    except Exception as error:
        link.failed(RunError(f"{name}: {type(error).__name__}: {error}"))
    finally:
        if role:
            role.stop()
        link.close()


def _obey(role: Role, link: Link, book: dict[str, str]) -> None:
    """Carry out orders, beat, and tell what has changed, until told to stop. Raises the error of any of the role's threads."""
    said: Mapping[str, bool] = {}
    pausing, last_beat = False, 0.0
    while True:
        order = link.order(_TICK_SECONDS)
        if order and order.verb in ("stop", "abort"):
            link.beat(0, role.metrics())
            return
        if order and order.verb == "start":
            role.start(book)
        elif order and order.verb == "pause":
            role.pause()
            pausing = True
        elif order and order.verb == "resume":
            role.resume()
        elif order and order.verb == "save":
            link.beat(0, role.metrics())  # at rest: the reports of all roles are of the same moment
            link.state("saved", role.save(Path(order.folder)))
        if role.error:
            raise role.error
        if role.finished and not said:
            said = {"finished": True}
            link.beat(0, role.metrics())
            link.state("finished", role.state())
        if pausing and role.quiet:
            pausing = False
            link.state("paused", role.state())
        if time.monotonic() - last_beat > _BEAT_SECONDS:
            last_beat = time.monotonic()
            link.beat(0, role.metrics())


def thread_role(name: str, plan: Plan, settings: RunSettings, network: Network, launcher: str) -> threading.Thread:
    """Play a role in a thread of this process."""
    thread = threading.Thread(target=play, args=(name, plan, settings, network, launcher), name=name, daemon=True)
    thread.start()
    return thread
