"""The secret of a run: a file that nobody else can read."""

import os
from pathlib import Path

import pytest

from htrain.errors import RunError
from htrain.executor.host.secret import read_secret

SECRET = b"0123456789abcdef" * 2


def written(path: Path, content: bytes = SECRET, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_it_is_read_without_the_end_of_its_line(tmp_path: Path, mode: int) -> None:
    assert read_secret(written(tmp_path / "s", SECRET + b"\n", mode)) == SECRET


def test_one_behind_a_link_is_read_as_kubernetes_mounts_it(tmp_path: Path) -> None:
    written(tmp_path / "s", mode=0o400)
    (tmp_path / "link").symlink_to(tmp_path / "s")
    assert read_secret(tmp_path / "link") == SECRET


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610, 0o777])
def test_one_that_others_may_use_is_refused_by_name_and_mode(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "s", mode=mode)
    with pytest.raises(
        RunError, match=rf"^{path}: others than its owner may use it \(mode 0{mode:o}.*chmod 600 {path}"
    ):
        read_secret(path)


def test_one_that_is_short_or_not_there_is_refused_with_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds 31 bytes, want at least 32: make one with: .umask 077"):
        read_secret(written(tmp_path / "s", SECRET[:31] + b"\n\n"))
    with pytest.raises(RunError, match="no secret can be read: No such file or directory; make one with"):
        read_secret(tmp_path / "none")


def test_a_pipe_or_a_folder_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(0o700)
    for name in ("pipe", "folder"):
        with pytest.raises(RunError, match=f"{name}: is no file"):
            read_secret(tmp_path / name)
