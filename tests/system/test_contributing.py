"""The worked pages for contributors, carried out: each on a copy of htrain to which its files and diffs are applied, and then its commands run there."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from forked import OF_OTHERS, Commands

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "contributing").glob("*.md"))


@dataclass(frozen=True)
class Hunk:
    """Lines of a file that stand there once, and what they become."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Page:
    """What a page says: where a change is, the files that it adds, what it changes in others, and what runs afterwards."""

    allowed: dict[str, str]
    files: dict[str, str]
    hunks: list[Hunk]
    commands: list[list[str]]


def read(page: Path) -> Page:
    text = page.read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    files, hunks = {}, []
    for kind, block in blocks:
        first, _, rest = block.partition("\n")
        if kind == "diff":
            hunks += [hunk_of(first.removeprefix("--- "), part) for part in rest.split("@@\n")[1:]]
        else:
            files[first.removeprefix("# ")] = rest
    commands = [shlex.split(line) for line in re.findall(r"^ {4}((?:htrain|pytest) .*)$", text, re.MULTILINE)]
    allowed = {where: name for name, where in re.findall(r"^\| ([\w ]+) \| `([\w/.]+)` \|$", text, re.MULTILINE)}
    return Page(allowed, files, hunks, commands)


def hunk_of(path: str, part: str) -> Hunk:
    lines = part.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] != "+")
    return Hunk(path, old, "".join(line[1:] for line in lines if line[0] != "-"))


def apply(page: Page, folder: Path) -> None:
    for name, text in page.files.items():
        path = folder / name
        assert not path.exists(), f"{name} is there already"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for hunk in page.hunks:
        text = (folder / hunk.path).read_text()
        assert text.count(hunk.old) == 1, f"{hunk.path} does not have these lines, once:\n{hunk.old}"
        (folder / hunk.path).write_text(text.replace(hunk.old, hunk.new))


@pytest.fixture(scope="module")
def forked() -> Iterator[Commands]:
    commands = Commands(OF_OTHERS)
    yield commands
    commands.close()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of htrain and its tests, with what Numba and Python have compiled of them."""
    for name in ("htrain", "models", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_a_page_is_carried_out_as_it_stands_there(path: Path, copy: Path, forked: Commands) -> None:
    page = read(path)
    apply(page, copy)
    for tool in (["check"], ["format", "--check"]):
        changed = [*(name for name in page.files if name.endswith(".py")), *{hunk.path for hunk in page.hunks}]
        done = subprocess.run([sys.executable, "-m", "ruff", *tool, *changed], cwd=copy, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert page.commands
    for program, *words in page.commands:
        done = forked.run_module(program, words, copy, timeout=120)
        assert done.returncode == 0, f"{program} {' '.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_a_page_touches_the_one_folder_that_it_names(path: Path) -> None:
    """Beside it, its tests, and at most one table elsewhere; a line there is a line, and its import."""
    page = read(path)
    names = {what: where for where, what in page.allowed.items()}
    folder, mirror = names.pop("one folder"), names.pop("its mirror")
    assert mirror == folder.replace("htrain", "tests", 1)
    touched = {*page.files, *(hunk.path for hunk in page.hunks)}
    ours = {name for name in touched if "/" in name}  # others are a user's: a model, data
    elsewhere = {name for name in ours if not name.startswith((f"{folder}/", f"{mirror}/", "tests/goldens/"))}
    assert elsewhere == set(names.values())
    assert len(elsewhere) <= 1
    if "one line of a table" in names:
        grown = [
            set(hunk.new.splitlines()) - set(hunk.old.splitlines()) for hunk in page.hunks if hunk.path in elsewhere
        ]
        lines = [line for lines in grown for line in lines if "import" not in line]
        assert len(lines) == 1
    assert any(name.startswith(f"{folder}/") for name in ours)


def test_the_door_leads_to_every_page() -> None:
    door = (ROOT / "CONTRIBUTING.md").read_text()
    assert [path.name for path in PAGES if f"(docs/contributing/{path.name})" not in door] == []
