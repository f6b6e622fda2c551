"""A run on data at an address is the run on its local copy."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stores import KEYS, Bucket, s3_store
from whole_runs import WIDE_DEEP, libfm, parameters

import htrain
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options

FILES, ROWS = 50, 12


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3_store() as store:
        yield store


def many_files(folder: Path) -> str:
    """Small files with the rows of one; the place that names them."""
    _, _, options = libfm(folder / "a.libfm", FILES * ROWS).partition("?")
    lines = (folder / "a.libfm").read_text().splitlines(keepends=True)
    (folder / "in").mkdir()
    for k in range(FILES):
        (folder / "in" / f"{k:03}.libfm").write_text("".join(lines[k * ROWS : (k + 1) * ROWS]))
    return f"libfm:{folder}/in/*.libfm?{options}"


def test_one_trainer_comes_to_the_same_loss_and_parameters_bit_for_bit_and_goes_on_where_it_was(
    tmp_path: Path, bucket: Bucket
) -> None:
    here = many_files(tmp_path)
    there = here.replace(f"{tmp_path}/in", bucket.put_folder(tmp_path / "in", "many"))
    cluster = this_machine(group_ps=0, sparse_ps=0, dense_ps=0)
    plan = htrain.compile(WIDE_DEEP, data=there, cluster=cluster, options=Options(batch_size=64))
    plan.save(tmp_path / "plan")
    found: dict[str, Any] = {}
    settings: dict[str, Any] = {"hosting": "threads", "deterministic": True}
    for name, data in (("here", here), ("there", there)):
        htrain.run(tmp_path / "plan", data=data, out=tmp_path / name, **settings)
        result = htrain.run(tmp_path / "plan", data=data, resume=tmp_path / name, epochs=2, **settings)
        found[name] = (result.totals.examples, result.totals.loss)
    assert found["there"] == found["here"]
    mine, its = parameters(tmp_path / "here"), parameters(tmp_path / "there")
    assert mine.keys() == its.keys()
    assert all(mine[name].equal(its[name]) for name in mine)
    bucket.put("many/017.libfm", b"1 1:1 2:1 3:1 4:1\n")
    with pytest.raises(htrain.Error, match=r"was made on other data \('017.libfm' has 18 bytes, it had \d+\)"):
        htrain.run(tmp_path / "plan", data=there, resume=tmp_path / "there", epochs=3, **settings)


def test_processes_find_credentials_for_themselves_and_write_none_of_them_down(tmp_path: Path, bucket: Bucket) -> None:
    uri = many_files(tmp_path)
    uri = uri.replace(f"{tmp_path}/in", bucket.put_folder(tmp_path / "in", "processes"))
    shutil.rmtree(tmp_path / "in")
    cluster = this_machine(groups=2, group_ps=0, sparse_ps=1, dense_ps=1)
    htrain.compile(WIDE_DEEP, data=uri, cluster=cluster, options=Options(batch_size=16)).save(tmp_path / "plan")
    words = ["run", "plan", "--data", uri, "--out", "run"]
    run = subprocess.run(
        [sys.executable, "-m", "htrain", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert f"{FILES * ROWS:,} examples" in run.stdout + run.stderr
    written = [
        path.read_bytes() for folder in ("plan", "run") for path in (tmp_path / folder).rglob("*") if path.is_file()
    ]
    for key in (KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"], bucket.client.meta.endpoint_url):
        assert not any(key.encode() in content for content in [*written, run.stdout.encode(), run.stderr.encode()])
