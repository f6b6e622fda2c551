"""Objects at addresses: of a folder, of memory, and of a store that speaks S3."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from stores import BUCKET, s3_at, s3_store, silence

import htrain.publishing.storage as storage
from htrain.data import drivers
from htrain.errors import PublishError
from htrain.publishing.storage import Absent, storage_of

KINDS = ("folder", "file", "memory", "s3")


@pytest.fixture(scope="module")
def s3() -> Iterator[None]:
    with s3_store():
        yield


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        request.getfixturevalue("s3")
    name = tmp_path.name.replace("[", "-").replace("]", "-")
    return {
        "folder": str(tmp_path / "store"),
        "file": f"file://{tmp_path}/store",
        "memory": f"memory://{name}",
        "s3": f"s3://logs/{name}",
    }[request.param]


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
    there = [(entry.name, entry.kind, entry.num_bytes) for entry in store.entries("a")]
    assert there[0] == ("2", "object", 5)
    assert there[1][:2] == ("b", "folder")
    assert time.time() - 60 < store.entries("a")[0].seconds < time.time() + 60
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


def test_a_link_is_no_object_and_no_folder(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    for link, to in (("a", "there"), ("b", "there/file"), ("c", "nowhere")):
        (tmp_path / link).symlink_to(tmp_path / to)
    kinds = {entry.name: entry.kind for entry in storage_of(str(tmp_path)).entries("")}
    assert kinds == {"a": "other", "b": "other", "c": "other", "there": "folder"}


def test_a_store_that_lists_a_folder_in_itself_is_not_believed(bucket_of_marks: str) -> None:
    assert [entry.name for entry in storage_of(bucket_of_marks).entries("a")] == ["1"]


@pytest.fixture
def bucket_of_marks() -> Iterator[str]:
    with s3_store() as bucket:
        for key in ("marks/a/", "marks/a/1"):
            bucket.put(key, b"")
        yield f"s3://{BUCKET}/marks"


@pytest.mark.parametrize("address", ["file://{}/deep/er", "local://{}/deep/er", "{}/deep/er", "{}/s3:/x", "{}/a::b"])
def test_an_address_of_this_machine_is_a_folder(address: str, tmp_path: Path) -> None:
    storage_of(address.format(tmp_path)).put("versions/1/a", b"x")
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path == Path(address.format(tmp_path).removeprefix("file://").removeprefix("local://")) / "versions/1/a"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("", "'' names no place for versions: want a folder, or an address such as s3://bucket/models/ads"),
        ("file://", "'file://' names no place for versions: want a folder, or an address such as s3://bucket/models/ads"),
        ("s3:/b/x", "s3:/b/x: want s3://, with two slashes, for a place of that kind, or ./s3:/b/x for a folder of that name"),
        ("file:x", "file:x: want file://, with two slashes, for a place of that kind, or ./file:x for a folder of that name"),
        ("~/pub", "~/pub: nothing has put your home folder in the place of ~: write it out, or ./~/pub for a folder of that name"),
        ("dir::x", "dir::x: an address of several drivers: want that of one, such as s3://bucket/models/ads, or ./dir::x for a folder of that name"),
        ("simplecache::s3://anna:word@b", "simplecache::s3://...@b: an address of several drivers: want that of one"),
        ("s3:/anna:word@b/x", "s3:/...@b/x: want s3://, with two slashes"),
        ("s3://anna:word@b/x", "s3://...@b/x: has a password in it, which plans and logs would have, too"),
        ("s3://anna:wo@rd@b/x", "s3://...@b/x: has a password in it"),
        ("memory://anna:word@b/x", "memory://...@b/x: has a password in it"),
    ],
)  # fmt: skip
def test_an_address_that_nobody_means_is_refused_with_what_to_write_instead(address: str, said: str) -> None:
    with pytest.raises(PublishError, match=f"^{re.escape(said)}") as caught:
        storage_of(address)
    assert "rd@b" not in str(caught.value)
    if address.startswith(("~", "dir", "file:x", "s3:/b")):
        storage_of(f"./{address}")


def test_a_folder_with_a_colon_in_its_name_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage_of("ads:2024").put("a", b"x")
    assert os.listdir(tmp_path / "ads:2024") == ["a"]
