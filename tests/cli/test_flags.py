"""Flags: a sentence for each of every command, and values that are what their fields take."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from htrain.cli.app import commands
from htrain.spec.cluster import Cluster
from htrain.spec.fields import fields_of
from htrain.spec.tree import flags


def all_commands(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from all_commands(command)
        else:
            yield name, command


@pytest.mark.parametrize(("name", "command"), list(all_commands(commands)))
def test_every_flag_has_a_sentence(name: str, command: click.Command) -> None:
    for flag in (p for p in command.params if isinstance(p, click.Option)):
        assert flag.help, f"{name} {flag.opts[0]}"
        assert len(flag.help.split("[default")[0].split()) > 1, f"{name} {flag.opts[0]}: {flag.help}"


def test_compile_has_a_flag_for_all_that_may_be_said() -> None:
    (compile_command,) = (command for name, command in all_commands(commands) if name == "compile")
    names = {param.name for param in compile_command.params}
    assert set(flags()) <= names
    assert {f"cluster_{name}" for name in fields_of(Cluster)} <= names


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["--cache-window", "0"], "'--cache-window': 0 is not a whole number of 1 to 1,000,000"),
        (["--cache-window", "soon"], "'soon' is not a whole number of 1 to 1,000,000"),
        (["--sync-alpha", "0"], "'--sync-alpha': 0.0 is not a finite number above 0 and below 1, or auto"),
        (
            ["--cache-staleness", "-1"],
            "'--cache-staleness': -1 is not a whole number of 0 to 999,999,999, or unbounded",
        ),
        (["--batch-size", "1e3"], "'--batch-size': '1e3' is not a whole number of 1 to 16,777,216"),
        (["--loss", "mae"], "'--loss': 'mae' is not one of 'bce', 'bce_probability', 'mse', 'own'"),
        (["--cache-table", "C1"], "'C1': want TABLE=CAPACITY"),
        (["--cache-table", "C1=many", "--cache", "het"], "--cache-table: 'C1=many' is not tables and capacities"),
        (["--rate", "top.*"], "'top.*': want PATTERN=X: patterns and shares of the rate, such as top.*=0.1"),
        (["--rate", "top.*=half"], "--rate: 'top.*=half' is not patterns and shares of the rate"),
        (["--rate", "top.*=-1"], "--rate: 'top.*=-1' is not patterns and shares of the rate"),
        (["--cache-window", "auto", "--cache", "het"], "--cache-window: 'auto' is not a whole number"),
        (["--host-cores", "0"], "--host-cores: host_cores: '0' is not a whole number of 1 to 1,000,000, or own"),
        (["--python-lock", "1"], "--python-lock: python_lock: '1' is not true or false"),
        (["--dense-lr", "inf"], "'inf' is not a finite number above 0"),
    ],
)
def test_what_a_flag_does_not_take_is_refused_in_words(line: list[str], says: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(commands, ["compile", "model.py", "--out", str(tmp_path / "plan"), *line])
    assert found.exit_code != 0
    assert says in (found.output + str(found.exception))


@pytest.mark.parametrize("command", [["run", "plan", "--data", "synthetic:"], ["serve", "plan"]])
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ([], "give either --out, a new run folder, or --resume"),
        (["--out", "a", "--resume", "b"], "give either --out, a new run folder, or --resume"),
        (["--begin-with", "a", "--resume", "b"], "--begin-with is for a new run: --resume goes on"),
    ],
)
def test_a_run_is_new_or_goes_on(command: list[str], line: list[str], says: str) -> None:
    found = CliRunner().invoke(commands, [*command, *line])
    assert found.exit_code != 0
    assert says in str(found.exception)
