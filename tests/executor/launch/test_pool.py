"""Role processes under their supervisor: real ones, which sleep where roles would train."""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import htrain.executor.launch.supervisor as module
from htrain.executor.host.process import this_process
from htrain.executor.launch.pool import RoleProcesses, Supervisors
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import Launcher

ROLES = ["trainer:0:0", "trainer:1:0", "sparse_ps:0", "group_ps:0:0"]
SLEEPS = """
import os, sys, time
import htrain.executor.launch.supervisor as module
def play(role, *_):
    print("a role prints", role)
    os.write(1, b"a library of it, too")
    time.sleep(60)
def begin(roles, plan_of, settings, *_, **left):
    (settings.run_folder / f"begun {roles[0]}").touch()
    play(*roles)
module.play_all = begin
"""
Maker = Callable[..., RoleProcesses]


def sleeping(changed: str = "") -> Callable[..., list[str]]:
    """In the place of what makes the command of a supervisor: one whose roles sleep, with something else `changed` in it."""
    return lambda imports, call: [sys.executable, "-c", f"{SLEEPS}{changed}\nmodule.{call}"]


@pytest.fixture(scope="module")
def shared() -> Iterator[Supervisors]:
    """A supervisor imports all that roles need: one test after the other has it, as pools do, for as long as it lives."""
    supervisors = Supervisors(num_threads=1)
    yield supervisors
    supervisors.close()


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared: Supervisors) -> Iterator[Maker]:
    """Starts a pool, with supervisors of its own if asked to, and returns once its roles have their processes; ends what a test has left."""
    monkeypatch.setattr(module, "python_command", sleeping())
    pools: list[RoleProcesses] = []
    own: list[Supervisors] = []

    def begin(supervisors: Supervisors = shared) -> RoleProcesses:
        own.append(supervisors)
        settings = RunSettings(tmp_path, "synthetic:", tmp_path)
        pools.append(
            pool := RoleProcesses(
                [[role] for role in ROLES],
                settings,
                Launcher("tcp://nowhere", this_process()),
                supervisors,
                alone=[role for role in ROLES if role != "sparse_ps:0"],
            )
        )
        deadline = time.monotonic() + 60
        while not all(pool.lives(role) for role in ROLES):
            assert time.monotonic() < deadline, pool.lost()
            select.select(pool.descriptors, [], [], 1.0)
        return pool

    yield begin
    for pool in pools:
        pool.abandon()  # its roles would sleep for as long as they may
    for supervisors in own:
        if supervisors is not shared:
            supervisors.close()


def supervisor_of(pool: RoleProcesses) -> psutil.Process:
    return psutil.Process(os.getpgid(pool.pids[ROLES[0]]))


def test_a_killed_role_is_named_with_its_signal_and_whoever_waits_is_woken(start: Maker) -> None:
    pool = start()
    assert pool.lost() == ""
    os.kill(pool.pids["trainer:1:0"], signal.SIGKILL)
    assert select.select(pool.descriptors, [], [], 10.0)[0]
    assert pool.lost() == f"trainer:1:0 (process {pool.pids['trainer:1:0']}) was killed by signal 9"
    assert [pool.lives(role) for role in ROLES] == [True, False, True, True]


def test_a_killed_supervisor_is_named_and_its_roles_go_with_it_even_one_that_is_stopped(
    start: Maker, tmp_path: Path
) -> None:
    pool = start()
    deadline = time.monotonic() + 60
    while not all((tmp_path / f"begun {role}").exists() for role in ROLES):  # else it is stopped before it is one
        assert time.monotonic() < deadline
        time.sleep(0.01)
    supervisor, roles = supervisor_of(pool), [psutil.Process(pid) for pid in pool.pids.values()]
    roles[0].suspend()
    supervisor.kill()
    assert select.select(pool.descriptors, [], [], 10.0)[0]
    assert pool.lost() == f"the supervisor of roles (process {supervisor.pid}) was killed by signal 9"
    assert not any(pool.lives(role) for role in ROLES)
    assert pool.descriptors == (), "else whoever waits would be woken for ever"
    assert not psutil.wait_procs(roles, timeout=10)[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_all_processes_of_a_service_are_for_the_launcher_to_decide(
    start: Maker, number: signal.Signals
) -> None:
    pool = start()
    for pid in (supervisor_of(pool).pid, *pool.pids.values()):
        assert os.getsid(pid) != os.getsid(0), "a terminal sends none of them anything"
        os.kill(pid, number)
    assert not select.select(pool.descriptors, [], [], 1.0)[0]
    assert all(pool.lives(role) for role in ROLES)


def test_the_end_leaves_no_role_and_the_supervisor_for_the_next_pool(start: Maker) -> None:
    pool = start()
    supervisor, *roles = [supervisor_of(pool), *(psutil.Process(pid) for pid in pool.pids.values())]
    roles[0].suspend()
    pool.end()
    assert not psutil.wait_procs(roles, timeout=10)[1]
    assert not supervisor.children(), "no zombie either"
    following = start()
    assert supervisor_of(following) == supervisor
    os.kill(following.pids["trainer:0:0"], signal.SIGKILL)
    assert select.select(following.descriptors, [], [], 10.0)[0]
    assert following.lost().startswith("trainer:0:0 (process ")


def test_a_pool_that_is_abandoned_leaves_no_role_there_and_then(start: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "python_command", sleeping("module._LAST_SECONDS = 50.0"))
    supervisors = Supervisors(num_threads=1)
    pool = start(supervisors)
    supervisor, *roles = [supervisor_of(pool), *(psutil.Process(pid) for pid in pool.pids.values())]
    began = time.monotonic()
    pool.abandon()
    assert time.monotonic() - began < 10
    assert not psutil.wait_procs(roles, timeout=0)[1]
    following = start(supervisors)
    assert supervisor_of(following) == supervisor
    following.abandon()


def test_a_supervisor_that_was_killed_is_followed_by_another_and_none_is_left_with_the_last_pool(start: Maker) -> None:
    pool = start()
    first = supervisor_of(pool)
    first.kill()
    pool.end()
    assert first not in psutil.Process().children()
    second = supervisor_of(start())
    assert second != first


def test_nobody_is_left_when_no_further_pool_is_to_come(start: Maker) -> None:
    pool = start()
    family = [supervisor_of(pool), *(psutil.Process(pid) for pid in pool.pids.values())]
    pool.end()
    pool._supervisors.close()
    assert not psutil.wait_procs(family[1:], timeout=10)[1]
    assert not family[0].is_running()
    assert family[0] not in psutil.Process().children()


def test_kill_ends_all_at_once(start: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    # With roles that are to end by themselves.
    monkeypatch.setattr(module, "python_command", sleeping("module._LAST_SECONDS = 50.0"))
    pool = start(Supervisors(num_threads=1))
    family = [supervisor_of(pool), *(psutil.Process(pid) for pid in pool.pids.values())]
    began = time.monotonic()
    pool.kill()
    assert not psutil.wait_procs(family, timeout=30)[1]
    assert time.monotonic() - began < 30


def test_a_role_that_may_be_alone_is_begun_again_while_others_stay(start: Maker) -> None:
    pool = start()
    before = dict(pool.pids)
    for role in ("trainer:0:0", "trainer:1:0"):
        os.kill(before[role], signal.SIGKILL)  # both in one moment: each is told of
    for role in ("trainer:0:0", "trainer:1:0"):
        await_end(pool, role)
        assert pool.can_begin_again(role)
        pool.begin_again(role, "")
    deadline = time.monotonic() + 20
    while not all(pool.lives(role) for role in ROLES) and time.monotonic() < deadline:
        select.select(pool.descriptors, [], [], 1.0)
    assert pool.lost() == ""
    assert [pool.pids[role] == before[role] for role in ROLES[:3]] == [False, False, True]
    os.kill(before["sparse_ps:0"], signal.SIGKILL)
    await_end(pool, "sparse_ps:0")
    assert not pool.can_begin_again("sparse_ps:0")


def test_a_group_ps_that_has_left_nothing_whole_is_not_begun_again(start: Maker) -> None:
    """These have never had weights."""
    pool = start()
    assert pool.can_begin_again("group_ps:0:0")
    os.kill(pool.pids["group_ps:0:0"], signal.SIGKILL)
    await_end(pool, "group_ps:0:0")
    assert not pool.can_begin_again("group_ps:0:0")
    assert pool.can_begin_again("trainer:0:0")


def test_a_supervisor_keeps_no_files_of_the_processes_that_others_have_followed(start: Maker) -> None:
    """A run may have roles begun again for weeks, and a process 1,024 files."""
    pool = start()
    supervisor, role = supervisor_of(pool), "trainer:0:0"
    before = supervisor.num_fds()
    for lives in (True, False, True, False):
        if not lives:
            os.kill(pool.pids[role], signal.SIGKILL)
            await_end(pool, role)
        pool.begin_again(role, "")
        deadline = time.monotonic() + 20
        while not pool.lives(role) and time.monotonic() < deadline:
            select.select(pool.descriptors, [], [], 1.0)
    assert pool.lives(role)
    assert supervisor.num_fds() == before


def await_end(pool: RoleProcesses, role: str) -> None:
    deadline = time.monotonic() + 20
    while pool.lives(role) and time.monotonic() < deadline:
        select.select(pool.descriptors, [], [], 1.0)
    assert not pool.lives(role)
