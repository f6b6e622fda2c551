"""`htrain` and `python -m htrain`: the one door. Whatever happens behind it, the user gets one line and an exit status, never a traceback.

Nothing is imported here that takes time: Ctrl-C while torch is imported is answered like any other.
"""

import os
import signal
from importlib import import_module
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Run the command line; exits with its status."""
    signal.signal(signal.SIGINT, _leave)
    import_module("htrain.cli.app").main()


def _leave(number: int, frame: FrameType | None) -> None:
    """Libraries that are half imported turn an exception into another one, or into none; there is nothing to tidy up yet."""
    os.write(2, b"htrain: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
