"""The commands of the README and the docs run, in order, as they stand there, on less data."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from forked import Commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = [
    ROOT / "pyproject.toml",
    *(path for part in ("htrain", "models", "tests", "tools") for path in sorted((ROOT / part).rglob("*.py"))),
]


def commands_of(page: Path) -> list[str]:
    """The indented `htrain ...` lines of a page, without their comments, with a hundredth of the rows of data and of tables, and short measurements."""
    lines = [line.split(" #")[0].strip() for line in re.findall(r"^ {4}(htrain .*)$", page.read_text(), re.MULTILINE)]
    lines = [re.sub(r"--rows (\d+)00\b", r"--rows \1", line) for line in lines]
    lines = [re.sub(r"--seconds \d+", "--seconds 1", line) for line in lines]
    return [re.sub(r"\bcriteo:\w+\.tsv(?!\S*\brows=)(?=\s|$)", r"\g<0>?rows=1000", line) for line in lines]


def write_files_of(page: Path, folder: Path) -> None:
    """The fenced blocks of a page whose first line names a file: `# my_model.py`."""
    for name, text in re.findall(r"^```\w+\n# (\S+\.\w+)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if commands_of(p) and p.parent.name != "contributing"], ids=lambda p: p.name
)  # those for contributors run on a copy: test_contributing.py
def test_the_commands_of_a_page_run(page: Path, commands: Commands, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "models", tmp_path / "models")
    write_files_of(page, tmp_path)
    for command in commands_of(page):
        run = commands.run(shlex.split(command)[1:], tmp_path, timeout=120)
        wanted = 1 if command.startswith("htrain diff") else 0
        assert run.returncode == wanted, f"{command}\n{run.stderr[-2000:]}"
        assert "Traceback" not in run.stderr


def test_the_python_of_the_readme_runs(commands: Commands, tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    shutil.copytree(ROOT / "models", tmp_path / "models")
    for part in ("train", "test"):
        words = ["data", "synth", "criteo", "--rows", "3000", "--part", part, "--out", f"{part}.tsv"]
        assert commands.run(words, tmp_path, timeout=120).returncode == 0
    (tmp_path / "script.py").write_text(block)
    run = commands.run_module("script", [], tmp_path, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    eps, area = run.stdout.split()
    assert float(eps) > 0
    assert 0 < float(area) < 1


def test_links_of_the_docs_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_pages_that_code_names_are_there() -> None:
    named = [(path, page) for path in CODE for page in re.findall(r"docs/[\w/-]+\.md", path.read_text())]
    assert [f"{path.relative_to(ROOT)}: {page}" for path, page in named if not (ROOT / page).is_file()] == []


def test_nothing_cites_a_document_outside_the_repository() -> None:
    """What a comment refers to is a page of docs/, or a paper: a reader has no other."""
    outside = "design".upper()
    assert [str(path.relative_to(ROOT)) for path in (*PAGES, *CODE) if outside in path.read_text()] == []


def test_files_that_the_docs_name_are_there() -> None:
    named = [
        (page, name)
        for page in PAGES
        if page.parent.name != "contributing"  # they add files
        for name in re.findall(r"`((?:htrain|models|tests|tools)/[\w/.-]+)", page.read_text())
    ]
    assert [f"{page.name}: {name}" for page, name in named if not (ROOT / name).exists()] == []
