"""Versions of a model that changes, written by several roles and read by others, against copies that were taken when each was begun."""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from secrets import token_hex

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import htrain.publishing.reading as reading
import htrain.publishing.writing as writing
from htrain.errors import PublishError
from htrain.publishing.keeping import remove_version
from htrain.publishing.reading import Published
from htrain.publishing.shares import Held
from htrain.publishing.storage import Folder, Objects, Storage, storage_of
from htrain.publishing.versions import (
    FOLDER,
    MANIFEST,
    Object,
    Whole,
    new_version,
    read_version,
    version_name,
    write_manifest,
)
from htrain.publishing.writing import Writer

ROWS, DIM = 60, 3
WHOLES = {"table": Whole("table", "float32", (ROWS, DIM)), "numbered": Whole("table", "bfloat16", (ROWS, 2)),
          "fc": Whole("weight", "float32", (4, 5)), "scale": Whole("weight", "float32", ())}  # fmt: skip
RUN = "0123abcd"
quick = settings(max_examples=60, deadline=None, derandomize=True)


class Model:
    """A table in two shards, one whose rows are numbered by a partition, an FC in two parts of its columns, a number: on two roles."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        numbers = torch.randperm(ROWS)
        self.stores = (
            {"table/0": torch.randn(25, DIM), "numbered/0": torch.randn(40, 2).bfloat16(), "fc/0": torch.randn(4, 2), "scale": torch.randn(())},
            {"table/1": torch.randn(35, DIM), "numbered/1": torch.randn(20, 2).bfloat16(), "fc/1": torch.randn(4, 3)},
        )  # fmt: skip
        self.numbers = ({"numbered/0:rows": numbers[:40]}, {"numbered/1:rows": numbers[40:]})
        held = (
            [Held("table/0", "table", "table", 0, 0), Held("numbered/0", "numbered", "table", 0, 0), Held("fc/0", "fc", "weight", 0, 0),
             Held("scale", "scale", "weight", 0, 0)],
            [Held("table/1", "table", "table", 25, 0), Held("numbered/1", "numbered", "table", 40, 0), Held("fc/1", "fc", "weight", 0, 2)],
        )  # fmt: skip
        self.writers = [
            Writer(f"sparse_ps:{k}", held[k], tensors=self.stores[k], numbers=self.numbers[k]) for k in range(2)
        ]

    def change(self) -> None:
        """A few rows, and all that is dense."""
        for store in self.stores:
            for name, tensor in store.items():
                if tensor.dim() and not name.startswith("fc"):
                    tensor[self.random.sample(range(len(tensor)), self.random.randint(0, 5))] += 1
                else:
                    tensor += 1

    def whole(self) -> dict[str, torch.Tensor]:
        one, other = self.stores
        numbers = torch.cat([self.numbers[0]["numbered/0:rows"], self.numbers[1]["numbered/1:rows"]])
        numbered = torch.empty(ROWS, 2, dtype=torch.bfloat16)
        numbered[numbers] = torch.cat([one["numbered/0"], other["numbered/1"]])
        return {
            "table": torch.cat([one["table/0"], other["table/1"]]),
            "numbered": numbered,
            "fc": torch.cat([one["fc/0"], other["fc/1"]], dim=1),
            "scale": one["scale"].clone(),
        }

    def objects(self, storage: Storage, name: str, base: str) -> list[Object]:
        for writer in self.writers:
            writer.take()
        return [each for writer in self.writers for each in writer.write(storage, name, base)]


def manifest(storage: Storage, name: str, base: str, objects: list[Object]) -> None:
    write_manifest(
        storage,
        new_version(
            name, base, model="m", plan="p", examples=7, seconds=1.0, is_final=False, parameters=WHOLES, objects=tuple(objects)
        ),
    )  # fmt: skip


def alike(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


class Refusing(Objects):
    """Refuses to put one object, of those that are put from now on."""

    left = -1

    def put(self, name: str, content: bytes) -> None:
        self.left -= 1
        if self.left == 0:
            raise PublishError("the storage is away")
        super().put(name, content)


@given(seed=st.integers(0, 2**32 - 1), full_every=st.integers(1, 5))
@settings(quick)
def test_a_reader_has_what_the_model_was_when_a_version_was_begun_whatever_was_not_finished_before(
    seed: int, full_every: int
) -> None:
    """A version may fail at one role, or at all, or have all but its manifest: the next one on the same base makes up for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "_BLOCK_BYTES", 100)
        patch.setattr(writing, "_OBJECT_BYTES", 150)
        _write_and_read(seed, full_every)


def _write_and_read(seed: int, full_every: int) -> None:
    storage = Refusing(f"memory://{token_hex(8)}")
    model, draw = Model(seed), random.Random(seed)
    readers: list[Published] = []
    base, deltas = "", 0
    for number in range(1, 9):
        model.change()
        name = version_name(number, RUN)
        of = "" if deltas + 1 >= full_every else base
        wanted = model.whole()
        storage.left = draw.choice((-1, -1, draw.randint(1, 6)))
        try:
            objects = model.objects(storage, name, of)
            if draw.random() < 0.3:
                continue  # another role could not write its objects
            manifest(storage, name, of, objects)
        except PublishError:
            continue
        base, deltas = name, deltas + 1 if of else 0
        if draw.random() < 0.5:
            readers.append(Published(storage.address))
        for reader in readers:
            if draw.random() < 0.6:
                assert reader.refresh()
                assert reader.version is not None
                assert reader.version.name == name
                assert alike(reader.parameters, wanted)
                assert not reader.refresh()


def test_a_version_on_another_has_the_rows_that_changed_and_all_that_is_dense(tmp_path: Path) -> None:
    storage, model = storage_of(str(tmp_path)), Model(0)
    manifest(storage, version_name(1, RUN), "", model.objects(storage, version_name(1, RUN), ""))
    model.stores[0]["table/0"][[3, 7]] += 1
    model.stores[1]["numbered/1"][4] += 1
    objects = model.objects(storage, version_name(2, RUN), version_name(1, RUN))
    parts = {(part.parameter, part.num_rows) for each in objects for part in each.parts}
    assert parts == {("table", 2), ("numbered", 1), ("fc", 4), ("scale", 1)}


def test_a_role_that_does_not_know_the_base_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        PublishError, match=r"^sparse_ps:0: knows nothing of version 00000001-0123abcd, which 00000002-0123abcd"
    ):
        Model(0).objects(storage_of(str(tmp_path)), version_name(2, RUN), version_name(1, RUN))


def test_a_group_ps_that_was_begun_again_writes_its_weights_on_a_base_that_another_process_has_written(
    tmp_path: Path,
) -> None:
    storage, held = storage_of(str(tmp_path)), [Held("fc/0", "fc", "weight", 0, 0)]
    writer = Writer("group_ps:0:0", held, tensors={"fc/0": torch.ones(4, 2)}, numbers={})
    writer.take()
    (made,) = writer.write(storage, version_name(2, RUN), version_name(1, RUN))
    assert [(part.parameter, part.num_rows) for part in made.parts] == [("fc", 4)]


def two_versions(tmp_path: Path) -> tuple[Storage, Model]:
    storage, model = storage_of(str(tmp_path)), Model(0)
    for number, base in ((1, ""), (2, version_name(1, RUN))):
        name = version_name(number, RUN)
        model.change()
        manifest(storage, name, base, model.objects(storage, name, base))
    return storage, model


def files_of(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_byte_that_is_not_as_it_was_written_is_noticed_and_nothing_changes(tmp_path: Path) -> None:
    _, model = two_versions(tmp_path)
    draw = random.Random(1)
    for path in files_of(tmp_path):
        whole = path.read_bytes()
        place = draw.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        reader = Published(str(tmp_path))
        if path.parent.name == version_name(2, RUN):
            assert reader.refresh(), "the one before is whole"
        before = reader.version, {name: tensor.clone() for name, tensor in reader.parameters.items()}
        with pytest.raises(PublishError, match="damaged"):
            reader.refresh()
        assert reader.version is before[0]
        assert alike(reader.parameters, before[1])
        assert (reader.version is None) == (path.parent.name == version_name(1, RUN))
        path.write_bytes(whole)
    reader = Published(str(tmp_path))
    assert reader.refresh()
    assert alike(reader.parameters, model.whole())


def test_a_version_whose_manifest_is_not_there_yet_is_none(tmp_path: Path) -> None:
    two_versions(tmp_path)
    manifests = [tmp_path / FOLDER / version_name(number, RUN) / MANIFEST for number in (1, 2)]
    manifests[1].rename(tmp_path / "later")
    reader = Published(str(tmp_path))
    assert reader.refresh()
    assert reader.version is not None
    assert reader.version.number == 1
    assert not reader.refresh()
    (tmp_path / "later").rename(manifests[1])
    assert reader.refresh()
    assert reader.version.number == 2
    manifests[0].unlink()
    assert not Published(str(tmp_path)).refresh(), "what it is based on is gone"


def test_a_full_version_that_has_not_all_rows_is_refused(tmp_path: Path) -> None:
    storage, model = storage_of(str(tmp_path)), Model(0)
    name = version_name(1, RUN)
    manifest(
        storage, name, "", [each for each in model.objects(storage, name, "") if each.name.startswith("sparse_ps_0")]
    )
    with pytest.raises(PublishError, match=r"version 00000001-0123abcd has not all of '\w+': \d+ numbers are missing"):
        Published(str(tmp_path)).refresh()


def test_a_version_that_is_removed_while_it_is_read_gives_way_to_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, model = two_versions(tmp_path)
    read = reading.load

    def load(content: bytes) -> dict[str, torch.Tensor]:
        monkeypatch.setattr(reading, "load", read)
        model.change()
        name = version_name(3, RUN)
        manifest(storage, name, "", model.objects(storage, name, ""))
        for number in (1, 2):
            remove_version(storage, version_name(number, RUN))
        return read(content)

    monkeypatch.setattr(reading, "load", load)
    reader = Published(str(tmp_path))
    assert reader.refresh()
    assert reader.version is not None
    assert reader.version.number == 3
    assert alike(reader.parameters, model.whole())
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == [version_name(3, RUN)]


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ('"table",0,0,25', '"table",50,0,25'),
        ('"fc",0,2,4', '"fc",0,4,4'),
        ('"scale"', '"skale"'),
        ('"table",0,0,25', '"table",0,0,24'),
    ],
)
def test_a_part_that_does_not_fit_is_refused_though_its_manifest_is_as_it_was_written(
    part: str, other: str, tmp_path: Path
) -> None:
    storage, _ = two_versions(tmp_path)
    first, name = read_version(storage, version_name(1, RUN)), version_name(5, RUN)
    for each in first.objects:
        storage.put(f"{FOLDER}/{name}/{each.name}", storage.get(f"{FOLDER}/{first.name}/{each.name}"))
    text = msgspec.json.encode(first.objects)
    assert part.encode() in text
    objects = msgspec.json.decode(text.replace(part.encode(), other.encode()), type=list[Object])
    manifest(storage, name, "", objects)
    reader = Published(str(tmp_path))
    assert reader.refresh(), "the one before"
    with pytest.raises(PublishError, match="does not fit into"):
        reader.refresh()


@pytest.mark.parametrize("gone", ["absent", "short", "damaged", "manifest"])
def test_a_reader_that_begins_takes_an_older_version_where_the_newest_is_not_whole(gone: str, tmp_path: Path) -> None:
    storage, model = two_versions(tmp_path)
    second = {name: tensor.clone() for name, tensor in model.whole().items()}
    for number, base in ((3, ""), (4, version_name(3, RUN))):
        model.change()
        manifest(storage, version_name(number, RUN), base, model.objects(storage, version_name(number, RUN), base))
    place = tmp_path / FOLDER / version_name(3, RUN)
    path = place / (MANIFEST if gone == "manifest" else "sparse_ps_0-000000.safetensors")
    if gone == "absent":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(content[:-1] if gone == "short" else content[:-1] + bytes([content[-1] ^ 1]))
    reader = Published(str(tmp_path))
    assert reader.refresh()
    assert reader.version is not None
    assert reader.version.number == 2
    assert alike(reader.parameters, second)
    if gone == "absent":  # as one that is half removed
        assert not reader.refresh()
    else:
        with pytest.raises(PublishError, match="damaged: "):
            reader.refresh()
    assert alike(reader.parameters, second)


def test_a_reader_takes_what_is_newer_than_it_has_and_whole_though_the_newest_is_damaged(tmp_path: Path) -> None:
    storage, model = two_versions(tmp_path)
    reader = Published(str(tmp_path))
    assert reader.refresh()
    for number in (3, 4):
        name, base = version_name(number, RUN), version_name(number - 1, RUN)
        model.change()
        manifest(storage, name, base, model.objects(storage, name, base))
    (tmp_path / FOLDER / version_name(4, RUN) / MANIFEST).write_text('{"format": 2}')
    assert reader.refresh()
    assert reader.version is not None
    assert reader.version.number == 3
    with pytest.raises(PublishError, match=r"manifest\.json: format 2, this htrain reads format 1$"):
        reader.refresh()


def test_a_version_that_is_damaged_is_read_once_however_many_build_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, model = two_versions(tmp_path)
    for number in (3, 4, 5):
        name, base = version_name(number, RUN), version_name(number - 1, RUN)
        manifest(storage, name, base, model.objects(storage, name, base))
    for path in (tmp_path / FOLDER / version_name(1, RUN)).glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1] + b"~")
    read: list[str] = []
    get = Folder.get
    monkeypatch.setattr(Folder, "get", lambda self, name: [read.append(name), get(self, name)][1])
    with pytest.raises(PublishError, match="damaged: it is not as it was written"):
        Published(tmp_path).refresh()
    assert len([name for name in read if name.endswith(".safetensors")]) == 1
    assert len([name for name in read if name.endswith(MANIFEST)]) == 5


def test_a_reader_takes_a_path_and_may_begin_before_there_is_anything(tmp_path: Path) -> None:
    reader = Published(tmp_path / "later")
    assert not reader.refresh()
    two_versions(tmp_path / "later")
    assert reader.refresh()
    with pytest.raises(PublishError, match="names no place for versions"):
        Published("")
