"""Who publishes what of a plan, against what its roles hold."""

import select
import time
import zlib
from pathlib import Path

import pytest
from checkpoints import whole_role
from drawn_plans import Drawn

from htrain.executor.launch.publish import Versions, Wanted, prepared, shares_of, wholes_of
from htrain.executor.roles.coordination import VersionEnded
from htrain.executor.settings import RunSettings
from htrain.net.net import numel
from htrain.publishing.storage import Storage, storage_of


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
    storage.put(f"versions/{name}/a", b"a")
    versions.finish({"sparse_ps:0": {"objects": [["a", 1, zlib.crc32(b"a"), []]]}})
    end = time.monotonic() + 20
    while not (ended := versions.news()):
        assert time.monotonic() < end
        select.select(versions.descriptors, [], [], 1)
    return name, base, ended


@pytest.mark.parametrize("gone", ["manifest.json", "a", "damaged"])
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
        if gone == "damaged":
            (place / "manifest.json").write_text("{}")
        else:
            (place / gone).unlink()
        name, on, ended = published(versions, storage, is_final=True)
        assert on == second
        lost = place / ("a" if gone == "a" else "manifest.json")
        assert (
            ended.error
            == f"{lost}: is not there as it was written, and what is published builds on it: the next version has all rows"
        )
        assert not (tmp_path / "versions" / name / "manifest.json").exists()
        whole, on, ended = published(versions, storage, is_final=True)
        assert (on, ended.error) == ("", "")
        assert published(versions, storage)[1] == whole
    finally:
        versions.close()
