"""A run over many small files stops in the middle of one and goes on there: every example once, and the parameters of a run that was never stopped."""

import random
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from whole_runs import WIDE_DEEP, parameters, start_held, train, wait_until_held

import htrain
from htrain.data import START, Malformed, Position, open_data
from htrain.executor.record.kept import find_checkpoints
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

FILES, BATCH, STEPS = 200, 16, 70
SCHEMA = "label: y\ninputs:\n  sparse: {kind: ids, columns: [number, a, b], rows: [4096, 20, 20]}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of 200 files, of 1 to 19 rows each, in CSV and in Parquet; `number` is another in each row. One holds a header alone."""
    place = tmp_path_factory.mktemp("many")
    (place / "s.yaml").write_text(SCHEMA)
    draw = random.Random(0)
    numbers = iter(range(10_000))
    for k in range(FILES):
        rows = [
            (draw.randrange(2), next(numbers), draw.randrange(20), draw.randrange(20))
            for _ in range(0 if k == 77 else draw.randrange(1, 20))
        ]
        for form in ("csv", "parquet"):
            (place / form).mkdir(exist_ok=True)
        text = "".join(",".join(map(str, row)) + "\n" for row in rows)
        (place / "csv" / f"{k:03}.csv").write_text(f"y,number,a,b\n{text}")
        columns = {
            name: pa.array([row[i] for row in rows], pa.int64()) for i, name in enumerate(("y", "number", "a", "b"))
        }
        pq.write_table(pa.table(columns), place / "parquet" / f"{k:03}.parquet")
    return place


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_run_over_many_files_that_stops_in_the_middle_goes_on_bit_for_bit(
    form: str, folder: Path, tmp_path: Path
) -> None:
    data = f"{form}:{folder / form}?schema={folder}/s.yaml"
    plan = tmp_path / "plan"
    options = with_flags(batch_size=BATCH, dense_optimizer="adam")
    htrain.compile(WIDE_DEEP, data=data, cluster=this_machine(), options=options, self_check=False).save(plan)
    whole = htrain.run(plan, data=data, out=tmp_path / "whole", deterministic=True, hosting="threads")
    assert whole.totals.examples == sum(len(found) for found, _ in batches(data, 0, 1, START))
    process = start_held(str(STEPS), plan, data, "--deterministic", out=tmp_path / "cut")
    wait_until_held(tmp_path / "cut", process, str(STEPS))
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    (_, found), *_ = find_checkpoints(tmp_path / "cut").complete
    assert found.examples == BATCH * STEPS < whole.totals.examples
    assert all(each.position.row > 0 for each in found.trainers.values())
    train(plan, data, "--resume", str(tmp_path / "cut"), "--deterministic")
    resumed, wanted = parameters(tmp_path / "cut"), parameters(tmp_path / "whole")
    assert wanted.keys() == resumed.keys()
    assert all(torch.equal(wanted[name], resumed[name]) for name in wanted)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_readers_that_stop_anywhere_in_many_files_bring_each_example_once(form: str, folder: Path) -> None:
    data = f"{form}:{folder / form}?schema={folder}/s.yaml"
    draw = random.Random(1)
    seen: list[int] = []
    for shard in range(3):
        some = list(islice(batches(data, shard, 3, START), draw.randrange(30, 80)))
        position = some[-1][1]
        assert position.row > 0
        some += batches(data, shard, 3, position)
        seen += [number for found, _ in some for number in found]
    assert sorted(seen) == list(range(len(seen)))
    assert len(seen) > 1500


def batches(data: str, shard: int, shards: int, start: Position) -> Iterator[tuple[list[int], Position]]:
    """The numbers of the rows of each batch, and where its reader stands then."""
    found = open_data(data).batches(
        batch_size=5, shard=shard, num_shards=shards, epochs=1, start=start, malformed=Malformed()
    )
    return ((batch.columns["sparse"][:, 0].tolist(), batch.position) for batch in found)
