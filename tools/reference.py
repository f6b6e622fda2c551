"""The reference pages of the docs, made from the code: flags of every command, the tree of options, and the API.

    python tools/reference.py

They are written into docs/reference/; a test says where one is not as the code is.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import click

import htrain
from htrain.cli.app import commands
from htrain.spec.cluster import Cluster
from htrain.spec.fields import REQUIRED, fields_of, wanted
from htrain.spec.options import Options
from htrain.spec.tree import dashed, flag_of, flag_text, flags, questions, sections_of

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
_SAME_NAMES = 2  # flags that a command has under a name of the tree's, and does not take from there
_MADE = "<!-- made by `python tools/reference.py` -->\n\n"


def pages() -> dict[str, str]:
    """The text of each page, by its file's name."""
    return {"flags.md": "\n".join(_flags()), "options.md": "\n".join(_options()), "api.md": "\n".join(_api())}


def _flags() -> Iterator[str]:
    yield "# Flags\n\n" + _MADE + "Flags of the options and of the cluster are in [options](options.md).\n"
    tree = set(fields_of(Cluster)) | set(flags())
    for name, command in _commands(commands, "htrain"):
        yield f"## `{name}`\n\n{_words(command.help or '')}\n"
        every = [p for p in command.params if isinstance(p, click.Option)]
        own = [p for p in every if str(p.name).removeprefix("cluster_") not in tree]
        others = len(every) - len(own)
        takes_tree = others > _SAME_NAMES
        yield "| flag | says |\n|---|---|"
        for flag in own if takes_tree else every:
            yield f"| `{_shown(flag)}` | {_cell(flag.help or '')}{' Required.' if flag.required else ''} |"
        yield (
            f"\nAnd those of [{'the options and the cluster' if others > len(fields_of(Cluster)) else 'the cluster'}](options.md).\n"
            if takes_tree
            else ""
        )


def _commands(group: click.Group, before: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from _commands(command, f"{before} {name}")
        else:
            yield f"{before} {name}", command


def _shown(flag: click.Option) -> str:
    opts = "/".join([max(flag.opts, key=len), *flag.secondary_opts])
    context = [click.Context(click.Command("x"))][
        : len(inspect.signature(flag.make_metavar).parameters)
    ]  # click 8.2 wants one
    metavar = "" if flag.is_flag else f" {flag.make_metavar(*context)}"
    return (opts + metavar).replace("|", "\\|")


def _options() -> Iterator[str]:
    about = (
        "The tree that a cluster file says under `options`, and `htrain.Options` in Python. Each entry is a flag, too."
    )
    yield f"# Options and clusters\n\n{_MADE}{about}\n"
    yield "## `Options`\n\n| entry | flag | takes | default | says |\n|---|---|---|---|---|"
    for name, field in fields_of(Options).items():
        yield _row(name, dashed(field.flag or name), wanted(field.hint), field.default, field.sentence)
    for name, question in questions().items():
        usual = getattr(Options(), name)
        kinds = ", ".join(f"`{kind}`" for kind in question.kinds or ())
        choice = f" One of {kinds}, by default `{usual.kind}` (`{dashed(name)}`)." if kinds else ""
        yield f"\n## `{name}`\n\n{question.sentence}{choice}\n"
        for section in sections_of(name):
            if section.kind:
                yield f"### `{section.kind}`: `htrain.{section.__name__}`\n\n{_words(section.__doc__ or '')}\n"
            known = fields_of(section)
            if known:
                yield "| entry | flag | takes | default | says |\n|---|---|---|---|---|"
            for entry, field in known.items():
                default = getattr(usual, entry) if field.default is REQUIRED else field.default
                yield _row(entry, dashed(flag_of(name, field)), wanted(field.hint), default, field.sentence)
            yield ""
    yield "\n## Cluster\n\n| field | takes | default | says |\n|---|---|---|---|"
    for name, field in fields_of(Cluster).items():
        yield f"| `{name}` | {_cell(wanted(field.hint))} | `{flag_text(field.default)}` | {_cell(field.sentence)} |"
    yield ""


def _row(entry: str, flag: str, takes: str, default: object, sentence: str) -> str:
    return f"| `{entry}` | `{flag}` | {_cell(takes)} | `{flag_text(default) or 'none'}` | {_cell(sentence)} |"


def _api() -> Iterator[str]:
    yield (
        "# Python API\n\n"
        + _MADE
        + "Names of the package `htrain`; sections of the options are in [options](options.md).\n\n"
        "Every example runs as it stands, beside the folder `models` of the repository and two Parquet files of clicks; "
        "those of `describe`, `pack`, `compile`, `run` and `export` write what others read.\n"
    )
    sections = {section.__name__ for name in questions() for section in sections_of(name)}
    for name in sorted(htrain.__all__, key=str.lower):
        if name in sections:
            continue
        value = getattr(htrain, name)
        kind = "class" if inspect.isclass(value) else "function"
        yield f"## `{name}`\n\n*{kind}*\n\n```text\n{name}{_signature(value)}\n```\n\n{_words(inspect.getdoc(value) or '', 'python')}\n"
        for member, function in _methods(value) if inspect.isclass(value) else ():
            yield f"- `{member}{_signature(function)}`: {(inspect.getdoc(function) or '').splitlines()[0]}"
            if example := example_of(function):
                yield "\n" + textwrap.indent(_fenced(example, "python"), "    ") + "\n"
        yield ""


def _methods(value: type) -> Iterator[tuple[str, Any]]:
    own = {f.name for f in fields(value)} if is_dataclass(value) else set()
    for name, member in vars(value).items():
        if inspect.isfunction(member) and not name.startswith("_") and member.__doc__ and name not in own:
            yield name, member


def _signature(value: Any) -> str:
    """The arguments as the source has them: what Python makes of annotations differs from version to version."""
    if inspect.isclass(value):
        return f"({', '.join(f.name for f in fields(value))})" if is_dataclass(value) else "()"
    tree = ast.parse(inspect.cleandoc("\n" + textwrap.dedent(inspect.getsource(value))))
    function = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    arguments = ast.unparse(function.args).removeprefix("self, ").removeprefix("self")
    return f"({arguments}) -> {ast.unparse(function.returns) if function.returns else 'None'}"


def example_of(documented: Any) -> str:
    """The example of a docstring: the indented block at its end, blank lines included. "" where there is none."""
    block = _blocks(inspect.getdoc(documented) or "")[-1]
    return textwrap.dedent(block) if block.startswith("    ") else ""


def _words(text: str, language: str = "text") -> str:
    """A docstring as Markdown: examples, which are indented, in fences."""
    return "\n\n".join(
        _fenced(textwrap.dedent(block), language) if block.startswith(("    ", "htrain ")) else block.strip("\n")
        for block in _blocks(inspect.cleandoc(text.replace("\b", "")))
    )


def _blocks(text: str) -> list[str]:
    """The paragraphs of a docstring; lines that are indented are one block, with the blank lines among them."""
    blocks = [""]
    for paragraph in re.split(r"\n\n(?!\n)", text):
        if paragraph.startswith("    ") and blocks[-1].startswith("    "):
            blocks[-1] += f"\n\n{paragraph}"
        else:
            blocks.append(paragraph)
    return blocks[1:]


def _fenced(block: str, language: str) -> str:
    return f"```{language}\n{block}\n```"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text.rstrip() + "\n")


if __name__ == "__main__":
    main()
