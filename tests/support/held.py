"""`python held.py FOLDER PLACES WORDS...` is `htrain WORDS...` with trainers that stop where a test says, however fast the machine is.

PLACES are ascending numbers of steps, such as `40,90!`. Behind so many steps a trainer leaves a file in FOLDER, and trains on once it is told to pause, for a
checkpoint or for the end of the run, or once FOLDER holds a file `go`. Behind a number with `!` it stays, whatever it is told. No arithmetic is changed.
"""

import os
import sys
import time
from collections import deque
from importlib import import_module
from pathlib import Path

LOOK_SECONDS = 0.01


def hold_trainers(folder: Path, places: str) -> None:
    """Let the trainers of this process, and of those that it forks, stop at `places`.

    Requires: no role runs yet. A process plays one trainer at most.
    """
    module = import_module("htrain.executor.loops.trainer")
    count, left = module.Trainer._count, deque(places.split(","))

    def count_and_hold(trainer, step) -> None:  # type: ignore[no-untyped-def]  # the module may not be loaded before its environment is there
        count(trainer, step)
        if left and trainer.totals.steps >= int(left[0].rstrip("!")):
            place, orders = left[0], trainer._orders
            (folder / f"{trainer.role} {place}").touch()
            while not orders.stopping and (place.endswith("!") or not (orders.paused or (folder / "go").exists())):
                time.sleep(LOOK_SECONDS)
            if left and left[0] == place:  # its replicas hold one by one
                left.popleft()

    module.Trainer._count = count_and_hold


def main() -> None:
    folder, places, *words = sys.argv[1:]
    # As `htrain run` does, which forks its roles from what has been loaded.
    os.environ.update(import_module("htrain.executor.launch.environment").role_environment(1))
    hold_trainers(Path(folder), places)
    import_module("htrain.executor.launch.supervisor").fork_supervisor()
    sys.argv = ["htrain", *words]
    import_module("htrain.__main__").main()


if __name__ == "__main__":
    main()
