"""`htrain` and `python -m htrain`: the one door. Whatever happens behind it, the user gets one line and an exit status, never a traceback.

Nothing is imported here that takes time: Ctrl-C while torch is imported is answered like any other.
"""

import gc
import os
import signal
from importlib import import_module
from types import FrameType

INTERRUPTED = 130
_COLLECT_AFTER = 50_000  # new objects; by default 700, and a third of the time that imports take goes into looking through what has been imported


def main() -> None:
    """Run the command line; exits with its status."""
    signal.signal(signal.SIGINT, _leave)
    gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])
    import_module("htrain.cli.app").main()


def _leave(number: int, frame: FrameType | None) -> None:
    """Libraries that are half imported turn an exception into another one, or into none; there is nothing to tidy up yet."""
    os.write(2, b"htrain: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
