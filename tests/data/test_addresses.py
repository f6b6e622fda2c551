"""Data at an address is the data of a local file: the same rows in the same chunks, shared out, resumed and named; and what goes wrong is one line."""

import gzip
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.http import HTTPFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stores import KEYS, Bucket, Plain, Ranged, forget, s3_at, s3_store, silence, web

import htrain.data.drivers as drivers
import htrain.data.remote_file as remote_file
from htrain.data import START, Malformed, open_data
from htrain.data.address import Address
from htrain.data.files import files_at
from htrain.data.growth import Cut, Extent, FilePart, FileSize
from htrain.data.identity import identity_of, other_than_grown
from htrain.data.pack import pack
from htrain.data.packed_contents import packed_contents
from htrain.data.reader import Source
from htrain.errors import DataError

SCHEMA = "label: y\ninputs:\n  d: {kind: dense, columns: [x]}\n  s: {kind: ids, columns: [i], rows: 1000}\n"
Chunks = list[tuple[int, list[Any]]]


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3_store() as store:
        yield store


def written(folder: Path, counts: list[int], ending: str) -> None:
    """A schema, and a folder `in` with files of so many rows, whose numbers go on from file to file."""
    (folder / "in").mkdir()
    (folder / "s.yaml").write_text(SCHEMA)
    begin = 0
    for k, count in enumerate(counts):
        rows, path = range(begin, begin + count), folder / "in" / f"part-{k:03}{ending}"
        begin += count
        text = "y,x,i\n" + "".join(f"{r % 2},{r},{r % 1000}\n" for r in rows)
        if ending == ".csv":
            path.write_text(text)
        elif ending == ".csv.gz":
            path.write_bytes(gzip.compress(text.encode()))
        else:
            table = pa.table({"y": [r % 2 for r in rows], "x": [float(r) for r in rows], "i": [r % 1000 for r in rows]})
            pq.write_table(table, path, row_group_size=7)


def chunks(uri: str, *, num_shards: int = 1, first: int = 0) -> list[Chunks]:
    """What each shard reads."""
    source = open_data(uri).source
    return [
        [
            (number, [(name, values.tolist()) for name, values in sorted(rows.fixed.items())])
            for number, rows in source.chunks(shard=shard, num_shards=num_shards, first=first, malformed=Malformed())
        ]
        for shard in range(num_shards)
    ]


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    ending=st.sampled_from([".csv", ".csv.gz", ".parquet"]),
    num_shards=st.integers(1, 3),
    data=st.data(),
)
def test_a_store_gives_what_local_files_give(
    counts: list[int],
    ending: str,
    num_shards: int,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
    bucket: Bucket,
) -> None:
    here = tmp_path_factory.mktemp("data")
    written(here, counts, ending)
    there, format = bucket.put_folder(here, f"drawn/{here.name}"), ending.split(".")[1]
    names = [f"in/part-{k:03}{ending}" for k in range(len(counts))]
    mixed = ",".join(f"{data.draw(st.sampled_from([here, there]))}/{name}" for name in names)
    wanted = chunks(f"{format}:{here}/in?schema={here}/s.yaml", num_shards=num_shards)
    for place in (f"{there}/in/", f"{there}/**/*{ending}", mixed):
        assert chunks(f"{format}:{place}?schema={there}/s.yaml", num_shards=num_shards) == wanted
    shard = data.draw(st.sampled_from([share for share in wanted if share]))
    first, _ = data.draw(st.sampled_from(shard))
    again = chunks(f"{format}:{there}/in?schema={there}/s.yaml", num_shards=num_shards, first=first)
    assert again == [[(number, rows) for number, rows in share if number >= first] for share in wanted]


def long_libfm(folder: Path) -> Path:
    """A file of several chunks, some lines of which are as long as a chunk of a small file."""
    lines = [f"{r % 2} " + " ".join(f"{(r * k) % 500}:1" for k in range(1, 3 + r % 40)) for r in range(30_000)]
    (folder / "a.libfm").write_text("\n".join(lines))
    return folder / "a.libfm"


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_large_file_is_cut_at_the_same_lines_also_where_a_server_has_no_ranges(
    num_shards: int, tmp_path: Path, bucket: Bucket
) -> None:
    path = long_libfm(tmp_path)
    bucket.put("large/a.libfm", path.read_bytes())
    wanted = all_of(f"libfm:{path}?rows=500", num_shards)
    with web(Plain, directory=tmp_path) as plain, web(Ranged, directory=tmp_path, cuts=[0]) as ranged:
        for place in (
            "s3://logs/large/a.libfm",
            f"{plain}/a.libfm",
            f"{ranged}/a.libfm",
            f"{plain}/",
            f"{plain}/*.libfm",
        ):
            assert all_of(f"libfm:{place}?rows=500", num_shards) == wanted


def all_of(uri: str, num_shards: int) -> list[list[tuple[int, bytes]]]:
    source = open_data(uri).source
    return [
        [
            (number, rows.fixed["label"].tobytes() + rows.lists["sparse"][0].tobytes())
            for number, rows in source.chunks(shard=shard, num_shards=num_shards, first=0, malformed=Malformed())
        ]
        for shard in range(num_shards)
    ]


def test_parquet_is_read_by_ranges_and_wants_a_server_that_has_them(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCHEMA)
    numbers = np.random.default_rng(0).permutation(100_000)
    table = pa.table({"y": numbers % 2, "x": numbers.astype(np.float32), "i": numbers})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=30_000)
    wanted = chunks(f"parquet:{tmp_path}/a.parquet?schema={tmp_path}/s.yaml", num_shards=2)
    with web(Plain, directory=tmp_path) as plain, web(Ranged, directory=tmp_path, cuts=[0]) as ranged:
        assert chunks(f"parquet:{ranged}/a.parquet?schema={plain}/s.yaml", num_shards=2) == wanted
        with pytest.raises(DataError, match=r"^http\S+/a.parquet: its server gives no parts of a file, which this"):
            chunks(f"parquet:{plain}/a.parquet?schema={plain}/s.yaml")


def test_names_are_those_that_a_local_folder_or_pattern_has_and_in_that_order(tmp_path: Path, bucket: Bucket) -> None:
    for name in (
        "b/1",
        "a-b/1",
        "a/1",
        "a/_SUCCESS",
        "a/.hidden",
        "a/2.meta.json",
        "a/.git/1",
        "_made/1",
        "a/b/1",
        "2",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1 1:1\n")
    there = bucket.put_folder(tmp_path, "names")
    bucket.put("names/a/", b"")  # as some tools mark a folder
    for pattern in ("**/1", "a*/1", "a/*", "**", "*/[0-9]", "a/.*/1", "*", "[!a]/*", "b/1", "a/**/*", "", "a"):
        local, remote = (
            [str(path).removeprefix(str(root)) for path in files_at(f"{root}/{pattern}", "x")]
            for root in (tmp_path, there)
        )
        assert remote == local, pattern


def test_memory_is_an_address_too(tmp_path: Path) -> None:
    written(tmp_path, [5, 3], ".csv")
    memory = fsspec.filesystem("memory")
    for path in (tmp_path / "in").iterdir():
        memory.pipe(f"/there/{path.name}", path.read_bytes())
    memory.pipe("/s.yaml", SCHEMA.encode())
    uri = "csv:memory://there/part-*.csv?schema=memory://s.yaml"
    assert chunks(uri) == chunks(f"csv:{tmp_path}/in?schema={tmp_path}/s.yaml")
    assert identity_of(uri).difference(identity_of(f"csv:{tmp_path}/in?schema={tmp_path}/s.yaml")) == ""
    assert chunks(f"csv:file://{tmp_path}/in?schema=file://{tmp_path}/s.yaml") == chunks(uri)


@pytest.mark.parametrize("scheme", ["memory://grown", "s3://logs/grown"])
def test_of_a_file_at_an_address_no_more_is_read_than_there_was(bucket: Bucket, scheme: str) -> None:
    def put(text: str) -> None:
        fsspec.filesystem("memory").pipe("/grown/a.libfm", text.encode())
        bucket.put("grown/a.libfm", text.encode())

    lines = [f"{row % 2} {row}:1\n" for row in range(3000)]
    put("".join(lines[:2000]))
    uri = f"libfm:{scheme}/a.libfm?rows=3000"
    then, size = identity_of(uri), len("".join(lines[:2000]))
    put("".join(lines))
    whole, parts = ((FilePart(0, 0, size),), (FilePart(0, size, len("".join(lines))),))
    extent = Extent((FileSize("a.libfm", size),))
    assert ids(open_data(uri, extent).source) == list(range(2000))
    grown = Extent((FileSize("a.libfm", len("".join(lines))),), (Cut(0, (whole, parts)),))
    assert ids(open_data(uri, grown).begun[0].source) == list(range(3000))
    assert (other_than_grown(uri, then, identity_of(uri)) == "") == scheme.startswith("memory")


def ids(source: Source) -> list[int]:
    """The only id of each row, as three readers have them."""
    found = [
        int(value)
        for shard in range(3)
        for _, rows in source.chunks(shard=shard, num_shards=3, first=0, malformed=Malformed())
        for value in rows.fixed["sparse"].ravel()
    ]
    return sorted(found)


def test_a_store_knows_its_files_by_their_etags(tmp_path: Path, bucket: Bucket) -> None:
    for k in range(3):
        bucket.put(f"known/{k}.libfm", b"1 1:1\n0 2:1\n")
    uri = "libfm:s3://logs/known?rows=9"
    before = identity_of(uri)
    bucket.put("known/1.libfm", b"1 1:1\n0 2:1\n")
    assert before.difference(identity_of(uri)) == ""
    bucket.put("known/1.libfm", b"1 1:1\n0 3:1\n")
    assert before.difference(identity_of(uri)) == "'1.libfm' has 12 bytes as before, but another ETag"
    bucket.put("known/1.libfm", b"1 1:1\n0 33:1\n")
    assert before.difference(identity_of(uri)) == "'1.libfm' has 13 bytes, it had 12"
    bucket.put("known/3.libfm", b"1 1:1\n")
    assert before.difference(identity_of(uri)) == "it has 4 files, it had 3"
    assert other_than_grown(uri, before, identity_of(uri)) == (
        "'1.libfm' has 13 bytes, it had 12: it is known by its ETag, which does not say that it begins as before: what is new comes as new files"
    )
    bucket.put("known/1.libfm", b"1 1:1\n0 2:1\n")
    assert other_than_grown(uri, before, identity_of(uri)) == "", "a new file has come"
    (tmp_path / "0.libfm").write_bytes(b"1 1:1\n0 2:1\n")
    local = identity_of(f"libfm:{tmp_path}/0.libfm?rows=9")
    there = identity_of("libfm:s3://logs/known/0.libfm?rows=9")
    assert local.difference(there) == "'0.libfm' is known by its ETag where it lies now, it was by its bytes"


def test_a_file_that_changes_while_it_is_read_is_refused(bucket: Bucket) -> None:
    bucket.put("changing/a.libfm", b"1 1:1\n" * 400_000)
    source = open_data("libfm:s3://logs/changing/a.libfm?rows=9").source
    found = source.chunks(shard=0, num_shards=1, first=0, malformed=Malformed())
    next(found)
    bucket.put("changing/a.libfm", b"0 1:1\n" * 400_000)
    with pytest.raises(DataError, match=r"^s3://logs/changing/a.libfm: was changed while it was read; start again$"):
        list(found)


def test_data_of_a_store_is_packed_and_the_packed_file_needs_it_no_more(tmp_path: Path, bucket: Bucket) -> None:
    written(tmp_path, [30, 11], ".csv")
    there = bucket.put_folder(tmp_path, "packed")
    pack(f"csv:{there}/in?schema={there}/s.yaml", tmp_path / "a.packed", malformed=Malformed())
    bucket.put("packed/in/part-000.csv", b"y,x,i\n")
    pack(f"csv:{tmp_path}/in?schema={tmp_path}/s.yaml", tmp_path / "b.packed", malformed=Malformed())
    assert chunks(f"packed:{tmp_path}/a.packed") == chunks(f"packed:{tmp_path}/b.packed")
    first, *_ = packed_contents(tmp_path / "a.packed").files
    assert (first.path, first.now) == (f"{there}/in/part-000.csv", "elsewhere")


def test_a_bad_row_is_named_with_its_address(bucket: Bucket) -> None:
    bucket.put("bad/a.libfm", b"1 1:1\n\nx\n")
    seen = Malformed(share=1.0)
    dataset = open_data("libfm:s3://logs/bad/a.libfm?rows=9")
    assert len([*dataset.batches(batch_size=9, shard=0, num_shards=1, epochs=1, start=START, malformed=seen)]) == 1
    assert seen.examples == ["s3://logs/bad/a.libfm:3: the label is not a number"]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("libfm:s3://logs/none", r"s3://logs/none: no such file, or no such bucket \(from 'libfm:s3://logs/none'\)"),
        ("libfm:s3://nowhere/a", r"s3://nowhere/a: no such file, or no such bucket \(from .*"),
        ("libfm:s3://nowhere/*", r"s3://nowhere/\*: no such file, or no such bucket \(from .*"),
        ("libfm:s3://logs/e/empty", "s3://logs/e/empty: is empty"),
        ("libfm:s3://logs/e/a,s3://logs/e/a", r"s3://logs/e/a: is named twice \(in .*"),
        (
            "csv:s3://logs/e/a",
            r"s3://logs/e/a: say which columns are what: \?schema=FILE.yaml \(htrain data describe .* drafts one\)",
        ),
        ("csv:s3://logs/e/a?schema=s3://logs/e/none", "s3://logs/e/none: no such file, or no such bucket"),
        ("csv:s3://logs/e/a?schema=s3://logs/e/a", "s3://logs/e/a: not a schema: Expected `object`, got `str`"),
        ("parquet:s3://logs/e/a?schema=s3://logs/e/s", r"s3://logs/e/a: not a Parquet file: .*"),
        (
            "packed:s3://logs/e/a",
            r"s3://logs/e/a: packed data is read from a local file: copy it to one, or pack its source \(htrain data pack SOURCE --out FILE.packed\)",
        ),
        ("libfm:http://127.0.0.1:1/a", r"http://127.0.0.1:1/a: cannot be read: Cannot connect .*; check the host"),
        (
            "libfm:https://host/a?X-Amz-Signature=secret",
            "'libfm:https://host/a': unknown option 'X-Amz-Signature'; libfm takes rows, values, test, test_from, .*, shuffle_seed, order",
        ),
        ("libfm:foo://a/b", "foo://a/b: fsspec has no driver for foo://"),
        ("libfm:gs://a/b", "gs://a/b: the driver for gs:// is not installed: Please install gcsfs .*"),
        (
            "libfm:https://anna:word@host/a",
            "https://...@host/a: has a password in it, which runs write down: keep it where the driver looks for it, such as ~/.netrc",
        ),
    ],
)
def test_an_address_that_gives_no_data_is_one_line(uri: str, message: str, bucket: Bucket) -> None:
    for name, content in (("a", b"1 1:1\n"), ("empty", b""), ("s", SCHEMA.encode())):
        bucket.put(f"e/{name}", content)
    with pytest.raises(DataError, match=f"^{message}$"):
        open_data(uri)


def test_a_driver_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme, module in (("s3", "s3fs"), ("http", "fsspec.implementations.http")):
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(DataError) as raised:
            open_data(f"libfm:{scheme}://a/b")
        assert (
            str(raised.value)
            == f"{scheme}://a/b: the driver for {scheme}:// is not installed: pip install 'htrain[{scheme}]'"
        )


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_connection_that_breaks_in_the_middle_is_taken_up_again(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_file, "_PAUSES_SECONDS", (0.0, 0.0, 0.0))
    path, cuts = long_libfm(tmp_path), [0]
    with web(Ranged, directory=tmp_path, cuts=cuts) as address, s3_at(address):
        (tmp_path / "logs").mkdir()
        shutil.copy(path, tmp_path / "logs")
        source = open_data(f"libfm:{'s3:/' if scheme == 's3' else address}/logs/a.libfm?rows=500").source
        cuts[0] = 3
        count = sum(r.count for _, r in source.chunks(shard=0, num_shards=1, first=0, malformed=Malformed()))
        assert (count, cuts) == (30_000, [0])
        if scheme == "http":
            cuts[0] = 100
            with pytest.raises(DataError, match=r"^http\S+/a.libfm: cannot be read: .*"):
                list(source.chunks(shard=0, num_shards=1, first=0, malformed=Malformed()))


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_server_that_says_nothing_is_not_waited_for(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "_SILENT_SECONDS_WEB", 0.1)
    monkeypatch.setattr(drivers, "_SILENT_SECONDS_S3", 0.1)
    begin = time.monotonic()
    said = pytest.raises(DataError, match=r"^\S+/logs/a: cannot be read: .*[Tt]imeout")
    with silence() as address, s3_at(address), said:
        open_data(f"libfm:{'s3:/' if scheme == 's3' else address}/logs/a")
    forget(HTTPFileSystem)
    assert time.monotonic() - begin < 10


def test_what_a_server_refuses_is_said(tmp_path: Path) -> None:
    class Refusing(Plain):
        def send_head(self) -> None:
            self.send_error(int(self.path[1:]))

    with web(Refusing) as address, s3_at(address):
        for status, reason in (
            ("403", "access is denied"),
            ("500", "cannot be read: the server answers 500 Internal Server Error"),
        ):
            with pytest.raises(DataError) as raised:
                open_data(f"libfm:{address}/{status}")
            assert str(raised.value) == f"{address}/{status}: {reason}"


def test_a_web_servers_password_is_that_of_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Guarded(Plain):
        def send_head(self) -> Any:
            if "Authorization" in self.headers:
                return super().send_head()
            return self.send_error(401)

    (tmp_path / "a.libfm").write_text("1 1:1\n")
    netrc = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(netrc))
    with web(Guarded, directory=tmp_path) as address:
        with pytest.raises(DataError, match=r"^http\S+/a.libfm: access is denied$"):
            open_data(f"libfm:{address}/a.libfm")
        netrc.write_text("machine 127.0.0.1 login anna password word\n")
        assert open_data(f"libfm:{address}/a.libfm").num_examples() == 1


def test_missing_credentials_are_asked_for_where_they_may_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with web(Plain, directory=tmp_path) as address, s3_at(address):
        for name in KEYS:
            monkeypatch.delenv(name)
        with pytest.raises(DataError) as raised:
            open_data("libfm:s3://logs/a")
    assert str(raised.value) == (
        "s3://logs/a: cannot be read: there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or ~/.aws; "
        "for a public bucket FSSPEC_S3_ANON=true"
    )


def test_local_data_waits_for_no_driver(tmp_path: Path) -> None:
    (tmp_path / "a.libfm").write_text("1 1:1\n")
    code = f"import sys, htrain.data; htrain.data.open_data('libfm:{tmp_path}/a.libfm'); print({{'fsspec', 's3fs', 'torch', 'pandas'}} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "set()\n"


def test_an_address_is_a_value() -> None:
    address = Address("s3://logs/a/day-1.tsv.gz")
    assert (str(address), address.name, address.suffix) == ("s3://logs/a/day-1.tsv.gz", "day-1.tsv.gz", ".gz")
