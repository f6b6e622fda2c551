"""Data URIs, and what is said of wrong ones."""

import pytest

from htrain.data import Malformed, open_data
from htrain.errors import DataError


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("train.tsv", "want FORMAT:PATH, with a format of criteo, libfm, libsvm, csv, parquet, synthetic"),
        ("tfrecord:a", "want FORMAT:PATH, with a format of criteo, "),
        ("criteo:", r"no such file \(from 'criteo:'\)"),
        ("criteo:absent.tsv", r"^absent\.tsv: no such file"),
        ("criteo:" + "x" * 5000, "cannot be read: File name too long"),
        (
            "criteo:{file}?columns=3",
            "unknown option 'columns'; criteo takes rows, test, test_from, test_until, part, shuffle, shuffle_seed, order$",
        ),
        ("criteo:{file}?rows=0", "option rows=0: want a whole number above 0"),
        ("criteo:{file}?rows=²", "option rows=²: want a whole number above 0"),
        ("criteo:{file}?rows=" + "9" * 5000, "want a whole number above 0"),
        ("csv:{file}", r"say which columns are what: \?schema=FILE\.yaml"),
        ("csv:{file}?schema=absent.yaml", r"^absent\.yaml: No such file or directory \(schema file\)"),
        ("criteo:{empty}", r"empty\.tsv: is empty$"),
        ("parquet:{file}?schema={schema}", r"a\.tsv: not a Parquet file: "),
        (
            "packed:{file}",
            r"a\.tsv: is no packed file, or a damaged one \(.*\); pack the data again: htrain data pack SOURCE --out ",
        ),
        (
            "packed:{file}?rows=5",
            "unknown option 'rows'; packed takes test, test_from, test_until, part, shuffle, shuffle_seed, order$",
        ),
        ("libfm:{fake}", r"fake\.gz: cannot be read: Not a gzipped file"),
        ("synthetic:?rows=many", "option rows=many: want a number"),
        ("synthetic:?rows=0", "synthetic: rows=0: want a whole number from 1 to "),
        ("synthetic:?zipf=nan", "synthetic: zipf=nan: want a number from 0 to 10"),
        ("synthetic:?locality=1.5", "synthetic: locality=1.5: want a number from 0 to 1"),
        ("synthetic:?seed=99999999999999999999", "synthetic: seed=9+: want a whole number from 0 to "),
        ("synthetic:?first_block=-1", "synthetic: first_block=-1: want a whole number from 0 to "),
    ],
)
def test_a_wrong_uri_is_refused_in_one_line_that_says_why(tmp_path, uri, message):
    (tmp_path / "a.tsv").write_text("1\n")
    (tmp_path / "empty.tsv").touch()
    (tmp_path / "fake.gz").write_text("1 3:1 7:1\n" * 4)
    (tmp_path / "s.yaml").write_text("label: y\ninputs: {d: {kind: dense, columns: [x]}}")
    names = {"file": "a.tsv", "empty": "empty.tsv", "fake": "fake.gz", "schema": "s.yaml"}
    for key, name in names.items():
        uri = uri.replace("{" + key + "}", f"{tmp_path}/{name}")
    with pytest.raises(DataError, match=message) as caught:
        open_data(uri)
    assert "\n" not in str(caught.value)


def test_the_number_of_examples_of_a_small_file_is_exact_without_its_header(tmp_path):
    (tmp_path / "s.yaml").write_text("label: y\ninputs: {d: {kind: dense, columns: [x]}}")
    (tmp_path / "a.csv").write_text("y,x\n" + "1,2\n" * 41 + "1,2")
    assert open_data(f"csv:{tmp_path}/a.csv?schema={tmp_path}/s.yaml").num_examples() == 42


def test_a_file_that_may_not_be_read_any_more_is_one_error(tmp_path, read):
    path = tmp_path / "a.tsv"
    path.write_text("1" + "\t" * 39)
    dataset = open_data(f"criteo:{path}")
    path.unlink()
    with pytest.raises(DataError, match=r"a\.tsv: cannot be read: No such file or directory$"):
        list(dataset.source.chunks(shard=0, num_shards=1, first=0, malformed=Malformed()))
