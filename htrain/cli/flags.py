"""Flags that several commands share, and what they mean."""

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

import click
from click.core import ParameterSource

from htrain.errors import UsageError
from htrain.net.placement import Split, SplitKind
from htrain.printable import one_line, printable
from htrain.spec.cluster import (
    NUMBERS,
    Cluster,
    cluster_entries,
    is_rate,
    is_size,
    load_cluster,
    parse_field,
    this_machine,
    validated,
)
from htrain.spec.cluster_file import load_options, said_in
from htrain.spec.effects import require_counts, require_effect, require_hosts
from htrain.spec.fields import (
    REQUIRED,
    Field,
    alternatives,
    choices,
    fields_of,
    is_pairs,
    pair_of,
    parse,
    parse_in_pair,
    plain,
    table_of,
    wanted,
)
from htrain.spec.options import Options
from htrain.spec.settings import CheckpointSeconds, Workers
from htrain.spec.tree import Flag, dashed, flag_at, flag_text, flags, flat, questions, with_flags

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
                callback=_load_own,
                is_eager=True,
                help="A file, or package.module, that registers ops, strategies or cache policies of your own.",
            )
        )


def _load_own(ctx: click.Context, param: click.Parameter, places: tuple[str, ...]) -> None:
    if places:
        import_module("htrain.own.registry").load_own(places)


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


_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Period(click.ParamType):
    """Seconds between two of something, said as 20s, 15m, 2h, 1d or a number of seconds, or `end` for the last alone."""

    name = "period"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "TIME|end"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value == "end":
            return value
        number, unit = (value[:-1], value[-1]) if value[-1:] in _UNIT_SECONDS else (value, "s")
        try:
            seconds = float(number) * _UNIT_SECONDS[unit]
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            self.fail(f"'{value}' is no time: want one such as 20s, 15m or 2h, or end", param, ctx)
        return seconds


class Value(click.ParamType):
    """What a field of one of these types takes, read from text."""

    name = "value"

    def __init__(self, *hints: Any) -> None:
        self.hints = hints

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return metavar(self.hints[-1])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.parsed(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def parsed(self, text: str) -> Any:
        """The value that a text stands for. Raises ValueError, in words for a user, for a text that no field takes."""
        reasons = []
        for hint in self.hints:
            try:
                return parse(text, hint)
            except ValueError as error:
                reasons.append(str(error))
        raise ValueError(reasons[0])


class Kind(click.ParamType):
    """A kind of a section: those of users' files are there when these have been loaded."""

    name = "kind"

    def __init__(self, section: str) -> None:
        self.section = section

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"[{'|'.join(questions()[self.section].kinds or {})}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return click.Choice(list(questions()[self.section].kinds or {})).convert(value, param, ctx)


def training_flags(command: Function) -> Function:
    """A flag for every field of Options and of its sections, and one for those that have no flag of their own."""
    command = click.option(
        "--set", "entries", multiple=True, metavar="SECTION.FIELD=VALUE",
        help="Any entry of the options, such as dense_sync.period=4: those of strategies of your own have no flag.",
    )(command)  # fmt: skip
    for flag in reversed(list(flags().values())):
        command = _training_flag(flag)(command)
    return command


def _training_flag(flag: Flag) -> Callable[[Function], Function]:
    dashes = dashed(flag.name)
    if flag.chooses_kind:
        question, usual = questions()[flag.section], getattr(Options(), flag.section).kind
        return click.option(dashes, flag.name, type=Kind(flag.section), help=f"{question.sentence} [default: {usual}]")
    hints = [field.hint for field in flag.fields.values()]
    if is_pairs(hints[0]):
        return click.option(
            dashes, flag.name, multiple=True, metavar=pair_of(hints[0]), type=Pair(hints[0]), help=_help(flag)
        )
    if plain(hints[0]) is bool:
        return click.option(f"{dashes}/--no-{dashes[2:]}", flag.name, default=None, help=_help(flag))
    # What users may add to is looked up when their files have been loaded.
    closed = choices(hints[0]) and table_of(hints[0]) is None
    kind = click.Choice(choices(hints[0])) if closed else Value(*hints)
    return click.option(dashes, flag.name, type=kind, help=_help(flag))


def _help(flag: Flag) -> str:
    """What a flag says, with the kinds that it belongs to, and its default: one sentence for all kinds that say the same."""
    texts: dict[tuple[str, str], list[str]] = {}
    for kind, field in flag.fields.items():
        texts.setdefault((field.sentence, _default(flag, field)), []).append(kind)
    return " ".join(
        f"{sentence} [{_with(flag.section, kinds)}default: {default}]" for (sentence, default), kinds in texts.items()
    )


def _default(flag: Flag, field: Field) -> str:
    usual = flat(Options())[flag.name] if field.default is REQUIRED else field.default
    if isinstance(usual, bool):
        return "on" if usual else "off"
    return flag_text(usual) or "none"


def _with(section: str, kinds: list[str]) -> str:
    """The choice that a flag depends on, where not every kind has it."""
    others = set(questions()[section].kinds or {}) - set(kinds) if section else set()
    return f"with {dashed(section)} {' or '.join(kinds)}; " if others else ""


def metavar(hint: Any) -> str:
    """What stands behind a flag for its value: `N|auto`."""
    return "|".join(_metavars(hint))


def _metavars(hint: Any) -> Iterator[str]:
    for kind in alternatives(hint):
        yield from choices(kind) or [{int: "N", float: "X", bool: "true|false"}.get(plain(kind), "TEXT")]


class Pair(click.ParamType):
    """`TABLE=CAPACITY` as a pair, or what else a field takes pairs of."""

    def __init__(self, hint: Any) -> None:
        self.hint, self.name = hint, pair_of(hint)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        pattern, equals, text = str(value).rpartition("=")
        if not equals or not pattern:
            self.fail(f"'{value}': want {self.name}: {wanted(self.hint)}", param, ctx)
        return pattern, parse_in_pair(text, self.hint)


class Named(click.ParamType):
    """`NAME=NAME` as a pair of names; `words` say of what."""

    def __init__(self, words: str) -> None:
        self.name = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        name, equals, other = str(value).partition("=")
        if not (name and equals and other):
            self.fail(f"'{value}': want {self.name}", param, ctx)
        return name, other


def cluster_flags(command: Function) -> Function:
    """A flag for every field of the cluster file."""
    for name, field in reversed(list(fields_of(Cluster).items())):
        example = (
            " Such as 512GiB."
            if name.endswith("memory")
            else " Such as 25Gbit/s."
            if name.endswith("bandwidth")
            else ""
        )
        command = click.option(
            dashed(name),
            "cluster_" + name,
            metavar="SIZE" if is_size(name) else metavar(field.hint),
            default="",
            help=field.sentence + example,
            hidden=is_rate(name),
        )(command)
    return command


workers_flag = click.option(
    "--workers", default="auto", type=Value(Workers),
    help="Threads of a PS that run ops; auto is one a core. [default: auto]",
)  # fmt: skip


def trained_flags(command: Function) -> Function:
    """Which weights of a trained run are taken."""
    plan = click.option("--plan", type=FilePath(), help="The run's plan, where it has moved.")
    replica = click.option(
        "--replica", default="center", help="Whose dense parameters: center, or group:N. [default: center]"
    )
    checkpoint = click.option(
        "--checkpoint", default="last", type=click.Choice(["last", "best"]),
        help="The last, or the best, which --keep-best has kept. [default: last]",
    )  # fmt: skip
    return plan(replica(checkpoint(command)))


scoring_flag = click.option(
    "--workers", default="auto", type=Value(Workers),
    help="Threads that compute, beside one that reads; auto is one a core. Results do not depend on it. [default: auto]",
)  # fmt: skip


def _named(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The name of a column; an empty one, as that of a variable of a script that is not set, is refused."""
    if not value and context.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE:
        raise click.BadParameter("is empty, want the name of a column", context, parameter)
    return value


def as_address(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Where something goes; an empty one, as that of a variable of a script that is not set, raises BadParameter."""
    if not value and context.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE:
        raise click.BadParameter(
            "is empty, want a folder, or an address such as s3://bucket/models/ads", context, parameter
        )
    return value


def ranking_flags(begin: str) -> Callable[[Function], Function]:
    """The groups within which examples are ranked, as flags that begin so."""
    by = click.option(
        f"{begin}group-by", default="", metavar="COLUMN", callback=_named,
        help="Rank within the examples that have the same value there, such as user or sparse.user: GAUC, NDCG, recall, MRR.",
    )  # fmt: skip
    top = click.option(
        f"{begin}top", default=10, type=click.IntRange(1, 1_000_000_000), metavar="K",
        help="With it: NDCG and recall are of the first K of each group. [default: 10]",
    )  # fmt: skip
    return lambda command: by(top(command))


checkpoint_flag = click.option(
    "--checkpoint-seconds", default=300.0, type=Value(CheckpointSeconds),
    help="Seconds between checkpoints, or end for the last only. [default: 300]",
)  # fmt: skip

json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")


def malformed_flag(stopped: str) -> Callable[[Function], Function]:
    """--malformed-share, which says of how many malformed rows what is `stopped`."""
    text = f"More malformed rows than this share stop {stopped}. [default: 0.01]"
    return click.option("--malformed-share", default=0.01, type=Finite(0, 1), help=text)


def liveness_flag(role: str) -> Callable[[Function], Function]:
    """--liveness-seconds, after which a silent `role` is given up."""
    text = f"A {role} that the launcher does not hear for this long is given up, though its process may live. [default: 60]"
    return click.option("--liveness-seconds", default=60.0, type=Finite(2), help=text)


def finite(value: Any) -> Any:
    """JSON has no nan."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in value.items()}
    return [finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def put(document: Mapping[str, Any], text: str, as_json: bool) -> None:
    """The command's document on standard output: as JSON, or as text that a terminal can show."""
    click.echo(json.dumps(finite(document), indent=1) if as_json else printable(text.rstrip("\n")), file=documents())


def documents() -> TextIO:
    """Standard output, as the command that runs has it."""
    found: TextIO = click.get_current_context().meta[_DOCUMENTS]
    return found


def tell(text: str) -> None:
    """A line of news, on standard error. A command does not depend on it: what a disk that is full, or a reader that is gone, does not take is left out."""
    with suppress(OSError):
        click.echo(one_line(text), err=True)


def tell_table(text: str) -> None:
    """News of several lines, on standard error, as far as it takes them."""
    with suppress(OSError):
        click.echo(printable(text), err=True)


def cluster_of(cluster_file: Path | None, flag_values: Mapping[str, Any], *, here: bool) -> Cluster:
    """The cluster of a file and the flags on top; without a file this machine's, or (not `here`) the stock hosts of the paper."""
    given = {n.removeprefix("cluster_"): v for n, v in flag_values.items() if n.startswith("cluster_") and _is_given(n)}
    overrides = {name: parse_field(name, text, where=dashed(name)) for name, text in given.items()}
    if cluster_file:
        return load_cluster(cluster_file, overrides)
    return validated(
        {**asdict(this_machine(**overrides)), "pin": (), "together": ()} if here else overrides, where="the flags"
    )


def options_of(given: Mapping[str, Any], cluster_file: Path | None = None) -> Options:
    """The options among a command's flags; where a flag is not given, those of the cluster file.

    Raises UsageError for what is given twice, or what a field does not take.
    """
    values = {name: value for name, value in given.items() if name in flags() and _is_given(name)}
    for name, value in entries_of(given.get("entries", ())).items():
        if name in values:
            raise UsageError(f"{dashed(name)} has no effect beside --set, which says the same: leave one of them out")
        values[name] = value
    return with_flags(load_options(cluster_file) if cluster_file else Options(), **values)


def entries_of(texts: Sequence[str]) -> dict[str, Any]:
    """The values of `SECTION.FIELD=VALUE`, by the names of their flags. Raises UsageError."""
    found: dict[str, Any] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        flag = flag_at(place)
        if not equals or flag is None or flag.chooses_kind:
            known = ", ".join(name for name in questions())
            raise UsageError(
                f"--set {text}: want SECTION.FIELD=VALUE, such as dense_sync.period=4, with a field of one of {known}"
            )
        hints = [field.hint for field in flag.fields.values()]
        if flag.name in found:
            raise UsageError(f"--set {text}: {place} is given twice")
        try:
            found[flag.name] = Value(*hints).parsed(value)
        except ValueError as error:
            raise UsageError(f"--set {text}: {error}") from error
    return found


def require_use(options: Options, cluster: Cluster, cluster_file: Path | None, *, searched: bool = False) -> None:
    """Raises UsageError for what the flags or the cluster file say without effect; `searched` where the counts are still to be found."""
    context = click.get_current_context().params
    given = {name for name in context if _is_given(name)} | entries_of(context.get("entries", ())).keys()
    of_cluster = {name.removeprefix("cluster_") for name in given if name.removeprefix("cluster_") in NUMBERS}
    in_file = cluster_entries(cluster_file).keys() if cluster_file else set()
    said_in_file = said_in(cluster_file) if cluster_file else set()
    require_effect(options, cluster, given | said_in_file, searched=searched)
    require_counts(options, cluster, of_cluster | in_file)
    require_hosts(options, cluster, of_cluster - ({"dense_ps"} if searched else set()))


def _is_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def require_alone(flag: str, *others: str) -> None:
    """Raises UsageError where one of the parameters `others` is given beside a flag that decides alone."""
    for name in others:
        if _is_given(name):
            raise UsageError(
                f"--{name.removeprefix('cluster_').replace('_', '-')} has no effect beside {flag}: leave one of them out"
            )


def require_beside(flag: str, *others: str) -> None:
    """Raises UsageError where one of the parameters `others` is given without a flag that it is about."""
    for name in others:
        if _is_given(name):
            raise UsageError(
                f"--{name.replace('_', '-')} has no effect without {flag}: leave it out, or say {flag}, too"
            )


def run_folder_of(out: Path | None, resume: Path | None, begin_with: Path | None) -> Path:
    """The folder of a run, a new one or one to go on with. Raises UsageError where it is not clear which."""
    folder = resume or out
    if folder is None or (out and resume):
        raise UsageError("give either --out, a new run folder, or --resume, the folder of a run to go on with")
    if begin_with and resume:
        raise UsageError("--begin-with is for a new run: --resume goes on from the run's own checkpoint")
    return folder


def table_splits(splits: tuple[str, ...]) -> dict[str, int]:
    """The pieces of each table, of texts such as `C1=4`. Raises UsageError for a text of another form."""
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
    """The cut of each FC, of texts such as `top.0=vertical:4`; "auto" where nothing else was given.

    Raises UsageError for a text of another form.
    """
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
