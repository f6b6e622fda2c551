"""Flags that several commands share, and what they mean."""

import json
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import click
from click.core import ParameterSource

from htrain.cluster import (
    NUMBERS,
    Cluster,
    cluster_entries,
    is_rate,
    load_cluster,
    parse_field,
    this_machine,
    validated,
)
from htrain.effects import require_counts, require_effect, require_hosts
from htrain.errors import UsageError
from htrain.options import Options, checked, parse_staleness
from htrain.options_file import load_options
from htrain.placement import Split, SplitKind
from htrain.printable import one_line, printable

Function = Callable[..., None]


class Command(click.Command):
    """A command whose document alone goes to standard output: while it runs, what anybody prints goes to standard error."""

    def invoke(self, ctx: click.Context) -> Any:
        ctx.meta[_DOCUMENTS] = sys.stdout
        with redirect_stdout(sys.stderr):
            return super().invoke(ctx)


class PlanCommand(Command):
    """A command that makes or reads a plan, which may have ops of the user's own."""

    def __init__(self, *arguments: Any, **given: Any) -> None:
        super().__init__(*arguments, **given)
        self.params.append(
            click.Option(
                ["--ops"],
                multiple=True,
                metavar="FILE.py",
                expose_value=False,
                callback=_load_ops,
                help="A file, or package.module, that registers ops of your own.",
            )
        )


def _load_ops(ctx: click.Context, param: click.Parameter, places: tuple[str, ...]) -> None:
    if places:
        import_module("htrain.ops.user_ops").load_ops(places)


_DOCUMENTS = "htrain.documents"


class FilePath(click.ParamType):
    """The name of a file or folder."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not str(value):
            self.fail("is empty, want the name of a file or folder", param, ctx)
        return Path(value)


class Finite(click.FloatRange):
    """A number within bounds; neither nan, which is within all of them, nor infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


def training_flags(command: Function, without: Collection[str] = ()) -> Function:
    """A flag for every field of Options, but for those in `without`."""
    hints = get_type_hints(Options)
    command = click.option(
        "--cache-table", "cache_tables", multiple=True, metavar="TABLE=CAPACITY", type=CacheTable(),
        help="A cache of its own for tables by name or pattern, such as C1=50%, or none.",
    )(command)  # fmt: skip
    for field in reversed([f for f in fields(Options) if f.name not in without and f.name != "cache_tables"]):
        flag = "--" + field.name.replace("_", "-")
        help = f"[default: {field.default}]"
        if isinstance(field.default, bool):
            command = click.option(f"{flag}/--no-{flag[2:]}", field.name, default=field.default, help=help)(command)
        else:
            command = click.option(
                flag,
                field.name,
                type=_type_of(field.name, hints[field.name]),
                default=field.default,
                help=help,
            )(command)
    return command


def _type_of(field: str, hint: Any) -> Any:
    if choices := get_args(hint):
        return click.Choice(choices)
    if field == "cache_staleness":
        return Staleness()
    return {int: click.INT, float: Finite(), str: click.STRING}[hint]


class Staleness(click.ParamType):
    """A whole number, or `unbounded`, as in the cluster file."""

    name = "N|unbounded"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_staleness(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class CacheTable(click.ParamType):
    """`TABLE=CAPACITY` as a pair."""

    name = "TABLE=CAPACITY"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        pattern, equals, capacity = str(value).rpartition("=")
        if not equals or not pattern:
            self.fail(f"'{value}': want TABLE=CAPACITY, such as C1=50% or 'C*=none'", param, ctx)
        return pattern, capacity


def cluster_flags(command: Function) -> Function:
    """A flag for every field of the cluster file."""
    for name in reversed(NUMBERS):
        sized = name.endswith(("memory", "bandwidth", "flops"))
        metavar = "SIZE" if sized else "N"
        help = "Such as 512GiB." if name.endswith("memory") else "Such as 25Gbit/s." if sized else ""
        command = click.option(
            "--" + name.replace("_", "-"),
            "cluster_" + name,
            metavar=metavar,
            default="",
            help=help,
            hidden=is_rate(name),
        )(command)
    return command


json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")


def finite(value: Any) -> Any:
    """JSON has no nan."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in value.items()}
    return [finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def put(document: Mapping[str, Any], text: str, as_json: bool) -> None:
    """The command's document on standard output: as JSON, or as text that a terminal can show."""
    documents = click.get_current_context().meta[_DOCUMENTS]
    click.echo(json.dumps(finite(document), indent=1) if as_json else printable(text.rstrip("\n")), file=documents)


def tell(text: str) -> None:
    """A line of news, on standard error."""
    click.echo(one_line(text), err=True)


def cluster_of(cluster_file: Path | None, flags: Mapping[str, Any], *, here: bool) -> Cluster:
    """The cluster of a file and the flags on top; without a file this machine's, or (not `here`) the stock hosts of the paper."""
    given = {n.removeprefix("cluster_"): v for n, v in flags.items() if n.startswith("cluster_") and _is_given(n)}
    overrides = {name: parse_field(name, text, where="--" + name.replace("_", "-")) for name, text in given.items()}
    if cluster_file:
        return load_cluster(cluster_file, overrides)
    return validated(
        {**asdict(this_machine(**overrides)), "pin": (), "together": ()} if here else overrides, where="the flags"
    )


def options_of(flags: Mapping[str, Any], cluster_file: Path | None = None) -> Options:
    """The options among a command's flags; where a flag is not given, those of the cluster file."""
    values = {n: v for n, v in flags.items() if not n.startswith("cluster_")}
    for name, value in load_options(cluster_file).items() if cluster_file else ():
        if name in values and not _is_given(name):
            values[name] = value
    return checked(Options(**values))


def require_use(options: Options, cluster: Cluster, cluster_file: Path | None, *, searched: bool = False) -> None:
    """Raises UsageError for what the flags or the cluster file say without effect; `searched` where the counts are still to be found."""
    flags = {name for name in click.get_current_context().params if _is_given(name)}
    of_cluster = {name.removeprefix("cluster_") for name in flags if name.removeprefix("cluster_") in NUMBERS}
    in_file = cluster_entries(cluster_file).keys() if cluster_file else set()
    set_in_file = load_options(cluster_file).keys() if cluster_file else set()
    require_effect(options, cluster, flags | set_in_file, searched=searched)
    require_counts(options, cluster, of_cluster | in_file)
    require_hosts(options, cluster, of_cluster - ({"dense_ps"} if searched else set()))


def _is_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def require_alone(flag: str, *others: str) -> None:
    """Raises UsageError where one of the parameters `others` is given beside a flag that decides alone."""
    for name in others:
        if _is_given(name):
            raise UsageError(f"--{name.removeprefix('cluster_').replace('_', '-')} has no effect beside {flag}: leave one of them out")


def table_splits(splits: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for split in splits:
        table, _, count = split.rpartition("=")
        if not table or not _is_number(count):
            raise UsageError(f"--split-table {split}: want TABLE=N, such as --split-table C1=4")
        if table in found:
            raise UsageError(f"--split-table {split}: '{table}' is split twice")
        found[table] = int(count)
    return found


def fc_splits(given: tuple[str, ...]) -> Mapping[str, Split] | Literal["auto"]:
    if given in ((), ("auto",)):
        return "auto"
    found = {}
    for text in () if given == ("none",) else given:
        module, _, split = text.rpartition("=")
        kind, _, count = split.partition(":")
        if not module or kind not in get_args(SplitKind) or not _is_number(count):
            raise UsageError(
                f"--split-fc {text}: want auto, none, or FC=KIND:N with {', '.join(get_args(SplitKind))}, such as top.0=vertical:4"
            )
        if module in found:
            raise UsageError(f"--split-fc {text}: '{module}' is split twice")
        found[module] = Split(kind, int(count))  # type: ignore[arg-type]
    return found


def _is_number(text: str) -> bool:
    return re.fullmatch("[1-9][0-9]{0,8}", text) is not None
