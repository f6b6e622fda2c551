"""The commands that write data, and count it: `htrain data synth`, `describe`, `pack`, `vocabulary`, `collisions`."""

from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins

import htrain
from htrain.cli.flags import Command, FilePath, Finite, Function, json_flag, malformed_flag, put


@click.group()
def data() -> None:
    """Describe data, make it, and make it fast to read; count the values of ids."""


@data.group()
def synth() -> None:
    """Synthesise data with a planted model, so that the best reachable NE and AUC are known."""


@synth.command(cls=Command)
@click.option("--rows", default=500_000, type=click.IntRange(1), help="Examples to write. [default: 500000]")
@click.option("--out", required=True, type=FilePath(), help="The TSV file to write; .gz compresses.")
@click.option("--table-rows", default=100_000, type=click.IntRange(1), help="Distinct ids per field. [default: 100000]")
@click.option("--zipf", default=1.05, type=Finite(), help="Exponent of the id frequencies. [default: 1.05]")
@click.option(
    "--locality",
    default=0.5,
    type=Finite(0, 1),
    help="Share of ids drawn from the example's community. [default: 0.5]",
)
@click.option(
    "--signal", default=0.35, type=Finite(), help="Strength of the ids' effects on the label. [default: 0.35]"
)
@click.option("--seed", default=0, type=click.IntRange(0), help="Another seed is another planted model. [default: 0]")
@click.option(
    "--part",
    default="train",
    type=click.Choice(["train", "test"]),
    help="Which part of the seed's endless log: both follow the same planted model. [default: train]",
)
@json_flag
def criteo(out: Path, part: str, as_json: bool, **options: Any) -> None:
    """Write a Criteo-format TSV file with a planted model, and print the best NE and AUC that any model can reach on it.

    \b
    htrain data synth criteo --rows 500000 --out train.tsv
    htrain data synth criteo --rows 50000 --part test --out test.tsv
    """
    synthetic = import_module("htrain.data.formats.synthetic")
    first_block = synthetic.TEST_BLOCK if part == "test" else 0
    figures = synthetic.write_criteo(out, synthetic.Synthetic(first_block=first_block, **options))
    text = f"{out}: {options['rows']:,} rows; best reachable NE {figures.best_ne:.4f}, AUC {figures.best_auc:.4f}; positive rate {figures.positive_rate:.4f}"
    put({"path": str(out), **asdict(figures)}, text, as_json)


@data.command(cls=Command)
@click.argument("source")
@click.option("--out", type=FilePath(), help="The schema file to write, which must not be there. [default: print it]")
@click.option(
    "--label", default="", metavar="NAME", help="The column of the label. [default: that of 0 and 1, by its name]"
)
@click.option(
    "--rows", default=1_000_000, type=click.IntRange(1), help="Look at the first rows, so many. [default: 1000000]"
)
@json_flag
def describe(source: str, out: Path | None, label: str, rows: int, as_json: bool) -> None:
    """Draft the schema file of SOURCE, csv or parquet data, from what its columns look like: which are numbers, ids, lists and times. Look it over.

    \b
    htrain data describe parquet:clicks.parquet --out schema.yaml
    htrain compile models/wide_deep.py --data parquet:clicks.parquet?schema=schema.yaml --out plan/
    """
    if out:
        import_module("htrain.data.draft").require_new(out)
    found = htrain.describe(source, label=label, rows=rows)
    if out:
        import_module("htrain.data.draft").write_draft(found, out)
    told = import_module("htrain.report.drafted").drafted_text(found)
    read_as = f"{source}?schema={out}"
    text = f"{told}{out}: look it over, then read the data as {read_as}" if out else found.text
    put({"path": str(out) if out else None, **to_builtins(found)}, text, as_json)


@data.command(cls=Command)
@click.argument("source")
@click.option("--out", required=True, type=FilePath(), help="The packed file to write.")
@click.option(
    "--partition",
    type=FilePath(),
    help="A partition of `htrain partition`: pack each worker's examples apart, with the numbers that it gives rows.",
)
@malformed_flag("the packing; fewer are left out")
@json_flag
def pack(source: str, out: Path, partition: Path | None, malformed_share: float, as_json: bool) -> None:
    """Parse SOURCE once, and write its rows to a file that is read many times as fast: FORMAT:PATH becomes packed:OUT.

    \b
    htrain data pack criteo:train.tsv --out train.packed
    htrain run plan/ --data packed:train.packed --out runs/a
    """
    of_rows = import_module("htrain.data.malformed")
    malformed = of_rows.Malformed(malformed_share)
    if partition:
        packed = import_module("htrain.data.pack_by_partition").pack_by_partition(
            source, partition, out, malformed=malformed
        )
        totals, table = packed.totals, import_module("htrain.report.drift").drift_text(packed) + "\n"
    else:
        packed = totals = import_module("htrain.data.pack").pack(source, out, malformed=malformed)
        table = ""
    left_out = of_rows.left_out(totals.malformed, malformed.example)
    parts = (f"{totals.examples:,} examples, {out.stat().st_size / 1e6:,.1f} MB", left_out, f"read it as packed:{out}")
    text = f"{out}: {'; '.join(part for part in parts if part)}"
    put({"path": str(out), **to_builtins(packed)}, table + text, as_json)


def columns_flag(others: str) -> Callable[[Function], Function]:
    """--columns, of a command that counts."""
    text = f"Of these columns of ids alone, between commas. [default: {others}]"
    return click.option("--columns", default="", metavar="NAME,NAME", help=text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


@data.command(cls=Command)
@click.argument("source")
@click.option("--out", required=True, type=FilePath(), help="The file of vocabularies to write, Parquet.")
@click.option("--min-count", default=1, type=click.IntRange(1), help="Keep values that come so often. [default: 1]")
@click.option(
    "--most", default=0, type=click.IntRange(0), help="Keep so many of each column, the most frequent; 0: all."
)
@columns_flag("those that the schema file has a vocabulary for; all where it has none")
@click.option(
    "--together",
    multiple=True,
    metavar="NAME,NAME",
    help="Columns that hold the same kind of values, counted as one: a value has the same row in each.",
)
@click.option(
    "--extends",
    default="",
    metavar="FILE",
    help="Values of this earlier file of vocabularies keep their rows, and others come behind them: tables that were trained with it can grow.",
)
@malformed_flag("the counting; fewer are left out")
@json_flag
def vocabulary(
    source: str,
    out: Path,
    min_count: int,
    most: int,
    columns: str,
    together: tuple[str, ...],
    extends: str,
    malformed_share: float,
    as_json: bool,
) -> None:
    """Count the values of the columns of ids of SOURCE, csv or parquet data, and write those that are kept to a file that its schema names: vocabulary: OUT.

    \b
    htrain data vocabulary csv:clicks.csv?schema=schema.yaml --out vocabulary.parquet --min-count 5
    """
    found = htrain.vocabulary(
        source,
        out=out,
        min_count=min_count,
        most=most,
        columns=_names(columns),
        together=tuple(map(_names, together)),
        extends=extends,
        malformed_share=malformed_share,
    )
    table = import_module("htrain.report.counted").vocabulary_text(found)
    put(
        {"path": str(out), **to_builtins(found)},
        f"{table}{out}: say `vocabulary: {out.name}` in a schema file beside it",
        as_json,
    )


@data.command(cls=Command)
@click.argument("source")
@columns_flag("all that are hashed")
@click.option(
    "--most-values",
    default=20_000_000,
    type=click.IntRange(1000),
    help="Hold so many values of a column; beyond, a sample of the rows is looked at. [default: 20000000]",
)
@malformed_flag("the counting; fewer are left out")
@json_flag
def collisions(source: str, columns: str, most_values: int, malformed_share: float, as_json: bool) -> None:
    """Say of each column of ids of SOURCE, csv or parquet data, how many of its values share a row of the table with another, and how many rows are enough.

    \b
    htrain data collisions csv:clicks.csv?schema=schema.yaml
    """
    found = htrain.collisions(source, columns=_names(columns), most_values=most_values, malformed_share=malformed_share)
    put(to_builtins(found), import_module("htrain.report.counted").collisions_text(found), as_json)
