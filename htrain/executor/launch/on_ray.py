"""Roles as tasks of Ray: the only door to it. Each process of a plan is an agent in a task, with the cores and the memory that the plan gives its devices.

Ray says on which node, and begins a task again whose process or node has died; the agent then joins the launcher again, as one does that systemd has started.
Tasks are given names, an address and the run's secret, as text; nothing else of a run passes through Ray.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import ray
from ray.exceptions import RayError

from htrain.errors import Error, RunError
from htrain.executor.host.address import address_within, split_port
from htrain.executor.launch.agent import RunIsOver, play_roles
from htrain.executor.launch.joined import Meeting
from htrain.executor.launch.joining import Joining
from htrain.executor.settings import RunSettings
from htrain.net.names import device_of
from htrain.plan.plan import Plan
from htrain.sizes import memory_text
from htrain.spec.settings import Elsewhere

_MOST_JOINS = 100  # of one task: an hour and more of a launcher that does not take it
_AGAIN_SECONDS = 2.0  # between two of them
_LAST_SECONDS = 5.0  # for tasks to end that have been told that the run is over


@contextmanager
def agents(settings: RunSettings, num_threads: int) -> Iterator[Meeting]:
    """Where roles join that Ray starts, from when a plan is known: in the cluster that this machine belongs to, or in one of its own. They end with it. Raises
    RunError for a cluster that cannot be reached."""
    was_there = ray.is_initialized()
    try:
        if not was_there:
            ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
    except (RayError, ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise RunError(f"--on ray: the cluster cannot be reached: {error}") from error
    host = address_within("--network", settings.network) if settings.network else ray.util.get_node_ip_address()
    started = _Started(token_hex(32), num_threads)
    try:
        yield Meeting(host, 0, started.secret.encode(), Elsewhere.join_seconds, started.advice, started.start)
    finally:
        started.end()
        if not was_there:
            ray.shutdown()


@dataclass
class _Started:
    """The tasks of one run."""

    secret: str
    num_threads: int
    tasks: list[Any] = field(default_factory=list)
    asked: dict[str, str] = field(default_factory=dict)  # by the first role of each, what it is to have

    def start(self, plan: Plan, address: str) -> None:
        """A task for each process of a plan, whose agent joins the launcher at this address."""
        host, port = split_port("--listen", address)
        for roles in plan.processes:
            cores, memory = resources_of(plan, roles)
            self.asked[roles[0]] = f"{cores:g} cores and {memory_text(memory)}"
            task = ray.remote(_play).options(
                num_cpus=cores, memory=memory, max_retries=-1, name=f"htrain {roles[0]}", scheduling_strategy="SPREAD"
            )
            self.tasks.append(task.remote(list(roles), host, port, self.secret, self.num_threads))

    def advice(self, address: str, roles: Sequence[str]) -> str:
        """What a user does about roles that have not come."""
        wanted = ", ".join(f"{role} {self.asked[role]}" for role in roles if role in self.asked)
        return f"Ray starts them where it has room ({wanted}): ray status says what there is"

    def end(self) -> None:
        """Wait a moment for tasks that know that the run is over; end the others."""
        _, left = ray.wait(self.tasks, num_returns=len(self.tasks), timeout=_LAST_SECONDS) if self.tasks else ([], [])
        for task in left:
            ray.cancel(task, force=True)


def resources_of(plan: Plan, roles: Sequence[str]) -> tuple[float, int]:
    """The cores and the bytes of memory of a process that plays roles: what the plan's cluster gives their devices, or a share of the cores that all have in
    common."""
    cluster, devices = plan.cluster, [device_of(role) for role in roles]
    shared = cluster.shared_cores
    cores = shared / len(plan.processes) if shared else float(max(cluster.cores_of(device) for device in devices))
    return round(cores, 3), sum(cluster.memory_of(device) for device in devices)


def _play(roles: list[str], host: str, port: int, secret: str, num_threads: int) -> str:
    """A task: be an agent for some roles, to the end of the run; why it ended, "" where all is trained. The launcher has been told of what went wrong.

    An agent that is declined, as while the one before it is not known to be gone, or given up, comes again: Ray takes a task that returns for one that is done.
    """
    failed = ""
    for _ in range(_MOST_JOINS):
        try:
            play_roles(roles, Joining(host, port, secret.encode(), "by Ray"), num_threads=num_threads, tell=print)
        except Error as error:
            failed = str(error)
            if isinstance(error.__cause__, RunIsOver):
                return failed
            print(f"{failed}; it comes again in {_AGAIN_SECONDS:.0f} s")
            time.sleep(_AGAIN_SECONDS)
        else:
            return ""
    return failed
