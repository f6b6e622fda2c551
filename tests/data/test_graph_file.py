"""Files of adjacency lists: good lines, bad ones, and what is said of them."""

import gzip
from collections import Counter
from itertools import chain

import pytest

from htrain.data import Malformed, open_data
from htrain.errors import DataError

VISITS = "".join(f"{user} {user % 7} {user % 11 + 7}\n" for user in range(40))


def test_lists_of_one_user_on_several_lines_are_joined_and_a_pair_that_stands_twice_counts_once(tmp_path, read):
    (tmp_path / "a.txt").write_bytes(b"0 1 2\n1 2\n2 0 3 1")
    (tmp_path / "b.txt").write_bytes(b"\n2\t3 0 \r\n0 2 2\n\n2 1\r\n  1 2\n0 1 2\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress((tmp_path / "b.txt").read_bytes()))
    wanted = read(f"graph:{tmp_path}/a.txt?test=0")
    assert len(wanted) == 12
    assert [read(f"graph:{tmp_path}/{name}?test=0") for name in ("b.txt", "b.txt.gz")] == [wanted] * 2


MALFORMED = {
    "5 x 1": "word 2 is 'x', want a whole number from 0 to 2147483647",
    "-1 2 3": "word 1 is '-1', want ",
    "1 2147483648": "word 2 is '2147483648', want ",
    "1 2 99999999999999999999999999999": "word 3 is '999999999999999999999999', want ",
    "1 2.0": r"word 2 is '2.0', want ",
    "1,2": "word 1 is '1,2', want ",
    "1 \0é": r"word 2 is '\x00\xe9', want ",
}


@pytest.mark.parametrize(("line", "reason"), MALFORMED.items())
def test_a_malformed_line_is_counted_once_over_all_shards_and_gives_no_pair(tmp_path, read, line, reason):
    (tmp_path / "a.txt").write_text(VISITS + "\n" + line + "\n" + "40 1\n")
    (tmp_path / "good.txt").write_text(VISITS + "40 1\n")
    seen = [Malformed() for _ in range(3)]
    shards = [read(f"graph:{tmp_path}/a.txt", shard=s, num_shards=3, malformed=seen[s]) for s in range(3)]
    assert [m.count for m in seen] == [1, 0, 0]
    assert seen[0].rows == 42
    assert seen[0].examples[0].startswith(f"{tmp_path}/a.txt:42: {reason}")
    assert Counter(chain(*shards)) == Counter(read(f"graph:{tmp_path}/good.txt"))


def test_too_many_malformed_lines_end_the_reading(tmp_path, read):
    (tmp_path / "a.txt").write_text(VISITS + "1 ?\n" * 11)
    with pytest.raises(
        DataError, match=r"a\.txt:41: word 2 is '\?', .*\(11 of 51 rows are malformed, at most 1.0% may be\)$"
    ):
        read(f"graph:{tmp_path}/a.txt")
    assert read(f"graph:{tmp_path}/a.txt", malformed=Malformed(share=0.3))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "a.txt: is empty$"),
        ("\n \n", "a.txt: holds no rows$"),
        ("a b\n", r"a.txt:1: word 1 is 'a', want .* \(no row of the file can be read\)$"),
        ("\n1 -2\n", r"a.txt:2: word 2 is '-2', want .* \(no row of the file can be read\)$"),
        ("1\n2\n", "a.txt: none of its 2 users has an item; want lines of 'user item item ...'$"),
    ],
)
def test_a_file_without_pairs_is_refused_in_one_line_that_says_why(tmp_path, content, message):
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        open_data(f"graph:{tmp_path}/a.txt")
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_damaged_one_are_one_line_each(tmp_path):
    with pytest.raises(DataError, match=r"^absent\.txt: no such file"):
        open_data("graph:absent.txt")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(VISITS.encode())[:-20])
    with pytest.raises(DataError, match=r"a\.txt\.gz: cannot be read: "):
        open_data(f"graph:{tmp_path}/a.txt.gz")
