"""Objects at addresses: of a folder, of memory, and of a store that speaks S3."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from stores import s3_at, s3_store, silence

import htrain.publishing.storage as storage
from htrain.data import drivers
from htrain.errors import PublishError
from htrain.publishing.storage import Absent, storage_of

KINDS = ("folder", "memory", "s3")


@pytest.fixture(scope="module")
def s3() -> Iterator[None]:
    with s3_store():
        yield


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        request.getfixturevalue("s3")
    name = tmp_path.name.replace("[", "-").replace("]", "-")
    return {"folder": str(tmp_path / "store"), "memory": f"memory://{name}", "s3": f"s3://logs/{name}"}[request.param]


@pytest.mark.parametrize("address", KINDS, indirect=True)
def test_what_was_put_is_there_whole_until_it_is_removed(address: str) -> None:
    store = storage_of(address)
    assert store.names("a") == []
    for name, content in (("a/2", b""), ("a/1", bytes(range(256)) * 999), ("a/b/3", b"x"), ("c", b"y")):
        store.put(name, content)
        assert store.get(name) == content
    store.put("a/2", b"again")
    assert store.get("a/2") == b"again"
    assert store.names("a") == ["1", "2", "b"]
    assert store.names("nowhere") == []
    store.remove("a/1")
    store.remove("a/1")
    with pytest.raises(Absent, match=r"/a/1: "):
        store.get("a/1")
    assert storage_of(address).names("a") == ["2", "b"], "nothing is remembered of what others have removed"
    store.remove_folder("a")
    assert store.get("a/2") == b"again", "a folder that is not empty stays"


def test_a_folder_goes_when_it_is_empty_and_nothing_is_left_of_what_could_not_be_put(tmp_path: Path) -> None:
    store = storage_of(str(tmp_path / "s"))
    store.put("a/1", b"x")
    store.remove("a/1")
    store.remove_folder("a")
    store.remove_folder("a")
    assert os.listdir(tmp_path / "s") == []
    (tmp_path / "s" / "file").write_text("")
    with pytest.raises(PublishError, match=r"s/file/x: there is a file where a folder is wanted$"):
        store.put("file/x", b"y")
    with pytest.raises(PublishError, match=r"s: Is a directory$"):
        storage_of(str(tmp_path)).get("s")
    assert os.listdir(tmp_path / "s") == ["file"]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3://no-such-bucket/x", r"^s3://no-such-bucket/x/a: no such file, or no such bucket$"),
        ("nowhere://x", r"^nowhere://x: fsspec has no driver for nowhere://$"),
    ],
)
@pytest.mark.usefixtures("s3")
def test_what_cannot_be_written_is_one_line_that_names_the_address(address: str, said: str) -> None:
    with pytest.raises(PublishError, match=said):
        storage_of(address).put("a", b"x")


def test_a_store_that_is_away_or_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    away = pytest.raises(PublishError, match=r"^s3://logs/x/a: cannot be written or read: .*; check the host")
    with s3_at("http://127.0.0.1:9"), away:
        storage_of("s3://logs/x").put("a", b"x")
    monkeypatch.setattr(drivers, "_SILENT_SECONDS_S3", 0.1)
    monkeypatch.setattr(storage, "_PUT_SECONDS", 0.3)
    with silence() as endpoint, s3_at(endpoint):
        with pytest.raises(PublishError, match=r"^s3://logs/x/a: was not taken within 0 s$"):
            storage_of("s3://logs/x").put("a", b"x")
        with pytest.raises(PublishError, match=r"^s3://logs/x/a: cannot be written or read: .*timeout"):
            storage_of("s3://logs/x").get("a")
