"""Criteo TSV against a parser of a few lines of Python."""

import gzip
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.data import Malformed, open_data
from htrain.data.formats.criteo import parse_criteo
from htrain.errors import DataError

ROWS = 1000


def reference(line: str):
    """label, dense, sparse; None for a malformed line."""
    parts = line.replace("\r", "").split("\t")
    if len(parts) != 40 or not re.fullmatch("[0-9]{1,9}", parts[0]):
        return None
    if not all(re.fullmatch(r"(-?[0-9]{1,18})?", p) for p in parts[1:14]) or not all(
        re.fullmatch("[0-9a-fA-F]{0,16}", p) for p in parts[14:]
    ):
        return None
    dense = [math.log1p(max(int(p), 0)) if p else 0.0 for p in parts[1:14]]
    sparse = [int(p, 16) % ROWS if p else 0 for p in parts[14:]]
    return float(np.float32(parts[0])), dense, sparse


def found(data: np.ndarray):
    """Rows as `reference` has them, and the lines of faults."""
    rows, faults = parse_criteo(data, ROWS)
    columns = [rows.fixed[name].tolist() for name in ("label", "dense", "sparse")]
    return list(zip(*columns, strict=True)), [place for place, _ in faults]


number = st.one_of(
    st.just(""),
    st.integers(-3, 10**6).map(str),
    st.integers(0, 19).flatmap(lambda n: st.text("0123456789", max_size=n)),
)
category = st.one_of(
    st.just(""), st.integers(0, 2**32 - 1).map("{:08x}".format), st.text("0123456789abcdefABCDEF", max_size=17)
)
good = st.tuples(
    st.sampled_from(["0", "1", "0", "1", "2", "00", "123456789", "1234567890"]),
    st.lists(number, min_size=13, max_size=13),
    st.lists(category, min_size=26, max_size=26),
).map(lambda t: "\t".join([t[0], *t[1], *t[2]]))
# One byte put in, or put in place of another: bytes that stand beside digits and letters in ASCII among them, and those of two fields.
byte = st.one_of(st.sampled_from("\t\r-+./:@G`g xX\x10\xb0"), st.characters(max_codepoint=255, exclude_characters="\n"))
broken = st.tuples(good, st.integers(0), byte, st.booleans()).map(
    lambda t: (lambda i: t[0][:i] + t[2] + t[0][i + t[3] :])(t[1] % len(t[0]))
)
line = st.one_of(good, good, broken, st.just(""), st.text("01\tf-\r", max_size=50), st.just("\t" * 39))


@settings(max_examples=200, deadline=None)
@given(lines=st.lists(line, max_size=12), ending=st.sampled_from(["\n", "\r\n"]), last=st.booleans())
def test_parser_agrees_with_plain_python_on_good_and_malformed_lines(lines, ending, last):
    data = ending.join(lines) + (ending if last else "")
    wanted = [(i, reference(text)) for i, text in enumerate(data.split("\n")) if text not in ("", "\r")]
    rows, faults = found(np.frombuffer(data.encode("latin-1"), np.uint8))
    assert rows == [
        (label, pytest.approx(dense, rel=1e-6), sparse) for _, (label, dense, sparse) in filter(lambda w: w[1], wanted)
    ]
    assert faults == [i for i, values in wanted if values is None]


COUNTS = [
    "",
    "-",
    "--1",
    "-0",
    "-1",
    "0-1",
    "1-",
    "9" * 7,
    "9" * 8,
    "9" * 9,
    "-" + "9" * 7,
    "-" + "9" * 8,
    "9" * 18,
    "9" * 19,
    "a",
    "+1",
    "1\r",
    "\r",
]
CATEGORIES = [
    "",
    "0",
    "f" * 8,
    "F" * 8,
    "f" * 9,
    "f" * 16,
    "f" * 17,
    "g",
    "-1",
    "0x1",
    "1234567\r",
    "12345678\r",
    "1234\r5678",
    "\r",
]


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("place", [1, 7, 13, 14, 30, 39])
def test_a_field_at_the_limits_of_the_fast_way_is_read_as_plain_python_reads_it(place, extra):
    """Also in a line with a column too many or too few, and as the last line."""
    for field in COUNTS if place < 14 else CATEGORIES:
        parts = ["1", *["12"] * 13, *["0a0b0c0d"] * 26]
        parts[place] = field
        text = "\t".join(parts[:extra] if extra < 0 else parts + ["77"] * extra)
        data = np.frombuffer("\n".join([text, text, text]).encode(), np.uint8)
        wanted = reference(text)
        rows, faults = found(data)
        assert faults == ([0, 1, 2] if wanted is None else []), field
        for row in rows:
            assert row == (wanted[0], pytest.approx(wanted[1]), wanted[2]), field


def test_nothing_behind_the_end_of_the_data_is_read():
    text = ("\t".join(["1", *["1"] * 13, *["2"] * 26]) + "\n") * 3
    memory = np.frombuffer(text.encode(), np.uint8)
    for end in range(memory.size + 1):
        wanted = [reference(part) for part in text[:end].split("\n") if part]
        rows, faults = found(memory[:end])
        assert (len(rows), len(faults)) == (len(wanted) - wanted.count(None), wanted.count(None))


@pytest.mark.parametrize("rows", [1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**61])
def test_a_category_is_its_number_modulo_tables_of_any_size(rows):
    """Also in a line by itself, which ends where no whole word can be read."""
    ids = [0, 1, 2**31, 2**32 - 2, 2**32 - 1, 2**32, 2**61 + 5, 2**64 - 1] * 3 + [7, 2**32 - 1]
    text = "\t".join(["1", *[""] * 13, *(f"{i:x}" for i in ids)]).encode()
    usual = "\t".join(["1", *[""] * 13, *(f"{i % 2**32:08x}" for i in ids)]).encode()
    data = b"\n".join([text, usual, usual, text])
    found, faults = parse_criteo(np.frombuffer(data, np.uint8), rows)
    wanted = [i % rows for i in ids], [i % 2**32 % rows for i in ids]
    assert not faults
    assert found.fixed["sparse"].tolist() == [wanted[0], wanted[1], wanted[1], wanted[0]]


@pytest.mark.parametrize("suffix", ["tsv", "tsv.gz"])
def test_malformed_rows_are_named_by_their_true_line_in_every_chunk(tmp_path, read, suffix):
    lines = ["0" + "\t" * 39] * 5000
    bad = {
        0: "no" + "\t" * 39,
        2499: "1\tx" + "\t" * 38,
        2500: "",
        4998: "1" + "\t" * 38,
        4999: "1" + "\t" * 38 + "\tzz",
    }
    for place, text in bad.items():
        lines[place] = text
    content = "\n".join(lines).encode()
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    malformed = Malformed()
    assert len(read(f"criteo:{path}", malformed=malformed)) == 4995
    assert malformed.count == 4
    assert malformed.examples == [
        f"{path}:1: the label is not a whole number",
        f"{path}:2500: column 2 is not a whole number",
        f"{path}:4999: has 39 columns, want 40",
        f"{path}:5000: column 40 is not a hexadecimal number of at most 16 digits",
    ]


def test_too_many_malformed_rows_stop_the_reader_and_name_the_first(tmp_path, read):
    path = tmp_path / "a.tsv"
    path.write_text(("1" + "\t" * 39 + "\n") * 50 + "oops\n" * 11)
    with pytest.raises(
        DataError, match=r"a\.tsv:51: has 1 columns, want 40 \(\d+ of \d+ rows are malformed, at most 1\.0% may be\)$"
    ):
        read(f"criteo:{path}")


def test_ten_malformed_rows_are_borne_in_a_small_file(tmp_path, read):
    path = tmp_path / "a.tsv"
    path.write_text(("1" + "\t" * 39 + "\n") * 50 + "oops\n" * 10)
    assert len(read(f"criteo:{path}")) == 50


def test_line_numbers_are_sought_for_the_first_malformed_rows_only():
    asked = []
    malformed = Malformed(share=0.5)
    for _ in range(3):
        malformed.saw(100, 3, lambda i: asked.append(i) or "f:1: bad")
    assert (len(asked), malformed.count, malformed.rows) == (5, 9, 300)


@pytest.mark.parametrize("content", ["\n\n", "\r\n"])
def test_a_file_of_blank_lines_holds_no_rows(tmp_path, read, content):
    (tmp_path / "a.tsv").write_text(content)
    with pytest.raises(DataError, match=r"a\.tsv: holds no rows$"):
        read(f"criteo:{tmp_path}/a.tsv")


def test_rows_option_sizes_every_table():
    # the file is not opened before batches are asked for, only looked at
    schema = open_data(f"criteo:{__file__}?rows=77").schema
    assert schema.input("sparse").rows == (77,) * 26
    assert schema.input("dense").width == 13


def test_a_line_without_an_end_is_refused_instead_of_read_whole(tmp_path, read, monkeypatch):
    monkeypatch.setattr("htrain.data.text.MAX_LINE_BYTES", 1 << 20)
    (tmp_path / "a.tsv").write_bytes(b"\x01" * (6 << 20))
    with pytest.raises(DataError, match=r"a line is longer than 1 MiB; is this a text file\?"):
        read(f"criteo:{tmp_path}/a.tsv")


@pytest.mark.parametrize(
    ("damage", "seen"), [(lambda z: z[: len(z) // 2], "ended before"), (lambda z: z[:200] + b"\x00" * 50 + z[250:], "")]
)
def test_a_damaged_gz_file_is_one_error(tmp_path, read, damage, seen):
    random = np.random.default_rng(0)
    rows = "".join("1" + "\t" * 14 + f"{random.integers(2**32):x}" + "\t" * 25 + "\n" for _ in range(2000))
    (tmp_path / "a.tsv.gz").write_bytes(damage(gzip.compress(rows.encode())))
    with pytest.raises(DataError, match=rf"a\.tsv\.gz: cannot be read: .*{seen}"):
        read(f"criteo:{tmp_path}/a.tsv.gz")
