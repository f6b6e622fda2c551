"""The user's own Python, run inside htrain: whatever it does, a compile ends with a plan or with one line that names it."""

from collections.abc import Iterator
from contextlib import contextmanager

from htrain.errors import Error


@contextmanager
def user_code(what: str, kind: type[Error]) -> Iterator[None]:
    """Run code that is not htrain's. What it raises becomes `kind`, its message beginning with `what`; Ctrl-C stays what it is.

    `sys.exit` is such an exception too: nobody who compiles a model means to end without a plan and without a word.
    """
    try:
        yield
    except (Error, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise kind(f"{what}: it called sys.exit({error.code!r}), which ends Python: leave that to `if __name__ == '__main__'`") from error
    except BaseException as error:
        raise kind(f"{what}: {type(error).__name__}: {_words_of(error)}") from error


def _words_of(error: BaseException) -> str:
    """The message of an exception of somebody else's class, which may fail at saying it."""
    try:
        return str(error)
    except Exception:
        return "(its message cannot be shown)"
