"""Which thread hangs: by a clock and a CPU count of the test's own."""

import threading
import time

import pytest

import htrain.executor.host.watch as module
from htrain.executor.host.patience import Patience
from htrain.executor.host.watch import Watch


class World:
    """The clock, and the CPU that each thread has used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.cpu = 0.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module, "_cpu_seconds", lambda thread: self.cpu)
        self.patience = Patience(10, 100)
        self.watch = Watch(self.patience)

    def told(self, seconds: int, *, cpu: float = 0.0) -> str:
        """The first thing that is told while time passes, and CPU is used."""
        for _ in range(seconds):
            self.now += 1
            self.cpu += cpu
            if said := self.watch.tick():
                return said
        return ""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_thread_that_does_nothing_for_longer_than_the_patience_hangs(world: World) -> None:
    reader, other = world.watch.activity("reader"), world.watch.activity("other")
    world.patience.warm()
    other.begin("computing")
    other.end()
    assert world.told(50) == ""
    reader.begin("reading")
    assert world.told(10) == ""
    assert world.told(3) == "its thread 'reader' hangs: reading for 11 s"
    reader.end()
    assert world.told(50) == ""


def test_a_thread_that_gets_on_or_uses_a_cpu_is_slow_and_no_more(world: World) -> None:
    reader = world.watch.activity("reader")
    world.patience.warm()
    for _ in range(20):
        reader.begin("reading")
        assert world.told(9) == ""
        reader.end()
    reader.begin("reading")
    assert world.told(190, cpu=0.01) == ""
    assert world.told(20, cpu=0.01).startswith("its thread 'reader' hangs: reading for 201 s"), "but not for ever"


def test_until_the_first_step_is_done_and_while_much_is_written_there_is_more_time(world: World) -> None:
    main = world.watch.activity("main")
    main.begin("loading")
    assert world.told(100) == ""
    assert world.told(3)
    main.end()
    world.patience.warm()
    with main.at("saving", num_bytes=500_000_000):
        assert world.told(60) == ""
        assert world.told(3) == "its thread 'main' hangs: saving for 61 s"


def test_a_process_that_was_stopped_has_not_been_watched(world: World) -> None:
    world.patience.warm()
    world.watch.activity("reader").begin("reading")
    world.told(1)
    for _ in range(5):
        world.now += 3600
        assert world.watch.tick() == ""


def test_the_cpu_of_a_thread_is_that_of_the_thread_and_one_that_has_ended_hangs_nowhere() -> None:
    go, known, done = threading.Event(), threading.Event(), threading.Event()
    idents: list[int] = []

    def work() -> None:
        idents.append(threading.get_native_id())
        known.set()
        go.wait(10)
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        done.set()
        go.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    known.wait(10)
    before = module._cpu_seconds(idents[0])
    assert module._cpu_seconds(idents[0]) < before + 0.04
    go.set()
    done.wait(10)
    thread.join(10)
    first = module._cpu_seconds(idents[0])
    time.sleep(0.01)
    assert module._cpu_seconds(idents[0]) > first, "it counts as one that goes on"
