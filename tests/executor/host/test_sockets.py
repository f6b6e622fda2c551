"""Where sockets of roles on one host are: nobody but this user reaches them, however deep TMPDIR is."""

import stat
import tempfile
from pathlib import Path

import pytest

from htrain.errors import RunError
from htrain.executor.host import sockets
from htrain.executor.host.sockets import sockets_folder
from htrain.executor.transport.port import Network


def test_it_is_new_and_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short := Path(tempfile.mkdtemp(dir="/tmp"))))
    first, second = sockets_folder(), sockets_folder()
    assert first != second
    for folder in (first, second):
        assert folder.parent == short
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder.rmdir()
    short.rmdir()


def test_a_folder_that_is_too_deep_for_sockets_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    folder = sockets_folder()
    assert folder.parent == Path("/tmp")
    network = Network("ipc", folder=folder)
    inbox = network.inbox("sparse_ps:1023/process63")
    assert inbox.address == f"ipc://{folder}/sparse_ps_1023.process63"
    inbox.close()
    network.close()
    (folder / "sparse_ps_1023.process63").unlink(missing_ok=True)
    folder.rmdir()


def test_where_none_can_be_made_the_cure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: object) -> str:
        raise PermissionError

    monkeypatch.setattr(sockets.tempfile, "mkdtemp", refused)
    with pytest.raises(RunError, match="let TMPDIR name a short one"):
        sockets_folder()


def test_a_tmpdir_that_is_gone_leaves_tmp_and_no_place_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(sockets.tempfile, "gettempdir", nowhere)
    folder = sockets_folder()
    assert folder.parent == Path("/tmp")
    folder.rmdir()
    monkeypatch.setattr(sockets.tempfile, "mkdtemp", lambda **_: nowhere())
    with pytest.raises(RunError, match="let TMPDIR name a short one"):
        sockets_folder()
