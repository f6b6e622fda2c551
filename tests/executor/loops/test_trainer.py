"""A trainer's replicas rest while it is paused, and no longer."""

import threading
import time

from htrain.executor.loops.trainer import Trainer
from htrain.executor.roles.replica import Orders, Rest
from htrain.executor.roles.resting import Resting


def resting() -> tuple[Trainer, threading.Thread]:
    """A trainer with a thread that rests in it, without a plan."""
    trainer = Trainer.__new__(Trainer)
    trainer._ordered, trainer._orders = threading.Condition(), Orders()
    trainer._resting, trainer._finished = Resting(trainer._orders), 0
    trainer.on_change, trainer._owes = lambda: None, lambda: False
    trainer.pause()
    thread = threading.Thread(target=trainer._rest, args=(Rest(is_to_come=True),), daemon=True)
    thread.start()
    trainer._threads = [thread]
    until = time.monotonic() + 10
    while not trainer._resting.num_idle and time.monotonic() < until:
        time.sleep(0.001)
    return trainer, thread


def test_a_replica_goes_on_though_it_is_paused_again_before_it_has_seen_that_it_may() -> None:
    trainer, thread = resting()
    with trainer._ordered:  # both orders come before the thread can look
        trainer.resume()
        trainer.pause()
        assert not trainer.quiet, "a checkpoint that is made now would miss the step that the thread is about to take"
    thread.join(10)
    assert not thread.is_alive()
    assert not trainer._resting.num_idle


def test_a_replica_that_finds_the_trainer_going_on_does_not_rest() -> None:
    trainer, thread = resting()
    trainer.resume()
    thread.join(10)
    trainer._rest(Rest(is_to_come=False))
    assert not trainer._resting.num_idle


def test_an_order_to_pause_that_comes_twice_is_one() -> None:
    trainer, thread = resting()
    assert trainer.quiet
    trainer.pause()
    assert trainer.quiet
    thread.join(0.2)
    assert thread.is_alive()
    trainer.resume()
    thread.join(10)
    assert not thread.is_alive()
