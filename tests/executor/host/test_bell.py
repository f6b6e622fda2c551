"""A bell that threads and handlers of signals ring, and that another thread waits for."""

import select
import threading

from htrain.executor.host.bell import Bell


def rings(bell: Bell) -> bool:
    return bool(select.select([bell.descriptor], [], [], 0)[0])


def test_it_can_be_waited_for_from_the_first_ring_until_it_is_muted() -> None:
    bell = Bell()
    assert not rings(bell)
    bell.ring()
    bell.ring()
    assert rings(bell)
    bell.mute()
    assert not rings(bell)
    bell.mute()
    bell.close()


def test_many_rings_block_nobody_and_none_is_left_after_it_was_muted() -> None:
    bell = Bell()
    threads = [threading.Thread(target=lambda: [bell.ring() for _ in range(3000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    bell.mute()
    assert not rings(bell)
    bell.close()


def test_a_thread_that_rings_too_late_does_no_harm() -> None:
    bell = Bell()
    bell.close()
    bell.ring()
