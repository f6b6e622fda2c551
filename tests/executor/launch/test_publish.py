"""Who publishes what of a plan, against what its roles hold."""

import os
import select
import threading
import time
import zlib
from contextlib import closing
from pathlib import Path

import pytest
from checkpoints import whole_role
from drawn_plans import Drawn

import htrain.executor.launch.publish as publish
from htrain.errors import PublishError
from htrain.executor.launch.publish import Versions, Wanted, prepared, shares_of, wholes_of
from htrain.executor.roles.coordination import VersionEnded
from htrain.executor.settings import RunSettings
from htrain.net.net import numel
from htrain.publishing.storage import Storage, storage_of
from htrain.publishing.versions import number_of

OBJECT = "sparse_ps_0-000000.safetensors"


@pytest.mark.parametrize("seed", range(24))
def test_each_number_of_the_model_is_published_by_one_role_that_holds_it(seed: int) -> None:
    plan = Drawn.of(seed).plan()
    shares, left = shares_of(plan), {name: numel(whole.shape, 1) for name, whole in wholes_of(plan).items()}
    assert shares.keys() == set(plan.cluster.roles)
    for role, held in shares.items():
        store = whole_role(plan, role).store
        for each in held:
            left[each.whole] -= store[each.name].numel()
            assert each.kind == wholes_of(plan)[each.whole].kind
    assert set(left.values()) == {0}
    if plan.centers:
        from_centres = {each.whole for role, held in shares.items() for each in held if role.startswith("dense_ps")}
        assert from_centres or all(of.startswith("group") for of in plan.centers.values())


def test_without_an_address_nothing_is_prepared(tmp_path) -> None:  # type: ignore[no-untyped-def]
    settings = RunSettings(tmp_path, "synthetic:", tmp_path)
    found, versions = prepared(Drawn.of(0).plan(), settings, Wanted())
    assert found == settings
    assert versions.news() is None
    with pytest.raises(AssertionError, match="nobody wants a version"):
        versions.begin(0, is_final=True)


def published(versions: Versions, storage: Storage, *, is_final: bool = False) -> tuple[str, str, VersionEnded]:
    """The name and the base of a version of one object, and how it ended."""
    name, base = versions.begin(7, is_final=is_final)
    storage.put(f"versions/{name}/{OBJECT}", b"a")
    return name, base, ended(versions)


def ended(versions: Versions) -> VersionEnded:
    """How a version ends once its object is said to have been written."""
    versions.finish({"sparse_ps:0": {"objects": [[OBJECT, 1, zlib.crc32(b"a"), []]]}})
    end = time.monotonic() + 20
    while not (found := versions.news()):
        assert time.monotonic() < end
        select.select(versions.descriptors, [], [], 1)
    return found


@pytest.mark.parametrize("gone", ["manifest.json", OBJECT, "damaged", "short"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_version_is_never_made_on_top_of_what_somebody_has_removed(tmp_path: Path, gone: str, which: int) -> None:
    """Nobody could read it, nor those behind it, until the next that has all rows."""
    storage = storage_of(str(tmp_path))
    versions = Versions(Drawn.of(0).plan(), Wanted(str(tmp_path)))
    try:
        first = published(versions, storage)[0]
        second, on, _ = published(versions, storage)
        assert on == first
        place = tmp_path / "versions" / (first, second)[which]
        if gone in ("damaged", "short"):
            (place / ("manifest.json" if gone == "damaged" else OBJECT)).write_text("")
        else:
            (place / gone).unlink()
        name, on, end = published(versions, storage, is_final=True)
        assert on == second
        lost = place / (OBJECT if gone in (OBJECT, "short") else "manifest.json")
        assert (
            end.error
            == f"{lost}: is not there as it was written, and what is published builds on it: the next version has all rows"
        )
        assert not (tmp_path / "versions" / name / "manifest.json").exists()
        whole, on, end = published(versions, storage, is_final=True)
        assert (on, end.error) == ("", "")
        assert published(versions, storage)[1] == whole
    finally:
        versions.close()


def numbers(tmp_path: Path) -> list[int]:
    return sorted(number_of(name) for name in os.listdir(tmp_path / "versions"))


def test_two_runs_at_one_address_count_on_from_each_other_and_neither_removes_what_the_other_builds_on(
    tmp_path: Path,
) -> None:
    storage, plan = storage_of(str(tmp_path)), Drawn.of(0).plan()
    with (
        closing(Versions(plan, Wanted(str(tmp_path), full_every=100))) as slow,
        closing(Versions(plan, Wanted(str(tmp_path), full_every=1))) as fast,
    ):
        first = published(slow, storage)[0]
        told = [published(fast, storage)[2].news for _ in range(3)]
        assert ["another run publishes there, too: version 1 is not of" in news for news in told] == [
            True,
            False,
            False,
        ]
        under_way, base = slow.begin(7, is_final=False)
        storage.put(f"versions/{under_way}/{OBJECT}", b"a")
        assert (number_of(under_way), base) == (5, first)
        for _ in range(3):
            assert not published(fast, storage)[2].error
        assert not ended(slow).error
        name, base, end = published(slow, storage)
        assert (number_of(name), base, end.error) == (9, under_way, "")
        assert numbers(tmp_path) == [1, 5, 7, 8, 9]


def test_a_version_is_not_made_of_what_its_roles_have_written_where_the_launcher_does_not_see_it(
    tmp_path: Path,
) -> None:
    with closing(Versions(Drawn.of(0).plan(), Wanted(str(tmp_path)))) as versions:
        name, _ = versions.begin(7, is_final=True)
        assert (
            ended(versions).error
            == f"{tmp_path}/versions/{name}/{OBJECT}: a role has written it, and it is not there: all hosts have to see the same storage, and "
            "nobody may remove what is new"
        )
        assert not (tmp_path / "versions" / name).exists()


def test_a_storage_that_does_not_say_what_is_there_holds_no_version_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, silence = storage_of(str(tmp_path)), threading.Event()
    with closing(Versions(Drawn.of(0).plan(), Wanted(str(tmp_path)))) as versions:
        monkeypatch.setattr(publish, "_LIST_SECONDS", 0.1)
        monkeypatch.setattr(publish, "newest_number", lambda storage: silence.wait(20))
        name, _, _ = published(versions, storage)
        silence.set()
    assert number_of(name) == 1


def test_a_number_behind_which_there_is_no_room_is_refused(tmp_path: Path) -> None:
    storage = storage_of(str(tmp_path))
    storage.put(f"versions/999999999999999999-deadbeef/{OBJECT}", b"")
    with pytest.raises(
        PublishError, match="versions: version 999999999999999999 is there, and no run counts as far: remove it"
    ):
        Versions(Drawn.of(0).plan(), Wanted(str(tmp_path)))


@pytest.mark.parametrize("is_file", [False, True])
def test_the_place_of_versions_is_tried_before_anything_is_trained(is_file: bool, tmp_path: Path) -> None:
    address = f"file://{tmp_path}/deep/store"
    if is_file:
        (tmp_path / "deep/store").mkdir(parents=True)
        (tmp_path / "deep/store/versions").touch()
        with pytest.raises(PublishError, match=r"store/versions: Not a directory$"):
            Versions(Drawn.of(0).plan(), Wanted(address))
        return
    with closing(Versions(Drawn.of(0).plan(), Wanted(address))) as versions:
        assert numbers(tmp_path / "deep/store") == []
        assert not published(versions, storage_of(address))[2].error
    assert numbers(tmp_path / "deep/store") == [1]
