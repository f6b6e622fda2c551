"""libFM and libSVM against a parser of a few lines of Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.data import Malformed, open_data
from htrain.data.formats.libsvm import parse_libsvm
from htrain.data.schema import Input, Schema
from htrain.errors import DataError

BAG = Schema((Input("sparse", "bag", 2, ("sparse",), (50,), ("ids",)),))


def reference(line: str):
    """label, ids; None for a malformed line."""
    try:
        label, *pairs = line.split()
        ids = [int(pair.split(":")[0]) for pair in pairs]
        values = [float(pair.split(":")[1]) for pair in pairs]
        good = all(0 <= i < 50 for i in ids) and all(p.count(":") == 1 for p in pairs) and np.isfinite(values).all()
        return (float(label), ids) if good else None
    except (ValueError, IndexError):
        return None


pair = st.tuples(st.integers(0, 49), st.sampled_from(["1", "0.25", "-3", "1e-2"])).map(lambda t: f"{t[0]}:{t[1]}")
odd = st.sampled_from(["x:1", "3", "60:1", "-1:1", "2:", ":", "1:2:3", "1:1x", "4:1-2"])
label = st.sampled_from(["1", "-1", "0", "0.5", "+1", "", "no", "3:1"])
line = st.tuples(label, st.lists(st.one_of(pair, pair, pair, odd), max_size=4)).map(lambda t: " ".join([t[0], *t[1]]))


@settings(max_examples=100, deadline=None)
@given(lines=st.lists(line, max_size=10), ending=st.sampled_from(["\n", "\r\n", " \n"]))
def test_parser_agrees_with_plain_python_on_good_and_malformed_lines(lines, ending):
    rows, faults = parse_libsvm(np.frombuffer((ending.join(lines)).encode(), np.uint8), BAG)
    wanted = [(i, reference(text)) for i, text in enumerate(lines) if text.strip()]
    read = [values for _, values in wanted if values]
    ids, starts = rows.lists["sparse"]
    assert rows.fixed["label"].tolist() == [label for label, _ in read]
    assert [part.tolist() for part in np.split(ids, starts[1:-1])][: rows.count] == [i for _, i in read]
    assert [place for place, _ in faults] == [i for i, values in wanted if values is None]


def test_rows_of_one_width_are_fields_of_one_shared_table(tmp_path, read):
    (tmp_path / "a.libfm").write_text("1 5:1 9:1\n-1 0:1 2:1\n")
    schema = open_data(f"libfm:{tmp_path}/a.libfm").schema
    assert schema.inputs == (Input("sparse", "ids", 2, ("F1", "F2"), (10, 10), ("ids", "ids")),)
    assert read(f"libfm:{tmp_path}/a.libfm") == [((1.0,), (5, 9)), ((0.0,), (0, 2))]


def test_values_other_than_one_become_a_dense_input(tmp_path, read):
    (tmp_path / "a.libfm").write_text("1 5:0.5 9:1\n0 0:1 2:-2e1\n")
    assert open_data(f"libfm:{tmp_path}/a.libfm").schema.names == ("values", "sparse")
    assert read(f"libfm:{tmp_path}/a.libfm") == [((1.0,), (5, 9), (0.5, 1.0)), ((0.0,), (0, 2), (1.0, -20.0))]


def test_rows_of_different_widths_are_a_bag(tmp_path, read):
    (tmp_path / "a.svm").write_text("1 5:1 9:1\n0\n0 2:1\n")
    assert open_data(f"libsvm:{tmp_path}/a.svm").schema.inputs[0].kind == "bag"
    assert read(f"libsvm:{tmp_path}/a.svm") == [((1.0,), (5, 9)), ((0.0,), ()), ((0.0,), (2,))]


def test_values_that_a_bag_has_no_room_for_are_refused_or_left_out_on_request(tmp_path, read):
    (tmp_path / "a.svm").write_text("1 5:1 9:0.5\n0\n0 2:1\n")
    with pytest.raises(DataError, match=r"a\.svm: has values other than 1 in rows of different .* by \?values=none"):
        open_data(f"libsvm:{tmp_path}/a.svm")
    with pytest.raises(DataError, match="option values=all: want none"):
        open_data(f"libsvm:{tmp_path}/a.svm?values=all")
    assert read(f"libsvm:{tmp_path}/a.svm?values=none") == [((1.0,), (5, 9)), ((0.0,), ()), ((0.0,), (2,))]
    (tmp_path / "b.svm").write_text("1 5:1 9:0.5\n0 1:1 2:1\n")
    assert open_data(f"libsvm:{tmp_path}/b.svm?values=none").schema.names == ("sparse",)


@pytest.mark.parametrize(("last", "rows"), [("0 2:1 7:1", 3), ("0 2:1", 2), ("0", 2), ("0 2", 2)])
def test_a_last_line_without_an_end_makes_no_bag_of_fields(tmp_path, read, last, rows):
    """A log may be looked at while it is written to."""
    (tmp_path / "a.svm").write_text(f"1 5:1 9:1\n0 3:1 4:1\n{last}")
    assert open_data(f"libsvm:{tmp_path}/a.svm").schema.inputs[0].kind == "ids"
    malformed = Malformed()
    found = read(f"libsvm:{tmp_path}/a.svm", malformed=malformed)
    assert (len(found), malformed.count) == (rows, 3 - rows)


def test_rows_option_makes_room_for_ids_of_another_file_and_refuses_larger_ones(tmp_path, read):
    (tmp_path / "a.libfm").write_text("1 5:1\n\n0 90:1\n0 1:1\n")
    assert open_data(f"libfm:{tmp_path}/a.libfm?rows=200").schema.input("sparse").rows == (200,)
    malformed = Malformed()
    assert read(f"libfm:{tmp_path}/a.libfm?rows=50", malformed=malformed) == [((1.0,), (5,)), ((0.0,), (1,))]
    assert malformed.examples == [f"{tmp_path}/a.libfm:3: id 90 is outside the table's rows"]


def test_a_row_of_another_width_is_named_by_its_line_past_blank_and_malformed_ones():
    data = np.frombuffer(b"1 2:1 3:1\n\nno\n1 2:1\n1 4:1 5:1\n", np.uint8)
    schema = Schema((Input("sparse", "ids", 2, ("F1", "F2"), (50, 50), ("ids", "ids")),))
    rows, faults = parse_libsvm(data, schema)
    assert rows.fixed["sparse"].tolist() == [[2, 3], [4, 5]]
    assert faults == [(2, "the label is not a number"), (3, "has 1 fields, want 2")]


def test_a_file_without_a_good_row_names_its_first_line(tmp_path):
    (tmp_path / "a.libfm").write_text("\nlabel x:1\n")
    with pytest.raises(DataError, match=r"a\.libfm:2: the label is not a number \(no row of the file can be read\)$"):
        open_data(f"libfm:{tmp_path}/a.libfm")
