"""Flags that several commands share, and what they mean."""

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import click
from click.core import ParameterSource

from htrain.cluster import NUMBERS, Cluster, is_rate, load_cluster, parse_field, this_machine, validated
from htrain.errors import UsageError
from htrain.options import Options, checked
from htrain.options_file import load_options
from htrain.placement import Split, SplitKind

Command = Callable[..., None]


def training_flags(command: Command, without: Collection[str] = ()) -> Command:
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
            choices = get_args(hints[field.name])
            command = click.option(
                flag,
                field.name,
                type=click.Choice(choices) if choices else hints[field.name],
                default=field.default,
                help=help,
            )(command)
    return command


class CacheTable(click.ParamType):
    """`TABLE=CAPACITY` as a pair."""

    name = "TABLE=CAPACITY"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        pattern, equals, capacity = str(value).rpartition("=")
        if not equals or not pattern:
            self.fail(f"'{value}': want TABLE=CAPACITY, such as C1=50% or 'C*=none'", param, ctx)
        return pattern, capacity


def cluster_flags(command: Command) -> Command:
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
    click.echo(json.dumps(finite(document), indent=1) if as_json else text.rstrip("\n"))


def cluster_of(cluster_file: Path | None, flags: Mapping[str, Any], *, here: bool) -> Cluster:
    """The cluster of a file and the flags on top; without a file this machine's, or (not `here`) the stock hosts of the paper."""
    given = {n.removeprefix("cluster_"): v for n, v in flags.items() if n.startswith("cluster_") and v}
    overrides = {name: parse_field(name, text, where="--" + name.replace("_", "-")) for name, text in given.items()}
    if cluster_file:
        return load_cluster(cluster_file, overrides)
    return validated(
        {**asdict(this_machine(**overrides)), "pin": (), "together": ()} if here else overrides, where="the flags"
    )


def options_of(flags: Mapping[str, Any], cluster_file: Path | None = None) -> Options:
    """The options among a command's flags; where a flag is not given, those of the cluster file."""
    values = {n: v for n, v in flags.items() if not n.startswith("cluster_")}
    context = click.get_current_context()
    for name, value in load_options(cluster_file).items() if cluster_file else ():
        if name in values and context.get_parameter_source(name) is ParameterSource.DEFAULT:
            values[name] = value
    return checked(Options(**values))


def table_splits(splits: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for split in splits:
        table, _, count = split.rpartition("=")
        if not table or not count.isdigit() or int(count) < 1:
            raise UsageError(f"--split-table {split}: want TABLE=N, such as --split-table C1=4")
        found[table] = int(count)
    return found


def fc_splits(given: tuple[str, ...]) -> Mapping[str, Split] | Literal["auto"]:
    if given in ((), ("auto",)):
        return "auto"
    found = {}
    for text in () if given == ("none",) else given:
        module, _, split = text.rpartition("=")
        kind, _, count = split.partition(":")
        if not module or kind not in get_args(SplitKind) or not count.isdigit():
            raise UsageError(
                f"--split-fc {text}: want auto, none, or FC=KIND:N with {', '.join(get_args(SplitKind))}, such as top.0=vertical:4"
            )
        found[module] = Split(kind, int(count))  # type: ignore[arg-type]
    return found
