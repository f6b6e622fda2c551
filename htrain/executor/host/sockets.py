"""Where the sockets of roles on one host are: a folder that nobody but this user can look into (docs/guarantees.md)."""

import tempfile
from pathlib import Path

from htrain.errors import RunError

_MOST_BYTES = 107  # of the path of a socket: what sockaddr_un takes on Linux, without the zero at its end
_NAME_BYTES = 40  # of an endpoint of a role


def sockets_folder() -> Path:
    """A new folder, of mode 0700, with a short name: in TMPDIR, or in /tmp where that is too deep for sockets. Raises RunError where there is none."""
    for find in (tempfile.gettempdir, lambda: "/tmp"):
        try:
            place = find()  # which fails where neither TMPDIR nor any other place can be written
            if len(place.encode()) + len("/htrain-12345678/") + _NAME_BYTES <= _MOST_BYTES:
                return Path(tempfile.mkdtemp(prefix="htrain-", dir=place))
        except OSError:
            continue
    raise RunError("no folder for the sockets of roles: let TMPDIR name a short one that can be written, such as /tmp")


def folder_of(address: str) -> Path | None:
    """The folder of a socket; None of an address that is none of one."""
    path = address.removeprefix("ipc://")
    return None if path == address else Path(path).parent
