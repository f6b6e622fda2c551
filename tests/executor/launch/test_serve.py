"""What serving leaves in its folder."""

import errno
import os
from pathlib import Path

import pytest

from htrain.errors import Error
from htrain.executor.launch import serve
from htrain.executor.settings import RunSettings
from htrain.membership.served import Listening, Served, Serving


@pytest.mark.parametrize(("number", "status"), [(errno.ENOSPC, 1), (errno.EACCES, 2)])
def test_a_disk_that_does_not_take_where_to_join_is_no_command_that_cannot_work_if_it_is_full(
    number: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service manager starts it again, but for a status of 2."""

    def refuse(path: Path, *_: object) -> int:
        raise OSError(number, os.strerror(number), str(path))

    serving = Serving(Served("abc", "model", 1, ()), Listening("127.0.0.1", (0,), "token", 60.0))
    settings = RunSettings(Path("plan"), "", tmp_path, serving=serving)
    monkeypatch.setattr(serve, "addresses_in", lambda book, servers: ("127.0.0.1:7400",))
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(Error, match=f"cannot be written: {os.strerror(number)}$") as raised:
        serve._publish(settings, {}, print)
    assert raised.value.exit_status == status
