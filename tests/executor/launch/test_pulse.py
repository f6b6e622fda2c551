"""A role's pulse: it beats, tells of threads that hang, and notices when the launcher is gone."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import psutil
import pytest

import htrain.executor.launch.pulse as module
from htrain.errors import PeerLost, RunError
from htrain.executor.host.process import Process, this_process
from htrain.executor.launch import agent_pulse
from htrain.executor.launch.agent_pulse import AgentPulse
from htrain.executor.launch.launcher_pulse import LauncherPulse
from htrain.executor.launch.pulse import Pulse, beat_seconds
from htrain.executor.transport.link import LAUNCHER, Launcher
from htrain.executor.transport.port import Inbox, Network
from htrain.executor.transport.rendezvous import Here
from htrain.executor.transport.wire import Beat, Failed, Message

ROLE = "trainer:0:0"


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network("inproc")
    yield made
    made.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "BEAT_SECONDS": 0.02,
        "LAUNCHER_SECONDS": 0.6,
        "_ENDED_SECONDS": 0.2,
        "_TICK_SECONDS": 0.01,
    }.items():
        monkeypatch.setattr(module, name, value)


def next_message(inbox: Inbox, kind: type) -> Message:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        got = inbox.receive(0.1)
        if got and isinstance(got[0], kind):
            return got[0]
    raise AssertionError(f"no {kind.__name__} came")


def pulse_of(network: Network, inbox: Inbox, process: Process, *, liveness_seconds: float = 0.0) -> Pulse:
    launcher = Launcher(inbox.address, process)
    return Pulse(ROLE, network, launcher, ends_process=False, liveness_seconds=liveness_seconds)


def wait_for_error(pulse: Pulse, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not pulse.error and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("roles", "liveness", "seconds"),
    [(1, 60, 0.5), (150, 60, 0.5), (1500, 60, 5.0), (100_000, 60, 15.0), (1500, 1, 0.5)],
)
def test_many_roles_beat_less_often_and_never_too_seldom_to_live(roles: int, liveness: float, seconds: float) -> None:
    assert beat_seconds(roles, liveness) == seconds


def test_it_beats_with_what_was_measured_and_tells_once_of_a_thread_that_hangs(network: Network, quick: None) -> None:
    inbox = network.inbox(LAUNCHER)
    pulse = pulse_of(network, inbox, this_process())
    assert next_message(inbox, Beat) == Beat(ROLE, {})
    pulse.metrics = lambda: {"steps": 3}
    deadline = time.monotonic() + 10
    while next_message(inbox, Beat) != Beat(ROLE, {"steps": 3}):
        assert time.monotonic() < deadline
    pulse.hangs = lambda: "its thread 'reader' hangs"
    assert next_message(inbox, Failed) == Failed(ROLE, "PeerLost", f"{ROLE}: its thread 'reader' hangs")
    time.sleep(0.2)
    rest = [got[0] for _ in range(100) if (got := inbox.receive(0))]
    assert rest
    assert all(isinstance(message, Beat) for message in rest)
    pulse.stop()
    inbox.close()


def test_a_launcher_whose_process_has_ended_is_gone(network: Network, quick: None) -> None:
    inbox = network.inbox(LAUNCHER)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    named = msgspec.structs.replace(this_process(), pid=child.pid, began=psutil.Process(child.pid).create_time())
    pulse = pulse_of(network, inbox, named)
    time.sleep(1.0)
    pulse.check()
    os.kill(child.pid, 19)  # as after Ctrl-Z: it says nothing, and it is not gone
    time.sleep(1.0)
    pulse.check()
    child.kill()
    child.wait()
    wait_for_error(pulse)
    with pytest.raises(PeerLost, match=rf"^trainer:0:0: the launcher \(process {child.pid} on .*\) is gone$"):
        pulse.check()
    pulse.stop()
    inbox.close()


def test_a_launcher_elsewhere_is_gone_when_it_has_spoken_and_falls_silent(network: Network, quick: None) -> None:
    inbox = network.inbox(LAUNCHER)
    pulse = pulse_of(network, inbox, msgspec.structs.replace(this_process(), host="far"))
    time.sleep(1.0)
    pulse.check()  # it may still be waiting for other roles
    signs = 0

    def give_sign() -> None:
        nonlocal signs
        signs += 1

    launcher = LauncherPulse(network, {**pulse.endpoints, "trainer:0:0/control": "nowhere"}, give_sign)
    time.sleep(0.5)
    pulse.check()
    launcher.stop()
    assert signs
    wait_for_error(pulse)
    with pytest.raises(PeerLost, match=r"the launcher .* is gone"):
        pulse.check()
    pulse.stop()
    inbox.close()


def test_a_launcher_elsewhere_is_borne_for_as_long_as_it_bears_roles(network: Network, quick: None) -> None:
    inbox = network.inbox(LAUNCHER)
    far = msgspec.structs.replace(this_process(), host="far")
    pulse = pulse_of(network, inbox, far, liveness_seconds=2.0)
    launcher = LauncherPulse(network, pulse.endpoints, lambda: None)
    time.sleep(0.2)
    launcher.stop()
    began = time.monotonic()
    wait_for_error(pulse)
    assert 1.8 < time.monotonic() - began < 8
    pulse.stop()
    inbox.close()


class Line:
    """An outbox that takes all, and a launcher's answer never comes."""

    def __init__(self) -> None:
        self.said: list[Message] = []
        self.closed = False

    def offer(self, peer: str, message: Message) -> bool:
        assert not self.closed
        self.said.append(message)
        return True

    def close(self) -> None:
        self.closed = True


class Lines:
    """A network of such outboxes."""

    def __init__(self) -> None:
        self.made: list[Line] = []

    def outbox(self, book: object) -> Line:
        self.made.append(Line())
        return self.made[-1]


def test_an_agent_bears_the_silence_of_its_launcher_for_as_long_as_that_and_asks_anew_who_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A link that is down for less costs time only; a host that went without a word is found again though its connection looks alive."""
    for name, value in {"_BEAT_SECONDS": 0.02, "LAUNCHER_SECONDS": 0.3, "_ANEW_SECONDS": 0.2}.items():
        monkeypatch.setattr(agent_pulse, name, value)
    lines = Lines()
    pulse = AgentPulse("agent", "tcp://here:1", lines, {LAUNCHER: "tcp://there:1"})  # type: ignore[arg-type]
    pulse.bear(0.1)
    assert not pulse.gone
    pulse.bear(1.5)
    silent = 0.0
    while not pulse.gone and silent < 20:
        time.sleep(0.02)
        silent += 0.02
        pulse.listened(heard=False)
    assert silent > 0.5, "not after 0.3 s"
    assert re.fullmatch(r"it has heard nothing of its launcher for \d s", pulse.gone)
    assert len(lines.made) > 2
    assert lines.made[1].said[0] == Here("agent", "tcp://here:1"), "whoever does not know it says so"
    pulse.listened(heard=True)
    time.sleep(0.2)
    assert not pulse.gone
    assert [line.closed for line in lines.made] == [False] + [True] * (len(lines.made) - 1)
    pulse.stop()
    assert all(line.closed for line in lines.made)


def test_a_role_that_cannot_end_by_itself_goes_with_its_process(
    network: Network, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(module, "_LAST_SECONDS", 0.1)
    monkeypatch.setattr(module.os, "_exit", lambda status: ended.set() if status == 1 else None)
    inbox = network.inbox(LAUNCHER)
    gone = msgspec.structs.replace(this_process(), began=1.0)
    pulse = Pulse(ROLE, network, Launcher(inbox.address, gone), ends_process=True)
    assert ended.wait(10)
    pulse.stop()
    inbox.close()


@pytest.mark.parametrize("whose", ["the launcher's", "an agent's"])
def test_a_pulse_that_cannot_be_sent_is_told_to_whose_it_is(network: Network, whose: str) -> None:
    """As where no more files can be opened. Nobody would know else, and others would take the launcher for one that is gone."""
    pulse: LauncherPulse | AgentPulse
    if whose == "an agent's":
        pulse = AgentPulse("agent", "tcp://127.0.0.1:1", network, {LAUNCHER: "nowhere"})
        look: Callable[[], None] = partial(pulse.listened, heard=True)
    else:
        pulse = LauncherPulse(network, {f"{ROLE}/pulse": "nowhere"}, lambda: None)
        look = pulse.check
    with pytest.raises(RunError, match="has the address 'nowhere', which is none"):
        until_it_raises(look)
    pulse.stop()


def test_what_a_library_raises_under_the_launchers_pulse_is_told_too(network: Network) -> None:
    def fail() -> None:
        raise OSError("too many")

    pulse = LauncherPulse(network, {}, fail)
    with pytest.raises(RunError, match="its pulse: OSError: too many"):
        until_it_raises(pulse.check)
    pulse.stop()


def until_it_raises(look: Callable[[], None]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        look()
        time.sleep(0.01)
