"""Partition and pack from Python: the same files as by commands, trained by a plan; arguments that make no sense are named."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from gmp_data import BATCH, FieldNet, drawn, examples_of, write_examples

import htrain
from htrain.cli.app import commands
from htrain.data.pack_by_partition import PackedParts
from htrain.data.partition_file import read_partition
from htrain.errors import DataError, UsageError
from htrain.spec.cluster import this_machine

WORKERS, COUNT = 2, 2 * BATCH * 10


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_examples(tmp_path_factory.mktemp("prepared"), "a", COUNT)


def test_what_is_partitioned_and_packed_from_python_is_what_commands_make_and_trains(
    source: str, tmp_path: Path
) -> None:
    steps: list[str] = []
    made = htrain.partition(
        source, out=tmp_path / "a.partition", num_workers=WORKERS, batch_size=BATCH, replicas=0.1, on_step=steps.append
    )
    assert steps
    words = ["partition", source, "--workers", "2", "--batch", str(BATCH), "--replicas", "0.1"]
    assert CliRunner().invoke(commands, [*words, "--out", str(tmp_path / "b.partition")]).exit_code == 0
    assert read_partition(tmp_path / "b.partition").facts == made.facts
    packed = htrain.pack(source, out=tmp_path / "a.packed", partition=tmp_path / "a.partition")
    assert isinstance(packed, PackedParts)
    assert packed.totals.examples == COUNT
    options = htrain.Options(
        batch_size=BATCH, dense_sync=htrain.AllReduce(), sparse_sync=htrain.Gmp(partition=str(tmp_path / "a.partition"))
    )
    inputs = {name: value for name, value in examples_of(source).items() if name in ("sparse", "seen", "seen_length")}
    cluster = this_machine(groups=WORKERS, trainers=1, group_ps=0)
    plan = htrain.compile(drawn(FieldNet), example_inputs=inputs, cluster=cluster, options=options)
    plan.save(tmp_path / "plan")
    data = f"packed:{tmp_path / 'a.packed'}"
    result = htrain.run(tmp_path / "plan", data=data, out=tmp_path / "run", hosting="threads")
    assert result.totals.examples == COUNT


def test_data_is_packed_without_a_partition_too(source: str, tmp_path: Path) -> None:
    totals = htrain.pack(source, out=tmp_path / "a.packed")
    assert not isinstance(totals, PackedParts)
    assert totals.examples == COUNT


def test_a_partition_begins_with_the_owners_of_another_and_knows_hosts(source: str, tmp_path: Path) -> None:
    first = htrain.partition(source, out=tmp_path / "a", num_workers=4, batch_size=BATCH, hosts=(2, 2))
    assert (first.facts.hosts, first.facts.link_cost) == ((2, 2), 10.0)
    again = htrain.partition(source, out=tmp_path / "b", num_workers=4, batch_size=BATCH, begin_with=tmp_path / "a")
    assert again.facts.known_rows == first.facts.num_seen
    alone = htrain.partition(source, out=tmp_path / "c", num_workers=4, batch_size=BATCH, at_random=True)
    assert alone.facts.begun == "chance"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_workers": 1}, "partition: num_workers: Expected `int` >= 2, got 1"),
        ({"batch_size": 0}, "partition: batch_size: Expected `int` >= 1, got 0"),
        ({"replicas": 1.5}, "partition: replicas: Expected `float` <= 1.0, got 1.5"),
        ({"hosts": (2, 0)}, r"partition: hosts: Expected `int` >= 1 - at `\$\[1\]`, got \(2, 0\)"),
        ({"hosts": "2"}, "partition: hosts: Expected `array`, got `str`, got '2'"),
        ({"hosts": (3, 2)}, r"partition: hosts: \[3, 2\] are not the 2 workers: say how many stand on each"),
        ({"at_random": True, "begin_with": "a"}, "begin_with= has no effect with at_random=True"),
        ({"out": 3}, "partition: out: is a int, want a str or Path"),
    ],
)
def test_arguments_that_make_no_sense_are_named(
    source: str, tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        htrain.partition(source, **{"out": tmp_path / "a", "num_workers": 2, "batch_size": BATCH, **arguments})
    assert not list(tmp_path.iterdir())


def test_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.libfm"):
        htrain.partition(f"libfm:{tmp_path}/none.libfm", out=tmp_path / "a", num_workers=2, batch_size=4)
    with pytest.raises(DataError, match=r"none\.libfm"):
        htrain.pack(f"libfm:{tmp_path}/none.libfm", out=tmp_path / "b")
