"""Workers and owners as threads use them: each worker's own thread, and one that serves it for all others."""

import threading
from pathlib import Path

import numpy as np
import pytest
from gmp_data import write_examples

import htrain
from htrain.errors import PlanError
from htrain.executor.strategies.gmp import SharedOwner, _opened
from htrain.sync.gmp.owner import GmpOwner
from htrain.sync.gmp.worker import Bounds, Expected, GmpWorker
from htrain.sync.row_steps import SparseStep
from htrain.sync.territory import Territory

WORKERS, EACH, WIDTH, BATCH = 8, 20, 2, 12
RATE = 1.0 / 1024  # sums of such steps are exact


@pytest.mark.parametrize(("deferred", "steps"), [(False, 1000), (True, 250)])
def test_no_update_is_lost_or_doubled_by_eight_workers_in_a_thousand_steps(deferred: bool, steps: int) -> None:
    """Gradients are whole numbers, so that every order of steps comes to the same row."""
    rows, step = WORKERS * EACH, SparseStep("sgd", RATE)
    tables = np.zeros((WORKERS, EACH, WIDTH), np.float32)
    owners = [SharedOwner(GmpOwner(table, np.zeros((EACH, 0), np.float32), staleness=4, step=step)) for table in tables]
    wanted = np.zeros((WORKERS, rows, WIDTH), np.int64)
    updates = np.zeros((WORKERS, rows), np.int64)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        others = np.setdiff1d(np.arange(rows), np.arange(EACH * number, EACH * (number + 1)))
        secondaries = np.sort(random.choice(others, 30, replace=False))
        worker = GmpWorker(
            Territory([EACH * k for k in range(WORKERS)], list(range(WORKERS)), [0] * WORKERS, rows), WIDTH, number=number,
            bounds=Bounds(4, deferred=deferred), step=step, secondaries=secondaries,
            expected=Expected(np.ones(EACH, np.float32), np.ones(30, np.float32)),
        )  # fmt: skip
        worker.stand_beside(owners[number])

        def asked() -> tuple[np.ndarray, np.ndarray, list[list[np.ndarray]]]:
            keys = np.sort(random.choice(rows, BATCH, replace=False))
            slots, requests = worker.ask(keys, np.arange(BATCH).reshape(-1, 3))
            return keys, slots, exchanged(requests)

        def exchanged(requests: list) -> list:  # type: ignore[type-arg]
            found = []
            for owner, request in zip(owners, requests, strict=True):
                parts = request.counts, request.keys, request.clocks, request.gradients
                owner.push_arrays(*parts)
                found.append(owner.pull_arrays(*parts))
            return found

        try:
            following = asked()
            for _ in range(steps):
                keys, slots, answers = following
                worker.read_arrays(slots, answers)
                following = asked()  # a batch ahead
                gradients = random.integers(-3, 4, (BATCH, WIDTH))
                worker.write(slots, gradients.astype(np.float32))
                wanted[number, keys] += gradients
                updates[number, keys] += 1
            worker.read_arrays(following[1], following[2])
            worker.read_arrays(np.empty(0, np.int64), exchanged(worker.flush()))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors
    assert np.array_equal(tables.reshape(rows, WIDTH), -RATE * wanted.sum(0))
    clocks = np.concatenate([owner.clocks for owner in owners])
    assert np.array_equal(clocks, updates.sum(0))


def test_a_partition_that_is_made_anew_under_the_same_name_is_another(tmp_path: Path) -> None:
    """Roles of a process share what they have read of a partition, which may still be in memory when the file has become another."""
    source, out = write_examples(tmp_path, "a", 200), tmp_path / "a.partition"
    first = htrain.partition(source, out=out, num_workers=2, batch_size=BATCH).facts.digest
    held = _opened(str(out), first)
    assert _opened(str(out), first) is held
    other = htrain.partition(source, out=out, num_workers=3, batch_size=BATCH).facts.digest
    assert _opened(str(out), other).num_workers == 3
    assert held.num_workers == 2
    with pytest.raises(PlanError, match="is another partition than the plan was compiled with"):
        _opened(str(out), "none")
