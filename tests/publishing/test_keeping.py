"""What a run removes at its address, and what it leaves alone: what others have put there, users or runs."""

import os
import time
from pathlib import Path

import pytest

from htrain.errors import PublishError
from htrain.publishing.keeping import (
    Begun,
    Keeper,
    Kept,
    Standing,
    newest_number,
    outdated,
    remove_version,
    standing,
    unfinished,
    whole_versions,
)
from htrain.publishing.storage import Folder, Storage, storage_of
from htrain.publishing.versions import FOLDER, MANIFEST, new_version, version_name, write_manifest

RUN, OTHER = "0123abcd", "ffffffff"
NOW, DAY = 1e9, 24 * 3600.0
OBJECT = "trainer_0_0-000000.safetensors"


def named(*numbers: int, run: str = RUN) -> list[str]:
    return [version_name(number, run) for number in numbers]


def put(storage: Storage, name: str, base: str = "", seconds: float = 1.0) -> None:
    """A version of one object."""
    storage.put(f"{FOLDER}/{name}/{OBJECT}", b"")
    write_manifest(
        storage,
        new_version(
            name, base, model="m", plan="p", examples=7, seconds=seconds, is_final=False, parameters={}, objects=()
        ),
    )  # fmt: skip


def aged(folder: Path, days: float) -> None:
    """As if it had been written so long ago."""
    then = time.time() - days * DAY
    for path in folder.iterdir():
        os.utime(path, (then, then), follow_symlinks=False)


def there(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / FOLDER))


def test_versions_before_the_second_newest_full_one_are_outdated(tmp_path: Path) -> None:
    storage = storage_of(str(tmp_path))
    names = named(*range(1, 8))
    bases = ["", names[0], "", names[2], names[3], "", names[5]]
    for name, base in zip(names, bases, strict=True):
        put(storage, name, base)
    kept = whole_versions(storage)
    assert kept == [Kept(name, base, 1.0) for name, base in zip(names, bases, strict=True)]
    assert [version.name for version in outdated(kept, NOW)] == names[:2]
    assert outdated(kept[:2], NOW) == []


def test_what_a_later_version_builds_on_stays_however_many_full_ones_others_have_published() -> None:
    """Run A has one full version, and changes on top of it; each of run B's is full."""
    own, others = named(1, 3, 5, 7), named(2, 4, 6, run=OTHER)
    bases = dict(zip(own, ["", *own], strict=False))
    versions = sorted((Kept(name, bases.get(name, ""), 1.0) for name in (*own, *others)), key=lambda v: v.name)
    assert [version.name for version in outdated(versions, NOW)] == others[:1]


def test_the_newest_version_of_another_run_stays_for_a_day_with_all_that_it_builds_on() -> None:
    slow, fast = named(1, 2, 3), named(4, 5, 6, run=OTHER)
    versions = [
        Kept(slow[0], "", 1.0), Kept(slow[1], "", 1.0), Kept(slow[2], slow[1], NOW - DAY / 2),
        *(Kept(name, "", NOW) for name in fast),
    ]  # fmt: skip
    assert [version.name for version in outdated(versions, NOW)] == [slow[0], fast[0]]
    assert [version.name for version in outdated(versions, NOW + DAY)] == [*slow, fast[0]]


def test_a_run_ends_what_it_began_itself_at_once_and_what_others_began_after_a_day() -> None:
    whole = [Kept(name, "", 1.0) for name in named(4, 8)]
    own, others = named(1, 5, 9), named(2, 6, 9, run=OTHER)

    def found(seconds: float) -> Standing:
        return Standing(whole, {}, [Begun(name, seconds) for name in (*own, *others)])

    assert unfinished(found(NOW), RUN, NOW) == own[:2], "the newest may be under way"
    assert unfinished(found(NOW - DAY - 1), RUN, NOW) == [*own[:2], *others[:2]]
    assert unfinished(found(0.0), RUN, NOW) == own[:2], "nobody knows since when"


def test_a_folder_in_which_something_lies_that_no_run_writes_is_left_alone_and_its_number_does_not_count(
    tmp_path: Path,
) -> None:
    storage, folder = storage_of(str(tmp_path)), tmp_path / FOLDER
    for name in named(1, 2, 3):
        put(storage, name)
    theses = [folder / version_name(number, run) for number, run in ((20240131, OTHER), (1, OTHER), (2, OTHER))]
    for place in theses:
        place.mkdir()
        (place / "thesis.txt").write_text("a user's own")
    (theses[1] / OBJECT).write_text("beside it")
    (theses[2] / "folder").mkdir()
    (folder / "notes.txt").write_text("a user's own")
    (folder / version_name(1, RUN) / "why.txt").write_text("a user's own")
    (folder / version_name(9, OTHER)).mkdir()
    for place in theses:
        aged(place, 400)
    assert newest_number(storage) == 3
    Keeper(storage, RUN).cleaned(time.time())
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        "notes.txt", *(f"{place.name}/thesis.txt" for place in theses), f"{theses[1].name}/{OBJECT}",
        f"{version_name(1, RUN)}/why.txt", *(f"{name}/{each}" for name in named(2, 3) for each in (MANIFEST, OBJECT)),
    }  # fmt: skip


def test_no_link_is_followed(tmp_path: Path) -> None:
    storage, folder, elsewhere = storage_of(str(tmp_path)), tmp_path / FOLDER, tmp_path / "elsewhere"
    for name in named(4, 5, 6):
        put(storage, name)
    elsewhere.mkdir()
    for name in (OBJECT, MANIFEST, "k.txt"):
        (elsewhere / name).write_text("a user's own")
    (folder / version_name(3, OTHER)).symlink_to(elsewhere)
    (folder / version_name(2, OTHER)).mkdir()
    (folder / version_name(2, OTHER) / OBJECT).symlink_to(elsewhere / OBJECT)
    (folder / version_name(77, OTHER)).symlink_to(elsewhere)
    aged(folder / version_name(2, OTHER), 400)
    assert newest_number(storage) == 6
    Keeper(storage, RUN).cleaned(time.time())
    assert sorted(os.listdir(elsewhere)) == ["k.txt", MANIFEST, OBJECT]
    assert there(tmp_path) == [*named(2, 3, run=OTHER), *named(5, 6), version_name(77, OTHER)]


def test_what_has_a_manifest_that_cannot_be_read_stays_and_is_told_of_once(tmp_path: Path) -> None:
    storage, folder = storage_of(str(tmp_path)), tmp_path / FOLDER
    for name in (*named(1, 2, run=OTHER), *named(3, 4, 5)):
        put(storage, name)
    newer, damaged = (folder / name / MANIFEST for name in named(1, 2, run=OTHER))
    newer.write_text('{"format": 2}')
    damaged.write_bytes(damaged.read_bytes()[:-9])
    aged(newer.parent, 400)
    aged(damaged.parent, 400)
    keeper = Keeper(storage, RUN)
    told = keeper.cleaned(time.time())
    assert told[0] == f"it stays, unread: {newer}: format 2, this htrain reads format 1"
    assert told[1].startswith(f"it stays, unread: {damaged}: damaged: ")
    assert there(tmp_path) == [*named(1, 2, run=OTHER), *named(4, 5)]
    assert keeper.cleaned(time.time()) == []
    assert (newer.parent / OBJECT).exists()


def test_where_a_manifest_could_not_be_read_this_time_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = storage_of(str(tmp_path))
    for name in named(1, 2):
        put(storage, name)
    keeper = Keeper(storage, RUN)
    for name in named(3, 4):
        put(storage, name)
    get = Folder.get

    def failing(self: Folder, name: str) -> bytes:
        if version_name(4, RUN) in name:
            raise PublishError("the storage is away")
        return get(self, name)

    monkeypatch.setattr(Folder, "get", failing)
    with pytest.raises(PublishError, match="the storage is away"):
        keeper.cleaned(time.time())
    assert there(tmp_path) == named(1, 2, 3, 4)
    monkeypatch.undo()
    keeper.cleaned(time.time())
    assert there(tmp_path) == named(3, 4)


def test_what_a_run_left_unfinished_goes_with_what_it_was_just_writing(tmp_path: Path) -> None:
    storage, folder = storage_of(str(tmp_path)), tmp_path / FOLDER
    (name,) = named(1, run=OTHER)
    for each in (OBJECT, ".0123456789ab.partial"):
        storage.put(f"{FOLDER}/{name}/{each}", b"")
    put(storage, version_name(2, RUN))
    assert standing(storage, {}).begun[0].name == name
    keeper = Keeper(storage, RUN)
    keeper.cleaned(time.time())
    assert there(tmp_path) == [name, *named(2)], "another run may be writing it"
    aged(folder / name, 2)
    keeper.cleaned(time.time())
    assert there(tmp_path) == named(2)


def test_another_run_at_the_address_is_told_of_once(tmp_path: Path) -> None:
    storage = storage_of(str(tmp_path))
    put(storage, version_name(1, OTHER))
    keeper = Keeper(storage, RUN)
    put(storage, version_name(2, RUN))
    assert keeper.cleaned(NOW) == [], "it was there before"
    put(storage, version_name(3, OTHER))
    assert keeper.cleaned(NOW) == [
        "another run publishes there, too: version 3 is not of this one, and readers take whichever is the newest"
    ]
    put(storage, version_name(4, OTHER))
    assert keeper.cleaned(NOW) == []


def test_a_version_that_is_removed_is_gone_with_its_folder(tmp_path: Path) -> None:
    storage = storage_of(str(tmp_path))
    put(storage, version_name(1, RUN))
    remove_version(storage, version_name(1, RUN))
    remove_version(storage, version_name(1, RUN))
    assert there(tmp_path) == []
