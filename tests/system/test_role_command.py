"""Runs whose roles are started elsewhere, by `htrain role`: each a process that knows the launcher by its address alone (docs/how-to/on-a-cluster.md)."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from forked import Started, shared_commands
from ledger import DATA, counted, ledger_plan, owed
from whole_runs import (
    ENDLESS,
    WIDE_DEEP,
    another_checkpoint,
    libfm,
    parameters,
    start,
    train,
    wait_for_a_checkpoint,
    wait_for_examples,
    wait_until,
    wait_until_all_train,
)

import htrain
from htrain.executor.record.kept import find_checkpoints
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

ROLES = ("trainer:0:0", "trainer:1:0", "sparse_ps:0", "dense_ps:0")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("role") / "plan"
    ledger_plan(this_machine(groups=2, trainers=1, group_ps=0, sparse_ps=1, dense_ps=1)).save(folder)
    return folder


@pytest.fixture(scope="module")
def one_trainer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A plan of one trainer and two sparse PSs, and its data, in a file."""
    folder = tmp_path_factory.mktemp("one")
    data = libfm(folder / "a.libfm", 400)
    options = with_flags(batch_size=16, net_replicas=1, dense_sync="allreduce")
    htrain.compile(WIDE_DEEP, data=data, cluster=this_machine(group_ps=0, sparse_ps=2), options=options).save(
        folder / "plan"
    )
    return folder / "plan", data


def secret_at(path: Path) -> Path:
    path.write_bytes(os.urandom(32).hex().encode())
    path.chmod(0o600)
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Elsewhere:
    """The commands of one run, which a test starts, and the fixture ends."""

    def __init__(self, folder: Path) -> None:
        self.run, self.secret = folder / "run", secret_at(folder / "secret")
        self.address = f"127.0.0.1:{free_port()}"
        self.started: list[Started] = []

    def launch(self, plan: Path, data: str, *arguments: str) -> Started:
        where = ("--out", str(self.run), "--listen", self.address, "--secret", str(self.secret))
        self.started.append(process := start(plan, data, *where, *arguments))
        return process

    def role(self, *names: str, secret: Path | None = None, more: tuple[str, ...] = ()) -> Started:
        words = ["role", *names, "--launcher", self.address, "--secret", str(secret or self.secret), *more]
        self.started.append(process := shared_commands().start(words))
        return process

    def roles(self, *more: str) -> dict[str, Started]:
        return {name: self.role(name, more=more) for name in ROLES}

    def pid_of(self, role: str) -> int:
        return int(json.loads((self.run / "roles.json").read_text())[role]["pid"])


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    made = Elsewhere(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def ended(process: Started, status: int) -> str:
    """What a command has said, which has ended with this status."""
    _, said = process.communicate(timeout=40)
    assert process.returncode == status, said
    assert "Traceback" not in said
    return said


def last(said: str) -> str:
    return said.splitlines()[-1]


def test_roles_that_join_before_or_after_the_launcher_train_what_those_of_a_local_run_do(
    elsewhere: Elsewhere, one_trainer: tuple[Path, str], tmp_path: Path
) -> None:
    plan, data = one_trainer
    early = elsewhere.role("sparse_ps:0", "sparse_ps:1")
    launcher = elsewhere.launch(plan, data, "--deterministic")
    late = elsewhere.role("trainer:0:0")
    assert "3 of 3 roles are here" in ended(launcher, 0)
    for role in (early, late):
        assert "reached at 127.0.0.1" in ended(role, 0)
    train(plan, data, "--out", str(tmp_path / "local"), "--deterministic")
    joined, local = parameters(elsewhere.run), parameters(tmp_path / "local")
    assert joined.keys() == local.keys()
    assert all(torch.equal(joined[name], local[name]) for name in local)
    assert not list(elsewhere.run.glob("probe-*"))


def test_whoever_has_another_secret_is_refused_and_disturbs_nobody(
    elsewhere: Elsewhere, one_trainer: tuple[Path, str], tmp_path: Path
) -> None:
    plan, data = one_trainer
    launcher = elsewhere.launch(plan, data)
    role = elsewhere.role("sparse_ps:0", "sparse_ps:1")
    wait_until(lambda: bool(list(elsewhere.run.glob("probe-*"))), launcher, "a launcher that waits")
    began = time.monotonic()
    stranger = elsewhere.role("trainer:0:0", secret=secret_at(tmp_path / "another"))
    assert last(ended(stranger, 1)) == (
        f"htrain: {elsewhere.address} ({tmp_path / 'another'}): somebody listens there, but does not take this secret: "
        "give the launcher and all roles the same one"
    )
    assert time.monotonic() - began < 20
    host, port = elsewhere.address.split(":")
    with socket.create_connection((host, int(port))) as noise:
        noise.sendall(os.urandom(4096))
    for process in (elsewhere.role("trainer:0:0"), launcher, role):
        ended(process, 0)


def test_a_secret_that_others_can_read_is_refused_by_name(elsewhere: Elsewhere, plan: Path) -> None:
    elsewhere.secret.chmod(0o640)
    for process in (elsewhere.role("trainer:0:0"), elsewhere.launch(plan, DATA)):
        said = last(ended(process, 1))
        assert said.startswith(f"htrain: {elsewhere.secret}: others than its owner may use it (mode 0640"), said
    assert not elsewhere.run.exists()


def test_a_role_that_is_played_already_or_that_the_plan_does_not_have_is_declined_by_name(
    elsewhere: Elsewhere, plan: Path
) -> None:
    launcher = elsewhere.launch(plan, DATA, "--join-seconds", "300")
    first = elsewhere.role("trainer:0:0")
    wait_until(lambda: f"process {first.pid} on" in heard(launcher), launcher, "a first role")
    second, unknown = elsewhere.role("trainer:0:0"), elsewhere.role("sparse_ps:1")
    declines = f"htrain: {elsewhere.address}: the launcher declines: "
    assert last(ended(second, 1)).startswith(f"{declines}trainer:0:0 is played by process {first.pid} on ")
    assert last(ended(unknown, 1)) == f"{declines}the plan has no role sparse_ps:1: it has {', '.join(ROLES)}"
    launcher.send_signal(signal.SIGINT)
    assert "stopped while trainer:1:0, sparse_ps:0 and dense_ps:0 had not come" in last(ended(launcher, 130))
    assert "stopped while" in last(ended(first, 130))


def heard(process: Started) -> str:
    """What a process that goes on has said so far."""
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=0.05)
    return process.heard


def test_roles_that_do_not_come_are_named_at_the_deadline(elsewhere: Elsewhere, plan: Path) -> None:
    launcher = elsewhere.launch(plan, DATA, "--join-seconds", "6")
    roles = [elsewhere.role(name) for name in ROLES[:2]]
    said = last(ended(launcher, 1))
    assert said.startswith(
        "htrain: sparse_ps:0 and dense_ps:0 did not come within 6 s (--join-seconds): start htrain role"
    )
    for role in roles:
        assert last(ended(role, 1)).startswith("htrain: the run has ended: sparse_ps:0 and dense_ps:0 did not come")


def test_a_run_that_no_role_has_joined_leaves_nothing_in_the_way_of_the_same_command(
    elsewhere: Elsewhere, plan: Path
) -> None:
    for _ in range(2):
        launcher = elsewhere.launch(plan, DATA, "--join-seconds", "1")
        assert "did not come within 1 s (--join-seconds): start htrain role" in last(ended(launcher, 1))
        assert not list(elsewhere.run.glob("*"))


def test_a_role_without_a_launcher_gives_up(elsewhere: Elsewhere) -> None:
    role = elsewhere.role("trainer:0:0", more=("--wait-seconds", "1"))
    assert last(ended(role, 1)).startswith(f"htrain: {elsewhere.address}: no launcher within 1 s (Connection refused)")


def test_data_that_is_not_where_a_role_is_is_said_before_the_first_step(
    elsewhere: Elsewhere, one_trainer: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, data = one_trainer
    (tmp_path / "launcher").mkdir()
    (tmp_path / "host").mkdir()
    os.link(re.sub(r"libfm:(.*)\?.*", r"\1", data), tmp_path / "launcher" / "b.libfm")
    monkeypatch.chdir(tmp_path / "launcher")  # a relative path stands for other files elsewhere
    launcher = elsewhere.launch(plan, "libfm:b.libfm?rows=50")
    monkeypatch.chdir(tmp_path / "host")
    servers = elsewhere.role("sparse_ps:0", "sparse_ps:1")
    wait_until(lambda: f"process {servers.pid} on" in heard(launcher), launcher, "its servers")
    trainer = elsewhere.role("trainer:0:0")
    assert last(ended(trainer, 1)).startswith("htrain: b.libfm: ")
    said = last(ended(launcher, 1))
    assert said.startswith(f"htrain: trainer:0:0 (process {trainer.pid} on {socket.gethostname()}): b.libfm: ")
    assert str(tmp_path / "host") in said
    assert "b.libfm" in last(ended(servers, 1))
    assert not list(elsewhere.run.glob("probe-*"))


def test_a_launcher_that_is_told_to_stop_writes_a_checkpoint_and_ends_roles(elsewhere: Elsewhere, plan: Path) -> None:
    launcher = elsewhere.launch(plan, DATA, *ENDLESS)
    roles = elsewhere.roles()
    wait_for_examples(elsewhere.run, launcher, 1)
    families = [child for role in roles.values() for child in psutil.Process(role.pid).children(recursive=True)]
    launcher.send_signal(signal.SIGINT)
    assert "; go on with --resume" in last(ended(launcher, 130))
    for role in roles.values():
        assert last(ended(role, 130)).startswith("htrain: the run has ended: stopped after")
    assert find_checkpoints(elsewhere.run).complete
    assert not psutil.wait_procs(families, timeout=10)[1]


def test_a_launcher_that_is_killed_is_missed_by_its_roles_which_look_for_another_for_a_while(
    elsewhere: Elsewhere, plan: Path
) -> None:
    launcher = elsewhere.launch(plan, DATA, *ENDLESS)
    wait_until(lambda: "start htrain role" in heard(launcher), launcher, "it listens")
    roles = elsewhere.roles("--wait-seconds", "1")
    wait_for_examples(elsewhere.run, launcher, 1)
    launcher.kill()
    for role in roles.values():
        said = ended(role, 1)
        assert f"{elsewhere.address}: the launcher is gone; " in said
        assert last(said).startswith(
            f"htrain: {elsewhere.address}: the launcher is gone, and no other has come: {elsewhere.address}: no launcher within 1 s"
        )


def test_a_launcher_that_is_killed_and_started_again_is_found_by_its_roles_and_the_run_goes_on(
    elsewhere: Elsewhere, plan: Path
) -> None:
    often = ("--checkpoint-seconds", "0.7", "--or-resume", *ENDLESS)
    launcher = elsewhere.launch(plan, DATA, *often)
    roles = elsewhere.roles()
    for _ in range(2):
        wait_for_a_checkpoint(elsewhere.run, launcher)
        another_checkpoint(elsewhere.run, launcher)
        launcher.kill()
        launcher.communicate()
        launcher = elsewhere.launch(plan, DATA, *often)
        another_checkpoint(elsewhere.run, launcher)
    launcher.send_signal(signal.SIGINT)
    assert "; go on with --resume" in last(ended(launcher, 130))
    for role in roles.values():
        assert last(ended(role, 130)).startswith("htrain: the run has ended: stopped after")
    assert (counted(plan, elsewhere.run) == owed(elsewhere.run)).all()


def suspended(pid: int) -> list[psutil.Process]:
    """A process and all behind it, stopped, but for those that end meanwhile: one that was forked to write a checkpoint, and has."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    return family


def resume(family: list[psutil.Process]) -> None:
    for process in reversed(family):
        with suppress(psutil.NoSuchProcess):
            process.resume()


def test_a_host_that_is_back_behind_the_time_for_silence_joins_again(elsewhere: Elsewhere, plan: Path) -> None:
    launcher = elsewhere.launch(
        plan, DATA, *ENDLESS, "--checkpoint-seconds", "0.7", "--liveness-seconds", "3", "--retries", "3"
    )
    roles = elsewhere.roles()
    wait_until_all_train(elsewhere.run, launcher, "trainer:0:0", "trainer:1:0")
    away = roles["trainer:1:0"]
    family = suspended(away.pid)
    wait_until(lambda: "the run goes on" in heard(launcher), launcher, "a silence")
    resume(family)
    another_checkpoint(elsewhere.run, launcher)
    launcher.send_signal(signal.SIGINT)
    ended(launcher, 130)
    for role in roles.values():
        ended(role, 130)
    assert (counted(plan, elsewhere.run) == owed(elsewhere.run)).all()


def test_a_role_that_is_killed_and_started_again_is_taken_in_and_every_example_is_trained_once(
    elsewhere: Elsewhere, plan: Path
) -> None:
    launcher = elsewhere.launch(plan, DATA, *ENDLESS, "--checkpoint-seconds", "0.7", "--retries", "3")
    roles = elsewhere.roles()
    wait_for_a_checkpoint(elsewhere.run, launcher)
    for victim, number in (("sparse_ps:0", signal.SIGKILL), ("trainer:1:0", signal.SIGTERM)):
        another_checkpoint(elsewhere.run, launcher)
        roles[victim].send_signal(number)  # and with it goes all that it plays
        assert roles[victim].wait(20) in (-signal.SIGKILL, 128 + signal.SIGTERM)
        wait_until(  # a checkpoint may have been closed at this moment
            lambda v=victim: any(
                line.startswith(v) and "the run goes on" in line for line in heard(launcher).splitlines()
            ),
            launcher,
            f"the loss of {victim}",
        )
        roles[victim] = elsewhere.role(victim)
    another_checkpoint(elsewhere.run, launcher)
    os.kill(elsewhere.pid_of("dense_ps:0"), signal.SIGKILL)  # what is played alone: its agent has another
    another_checkpoint(elsewhere.run, launcher)
    launcher.send_signal(signal.SIGINT)
    said = ended(launcher, 130)
    told = [line for line in said.splitlines() if "the run goes on" in line]
    assert [line.split(" ")[0] for line in told] == ["sparse_ps:0", "trainer:1:0", "dense_ps:0"], said
    for role in roles.values():
        ended(role, 130)
    assert (counted(plan, elsewhere.run) == owed(elsewhere.run)).all()


def test_a_ps_of_a_role_command_is_begun_again_alone_and_trainers_of_others_with_it(
    elsewhere: Elsewhere, tmp_path: Path
) -> None:
    plan = tmp_path / "plan"
    ledger_plan(this_machine(groups=1, trainers=2, group_ps=1, sparse_ps=2, dense_ps=0)).save(plan)
    often = ("--checkpoint-seconds", "2", "--retries", "3", "--retry", "partial", "--workers", "1")
    launcher = elsewhere.launch(plan, DATA, *ENDLESS, *often)
    names = ("trainer:0:0", "trainer:0:1", "group_ps:0:0", "sparse_ps:0", "sparse_ps:1")
    roles = {name: elsewhere.role(name) for name in names}
    wait_for_a_checkpoint(elsewhere.run, launcher)
    for count, victim in enumerate(("sparse_ps:1", "group_ps:0:0", "sparse_ps:1"), 1):
        another_checkpoint(elsewhere.run, launcher)
        time.sleep(0.3)
        before = {name: elsewhere.pid_of(name) for name in names}
        os.kill(before[victim], signal.SIGKILL)
        wait_until(lambda c=count: heard(launcher).count("goes on after") == 3 * c, launcher, "another")  # type: ignore[misc]
        after = {name: elsewhere.pid_of(name) for name in names}
        assert [name for name in names if before[name] == after[name]] == [name for name in names[2:] if name != victim]
    another_checkpoint(elsewhere.run, launcher)
    launcher.send_signal(signal.SIGINT)
    said = ended(launcher, 130)
    assert said.count("its rows are those of examples_") == 2, said
    assert said.count("its weights are as it left them") == 1, said
    assert "the run goes on" not in said, said
    for role in roles.values():
        ended(role, 130)


@pytest.mark.parametrize(("leaver", "number"), [("sparse_ps:0", signal.SIGTERM), ("trainer:1:0", signal.SIGINT)])
def test_a_role_that_is_asked_to_leave_does_once_all_is_saved_and_nothing_is_trained_again(
    elsewhere: Elsewhere, plan: Path, leaver: str, number: int
) -> None:
    """As where a host is drained for maintenance."""
    launcher = elsewhere.launch(plan, DATA, *ENDLESS, "--checkpoint-seconds", "60", "--retries", "1", "--workers", "1")
    roles = elsewhere.roles()
    wait_until_all_train(elsewhere.run, launcher, "trainer:0:0", "trainer:1:0")
    for _ in range(2):
        wait_for(launcher, "EPS", len(heard(launcher)))
        roles[leaver].send_signal(number)
        _, said = roles[leaver].communicate(timeout=30)
        assert roles[leaver].returncode == 128 + number
        assert f"{leaver}: leaves once the run is saved" in said
        assert said.splitlines()[-1] == f"{leaver}: has left the run"
        roles[leaver] = elsewhere.role(leaver)
        wait_for(launcher, "EPS", len(heard(launcher)))
    launcher.send_signal(signal.SIGINT)
    said = ended(launcher, 130)
    told = re.findall(
        rf"{leaver} \(process \d+ on [^)]+\) leaves; the run goes on from checkpoint \S+: few examples, if any, are trained",
        said,
    )
    assert len(told) == 2, said
    for role in roles.values():
        ended(role, 130)
    assert (counted(plan, elsewhere.run) == owed(elsewhere.run)).all()


def wait_for(launcher: Started, words: str, since: int) -> None:
    """Until the launcher has said these words, behind so many characters."""
    wait_until(lambda: words in heard(launcher)[since:], launcher, words)


def test_a_trainer_of_a_role_command_is_begun_again_by_it_while_others_go_on(
    elsewhere: Elsewhere, tmp_path: Path
) -> None:
    """Between hosts connections are numbered: those with the one before end with it."""
    plan = tmp_path / "plan"
    ledger_plan(this_machine(groups=1, trainers=2, group_ps=1, sparse_ps=1, dense_ps=0)).save(plan)
    launcher = elsewhere.launch(plan, DATA, *ENDLESS, "--checkpoint-seconds", "1", "--retries", "3", "--workers", "1")
    names = ("trainer:0:0", "trainer:0:1", "group_ps:0:0", "sparse_ps:0")
    roles = {name: elsewhere.role(name) for name in names}
    wait_for_a_checkpoint(elsewhere.run, launcher)
    for victim in ("trainer:0:1", "trainer:0:0", "trainer:0:1"):
        another_checkpoint(elsewhere.run, launcher)
        before = elsewhere.pid_of(victim)
        os.kill(before, signal.SIGKILL)
        wait_until(lambda v=victim, was=before: elsewhere.pid_of(v) != was, launcher, f"another {victim}")
    another_checkpoint(elsewhere.run, launcher)
    launcher.send_signal(signal.SIGINT)
    said = ended(launcher, 130)
    assert "the run goes on" not in said, said
    again = [int(count) for count in re.findall(r"batches that it had begun, and trains again: (\d+)", said)]
    assert len(again) == 3
    off = counted(plan, elsewhere.run) - owed(elsewhere.run)
    assert off.min() >= 0
    assert off.sum() <= sum(again) * 32 * 26
    for role in roles.values():
        ended(role, 130)


def test_a_role_that_hangs_is_given_up_and_another_takes_its_place_for_good(elsewhere: Elsewhere, plan: Path) -> None:
    launcher = elsewhere.launch(
        plan, DATA, *ENDLESS, "--checkpoint-seconds", "0.7", "--liveness-seconds", "3", "--retries", "3"
    )
    roles = elsewhere.roles()
    wait_until_all_train(elsewhere.run, launcher, "trainer:0:0", "trainer:1:0")
    hung = roles["trainer:1:0"]
    family = suspended(hung.pid)
    wait_until(lambda: "the run goes on" in heard(launcher), launcher, "a silence")
    roles["trainer:1:0"] = elsewhere.role("trainer:1:0")
    another_checkpoint(elsewhere.run, launcher)
    resume(family)
    said = ended(hung, 1)
    assert "the launcher declines: it was silent for 3 s, and given up" in said
    assert "the launcher declines: trainer:1:0 is played by process" in last(said)
    another_checkpoint(elsewhere.run, launcher)
    launcher.send_signal(signal.SIGINT)
    ended(launcher, 130)
    assert (counted(plan, elsewhere.run) == owed(elsewhere.run)).all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("role trainer --launcher h:1 --secret s", "'trainer' is no role: want trainer:G:I, group_ps:G:K"),
        ("role dense_ps:0 dense_ps:0 --launcher h:1 --secret s", "dense_ps:0 is named twice"),
        ("role dense_ps:0 --launcher h --secret s", "--launcher h: want HOST:PORT, such as 10.1.0.1:7070"),
        ("role dense_ps:0 --launcher h:1 --secret S --address 0.0.0.0", "--address 0.0.0.0: is no address that others"),
        ("run p --data d --out r --secret s", "--secret has no effect without --listen"),
        ("run p --data d --out r --join-seconds 5", "--join-seconds has no effect without --listen"),
        ("run p --data d --out r --listen lo", "--listen lo: wants --secret FILE"),
        (
            "run p --data d --out r --listen lo --secret s --threads",
            "--listen lo has no effect with --threads",
        ),
        ("run p --data d --out r --listen lo --secret s --on ray", "--listen lo has no effect with --on ray"),
        (
            "run p --data d --out r --on ray --threads",
            "--on ray has no effect with --threads, which starts roles itself",
        ),
        ("run p --data d --out r --listen lo:x --secret S", "--listen lo:x: want HOST:PORT"),
        ("run p --data d --out r --listen lo --secret S --network 10.1.0.0/16", "--network 10.1.0.0/16 has no effect"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_line(words: str, said: str, tmp_path: Path) -> None:
    words = words.replace("--secret S", f"--secret {secret_at(tmp_path / 'secret')}")
    done = shared_commands().run(words.split(), tmp_path, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"htrain: {said}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "r").exists()
