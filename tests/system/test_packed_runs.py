"""A run on packed data is the run on the data that was packed."""

from pathlib import Path
from typing import Any

import pytest
from whole_runs import WIDE_DEEP, libfm

import htrain
from htrain.data import Malformed
from htrain.data.pack import pack
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options


def test_one_trainer_comes_to_the_same_loss_bit_for_bit_and_goes_on_with_the_same_source_alone(tmp_path: Path) -> None:
    data, packed = libfm(tmp_path / "a.libfm", 600), f"packed:{tmp_path}/a.packed"
    pack(data, tmp_path / "a.packed", malformed=Malformed())
    cluster = this_machine(group_ps=0, sparse_ps=0, dense_ps=0)
    plan = htrain.compile(WIDE_DEEP, data=packed, cluster=cluster, options=Options(batch_size=64))
    plan.save(tmp_path / "plan")
    found = {}
    settings: dict[str, Any] = {"hosting": "threads", "deterministic": True}
    for name, source in (("plain", data), ("packed", packed)):
        htrain.run(tmp_path / "plan", data=source, out=tmp_path / name, **settings)
        result = htrain.run(tmp_path / "plan", data=source, resume=tmp_path / name, epochs=2, **settings)
        found[name] = (result.totals.examples, result.totals.loss)
    assert found["plain"][0] == 1200
    assert found["plain"] == found["packed"]
    with pytest.raises(
        htrain.Error, match=r"was made on other data \(it is packed now, it was libfm\)"
    ):  # with more trainers, chunks may be cut otherwise
        htrain.run(tmp_path / "plan", data=packed, resume=tmp_path / "plain", epochs=3, **settings)
