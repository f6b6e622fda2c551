"""Processes that were forked, whose threads compute their first gradient at once: how many of them are killed (docs/decisions/supervisor.md).

    python tools/forked_gradients.py [--forks 300] [--at-once]

With `--at-once`, threads do not make torch's engine of gradients one at a time before, as `begin_thread` has them do.
"""

import argparse
import os
import sys
import threading

import torch

from htrain.executor.host.threads import begin_thread
from htrain.ops import OPS

NUM_THREADS = 12


def first_gradient(x: torch.Tensor) -> None:
    """Of an op that torch differentiates: it keeps a value, and asks for the engine."""
    OPS["LogSigmoidGradient"].kernel(x, torch.ones(3), num_inputs=1, wrt=(0,), given=(0,))


def compute(together: threading.Barrier, *, at_once: bool) -> None:
    """What a thread does."""
    if not at_once:
        begin_thread()
    x = torch.ones(3)
    together.wait()
    first_gradient(x)


def status(*, at_once: bool) -> int:
    """With what a process ends that is forked and begins such threads: minus a signal, or 1 where torch has failed in one of them."""
    pid = os.fork()
    if pid == 0:
        threading.excepthook = lambda _: os._exit(1)
        together = threading.Barrier(NUM_THREADS)
        threads = [
            threading.Thread(target=compute, args=(together,), kwargs={"at_once": at_once}) for _ in range(NUM_THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    """Fork them, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forks", type=int, default=300)
    parser.add_argument("--at-once", action="store_true")
    said = parser.parse_args()
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-5)
    first_gradient(torch.ones(3))  # imports what torch imports with the first
    found = [status(at_once=said.at_once) for _ in range(said.forks)]
    killed, failed = sum(each < 0 for each in found), sum(each > 0 for each in found)
    how = "come to torch's engine at once" if said.at_once else "make torch's engine one at a time"
    print(
        f"of {said.forks} processes with {NUM_THREADS} threads each, that {how}, {killed} were killed, and in {failed} torch failed"
    )


if __name__ == "__main__":
    main()
