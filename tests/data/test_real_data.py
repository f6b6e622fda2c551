"""The published files beside the repository."""

import csv
import gzip
from itertools import chain
from pathlib import Path

import pytest

from htrain.data import open_data

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is absent")


def test_frappe_reads_as_plain_python_reads_it(read):
    uri = f"libfm:{SHARED}/frappe.libfm.gz"
    schema = open_data(uri).schema
    assert (schema.input("sparse").width, set(schema.input("sparse").tables), schema.names) == (
        10,
        {"ids"},
        ("sparse",),
    )
    with gzip.open(SHARED / "frappe.libfm.gz", "rt") as file:
        lines = [line.split() for line in file]
    wanted = [((float(max(int(label), 0)),), tuple(int(p.split(":")[0]) for p in pairs)) for label, *pairs in lines]
    assert read(uri, batch_size=1000) == wanted
    shards = [read(uri, shard=s, num_shards=3, batch_size=1000) for s in range(3)]
    assert sorted(chain(*shards)) == sorted(wanted)


@pytest.mark.parametrize(
    ("name", "label", "dense", "ids"),
    [
        ("criteo_sample.csv", "label", ["I1", "I2", "I13"], ["C1", "C26"]),
        ("avazu_sample.csv", "click", ["C15"], ["device_ip", "C21"]),
    ],
)
def test_published_csv_samples_read_as_plain_python_reads_them(tmp_path, read, name, label, dense, ids):
    (tmp_path / "s.yaml").write_text(
        f"label: {label}\ninputs:\n  d: {{kind: dense, columns: [{', '.join(dense)}]}}\n"
        f"  s: {{kind: ids, columns: [{', '.join(ids)}], rows: 1000}}\n"
    )
    with (SHARED / name).open() as file:
        records = list(csv.DictReader(file))
    found = read(f"csv:{SHARED / name}?schema={tmp_path}/s.yaml")
    assert [(numbers, y) for numbers, y, _ in found] == [
        (pytest.approx(tuple(float(r[c] or 0) for c in dense)), (float(r[label]),)) for r in records
    ]
    assert all(0 <= i < 1000 for _, _, row in found for i in row)
    # equal text gives equal ids, and a missing one row 0
    pairs = {(r[c], i) for r, (_, _, row) in zip(records, found, strict=True) for c, i in zip(ids, row, strict=True)}
    assert len(pairs) == len({word for word, _ in pairs})
    assert all(i == 0 for word, i in pairs if not word)
