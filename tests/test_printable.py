"""Words of commands that messages show."""

import shlex
from pathlib import Path

import pytest

from htrain.printable import as_word


@pytest.mark.parametrize("path", ["runs/a", "/tmp/x-1_b.yaml", "../plan", "s3+http://a:1/b,c@d%20"])
def test_a_plain_path_is_shown_as_it_is(path: str) -> None:
    assert as_word(path) == path
    assert as_word(Path(path)) == str(Path(path))


@pytest.mark.parametrize("path", ["runs/a b", "it's", "~/runs", "$HOME", "a;b", "", "a&b", "runs/*", "a\\b", 'a"b'])
def test_any_other_is_one_word_of_a_shell(path: str) -> None:
    assert shlex.split(f"--resume {as_word(path)} --json") == ["--resume", path, "--json"]
    assert as_word(path).startswith(("'", '"'))
