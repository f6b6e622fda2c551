"""The Python API of what comes before a plan: data is divided among workers, packed, and asked what cache it wants.

As by `htrain partition`, `htrain data pack` and `htrain advise`; and what a server gives a model that was trained.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from htrain.advising.advice import Advice, Grid
from htrain.advising.advise import Request as AdviceRequest
from htrain.advising.advise import advise as advise_plan
from htrain.advising.advise import require_trained_table
from htrain.advising.grid import require_grid
from htrain.advising.recording import Listener as DataListener
from htrain.advising.traffic import CONSTANTS
from htrain.compiler.pipeline import compile_net
from htrain.data import open_data
from htrain.data.address import path_of
from htrain.data.collisions import CollisionReport, collisions_of
from htrain.data.countable import Countable, countable, countable_table
from htrain.data.described import inputs_of_table
from htrain.data.draft import Draft, draft_of
from htrain.data.first_rows import FirstRows
from htrain.data.formats.packed import Totals
from htrain.data.malformed import Malformed
from htrain.data.pack import pack as pack_rows
from htrain.data.pack import pack_table
from htrain.data.pack_by_partition import PackedParts, pack_by_partition
from htrain.data.partition_file import PartitionFile
from htrain.data.source import first_rows
from htrain.data.vocabulary_file import Limits, Vocabularies, write_vocabulary
from htrain.errors import UsageError
from htrain.in_memory import arrow_table, layout_for, open_memory, table_of
from htrain.plan.plan import Plan
from htrain.self_check.capture import NO_INPUTS, capture_model, require_parameters
from htrain.simulation.id_sources import Trace
from htrain.spec.arguments import require_arguments
from htrain.spec.cache import CACHES, NoCache
from htrain.spec.cluster import Cluster, validated
from htrain.spec.options import Options
from htrain.spec.settings import MOST_ACCESSES, MostAccesses, SchemaOf
from htrain.spec.tree import checked
from htrain.tagging.bigraph import Request
from htrain.tagging.bigraph import at_random as divided_at_random
from htrain.tagging.bigraph import partition as search
from htrain.tagging.bigraph.divide import Listener, divide


def partition(
    data: str,
    *,
    out: str | Path,
    num_workers: int,
    batch_size: int,
    hosts: Sequence[int] = (),
    link_cost: float = 10.0,
    replicas: float = 0.0,
    sample_slack: float = 1.03,
    row_slack: float = 1.05,
    seed: int = 0,
    begin_with: str | Path = "",
    at_random: bool = False,
    malformed_share: float = 0.01,
    on_step: Callable[[str], None] = lambda what: None,
) -> PartitionFile:
    """Divide the examples and rows of `data`, FORMAT:PATH, among workers, so that a batch of `batch_size` needs few rows of others (HET-GMP 5.2), and write
    that to the file `out`. The same for the same data and arguments, whatever the number of threads.

    hosts[g] workers stand on host g, in order of their numbers, and a row of another host costs as much as `link_cost` of the own; without `hosts`, all are on
    one. Each worker may hold replicas of the share `replicas` of all rows seen, and has at most `sample_slack` times its even share of the examples and
    `row_slack` times that of the rows. The search begins from the owners of an older partition, `begin_with`; with `at_random` nothing is searched for.

    Raises DataError for data that cannot be read or partitioned, an older partition that does not belong, and an `out` that cannot be written, UsageError for
    arguments that make no sense.

        import htrain

        divided = htrain.partition("packed:train.packed", out="train.partition", num_workers=2, batch_size=128)
        facts = divided.facts
        print(f"a batch needs {facts.rows_per_batch:.0f} rows of others, and {facts.scattered_rows:.0f} at random")
    """
    require_arguments(
        "partition", data=data, out=out, num_workers=num_workers, batch_size=batch_size, hosts=hosts, link_cost=link_cost, replicas=replicas,
        sample_slack=sample_slack, row_slack=row_slack, seed=seed, begin_with=begin_with, at_random=at_random, malformed_share=malformed_share,
    )  # fmt: skip
    if begin_with and at_random:
        raise UsageError("partition: begin_with= has no effect with at_random=True, which searches for nothing")
    if hosts and sum(hosts) != num_workers:
        raise UsageError(
            f"partition: hosts: {list(hosts)} are not the {num_workers} workers: say how many stand on each"
        )
    of_hosts = tuple(hosts) if len(hosts) > 1 else ()
    return divide(
        data,
        Path(out),
        Request(num_workers, batch_size, sample_slack, row_slack, seed, of_hosts, link_cost if of_hosts else 1.0),
        old=Path(begin_with) if begin_with else None,
        replicated=replicas,
        malformed=Malformed(malformed_share),
        listener=Listener(lambda number, total: None, on_step),
        way=divided_at_random if at_random else search,
    )


def pack(
    data: Any,
    *,
    out: str | Path,
    schema: SchemaOf = "",
    partition: str | Path = "",
    malformed_share: float = 0.01,
) -> Totals | PackedParts:
    """Parse `data`, FORMAT:PATH, once, and write its rows to the file `out`, which is read many times as fast, as `packed:OUT`.

    `data` may be a table in memory: an Arrow table, a DataFrame of pandas or Polars, or whatever else gives its columns as Arrow does; `schema`, a schema
    file or what one holds (docs/how-to/describe-data.md), says which columns are what. Or it may be what such tables come from, one after another: an iterable
    of dicts of arrays or tensors by the names of columns (a DataLoader of PyTorch), of Arrow record batches or of DataFrames; or of examples, which are dicts
    of values (a Dataset of PyTorch). It is read once, and not held.

    By a `partition`, each worker's examples are apart, rows have the numbers that it gives them, and what batches need of others is counted beside what was
    predicted. Raises DataError for data that cannot be read, a partition that does not belong, and an `out` that cannot be written, UsageError for arguments
    that have no effect.

        import htrain

        for part in ("train", "test"):
            totals = htrain.pack(f"parquet:{part}.parquet?schema=schema.yaml", out=f"{part}.packed")
            print(f"{part}: {totals.examples} examples, {totals.malformed} malformed")
    """
    malformed = Malformed(malformed_share)
    if not isinstance(data, str):
        require_arguments("pack", out=out, malformed_share=malformed_share)
        if partition:
            raise UsageError("pack: partition= has no effect on a table in memory: a partition is of FORMAT:PATH")
        return pack_table(open_memory("pack", data, schema), Path(out), malformed)
    require_arguments("pack", data=data, out=out, partition=partition, malformed_share=malformed_share)
    if schema:
        raise UsageError("pack: schema= has no effect beside FORMAT:PATH: say ?schema=FILE.yaml")
    if partition:
        return pack_by_partition(data, Path(partition), Path(out), malformed=malformed)
    return pack_rows(data, Path(out), malformed=malformed)


def features(data: Any, *, schema: SchemaOf) -> dict[str, NDArray[Any]]:
    """The inputs that a model gets of the rows of a table in memory, by name: what a server gives to an exported model.

    `data` and `schema` are as for `pack`: ids are hashed, numbers transformed and lists padded as in training; the label's column may be missing. Arrays are
    as in docs/how-to/describe-data.md: float32 and int64, with an entry for each row, or for each id of a bag.

    Raises UsageError for what is no table, DataError for a schema that cannot be read, a table that does not fit, and the first row that cannot be read.

        import onnxruntime
        import pyarrow as pa

        import htrain

        table = pa.table({"user": ["u17"], "item": [4], "price": [9.5]})
        session = onnxruntime.InferenceSession("model.onnx")
        (scores,) = session.run(["score"], htrain.features(table, schema="schema.yaml"))
    """
    return inputs_of_table(*table_of("features", data, schema))


def describe(data: Any, *, label: str = "", rows: int = 1_000_000) -> Draft:
    """Draft the schema of `data` from what its first `rows` rows look like: csv or parquet (`FORMAT:PATH`), or a table in memory that Arrow takes.

    Its `text` is a schema file, which says beside each column what was seen there, for a person to look over; `schema=` takes what it holds, too. The label
    is the column of that name; without, that of 0 and 1 which is called as labels are, or the only one.

    Raises DataError for data that cannot be read, and where it is not clear which column is the label, UsageError for arguments out of bounds, and for what
    is no table.

        from pathlib import Path

        import htrain

        draft = htrain.describe("parquet:train.parquet", label="click")
        Path("schema.yaml").write_text(draft.text)
    """
    require_arguments("describe", label=label, rows=rows)
    if isinstance(data, str):
        return draft_of(first_rows(data, rows), label=label, name=data)
    kind = type(data).__name__
    table = arrow_table("describe", data, None, "FORMAT:PATH, or a table")
    return draft_of(
        FirstRows(table.slice(0, rows), table.num_rows <= rows, {}), label=label, name=f"a {kind} in memory"
    )


def vocabulary(
    data: Any,
    *,
    out: str | Path,
    schema: SchemaOf = "",
    min_count: int = 1,
    most: int = 0,
    columns: Sequence[str] = (),
    together: Sequence[Sequence[str]] = (),
    extends: str | Path = "",
    malformed_share: float = 0.01,
) -> Vocabularies:
    """Count the values of the columns of ids of `data` and write vocabularies of them to `out`, a Parquet file, for `vocabulary: OUT` in a schema file: the
    values that come at least `min_count` times, of each column at most `most` (0: all), the most frequent first, and of the same count by their bytes.

    `data` is csv or parquet (`FORMAT:PATH`), or a table in memory with its `schema`, as for `pack`. Without `columns` they are those that the schema has a
    vocabulary for, all of ids where it has none. Columns named `together` are counted as one, so that a value has the same row in each. Values of the file that
    it `extends` keep their rows, and others come behind them: a plan that is compiled for the new file may begin with a run on the old one.

    Raises DataError for data that cannot be read, columns that are none of ids, and an `out` that cannot be written, UsageError for arguments out of bounds.

        import htrain

        counted = htrain.vocabulary("parquet:train.parquet?schema=schema.yaml", out="vocabulary.parquet", min_count=2)
        for column in counted.columns:
            print(f"{column.column}: {column.kept} of {column.distinct} values are kept")
    """
    counted = _countable("vocabulary", data, schema)
    require_arguments(
        "vocabulary", out=out, min_count=min_count, most=most, columns=columns, together=together, extends=extends,
        malformed_share=malformed_share,
    )  # fmt: skip
    return write_vocabulary(
        counted,
        Path(out),
        limits=Limits(min_count, most),
        columns=columns,
        together=together,
        malformed=Malformed(malformed_share),
        extends=path_of(str(extends)) if extends else None,
    )


def collisions(
    data: Any,
    *,
    schema: SchemaOf = "",
    columns: Sequence[str] = (),
    most_values: int = 20_000_000,
    malformed_share: float = 0.01,
) -> CollisionReport:
    """Say of the columns of ids of `data` that are hashed, or of `columns`, how many of their values share a row of the table with another, how many examples
    have such a value, and how many rows would be enough. Up to `most_values` values of a column are held; beyond, a sample of the rows is looked at, and the
    report says so. `data` is csv or parquet (`FORMAT:PATH`), or a table in memory with its `schema`, as for `pack`.

    Raises DataError for data that cannot be read, and columns that are none of ids or have a vocabulary, UsageError for arguments out of bounds.

        import htrain

        report = htrain.collisions("parquet:train.parquet?schema=schema.yaml")
        for column in report.columns:
            print(f"{column.column}: {column.sharing:.1%} of {column.distinct} values share a row")
    """
    counted = _countable("collisions", data, schema)
    require_arguments("collisions", columns=columns, most_values=most_values, malformed_share=malformed_share)
    return collisions_of(counted, columns=columns, most_values=most_values, malformed=Malformed(malformed_share))


def _countable(function: str, data: Any, schema: SchemaOf) -> Countable:
    """Data that is counted. Raises UsageError for what is none."""
    if isinstance(data, str):
        require_arguments(function, data=data)
        if schema:
            raise UsageError(f"{function}: schema= has no effect beside FORMAT:PATH: say ?schema=FILE.yaml")
        return countable(data)
    return countable_table(
        lambda layout: arrow_table(function, data, layout.columns, "FORMAT:PATH, or a table"),
        lambda read: layout_for(function, data, schema, read),
        f"a {type(data).__name__} in memory",
    )


def advise(
    data: str,
    *,
    model: str | Path | nn.Module,
    cluster: Cluster = Cluster(),  # noqa: B008  frozen
    options: Options = Options(),  # noqa: B008  frozen
    grid: Grid = Grid(),  # noqa: B008  frozen
    epochs: int = 1,
    most_accesses: MostAccesses = MOST_ACCESSES,
    example_inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    logit: str | int = "",
    label: str = "",
    on_examples: Callable[[int, int], None] = lambda number, total: None,
    on_step: Callable[[str], None] = lambda what: None,
) -> Advice:
    """What cache a model wants on the data `data`, FORMAT:PATH: hit rates by policy, capacity, staleness and window beside
    Belady's bound, bytes of an example, and what links allow. The knee is recommended, under the staleness of the cache
    of `options`.

    The data is read once. Of more than `most_accesses` distinct rows of batches, a sample of the rows is kept;
    `all` keeps all. The caches are those of all trainers of `cluster`, which train for `epochs` passes; the later half of the
    batches counts. Raises DataError for data that cannot be read, does not fit the model or has no batches, UsageError
    for settings that no cache can have, and what `htrain.compile` raises for the model.

        import htrain

        advice = htrain.advise("packed:train.packed", model="models/wide_deep.py")
        best = advice.recommended
        print(f"{best.setting.capacity} by {best.setting.policy}: {best.share.hit_rate:.0%} of rows are in the cache")
    """
    require_arguments(
        "advise", data=data, cluster=cluster, options=options, epochs=epochs, most_accesses=most_accesses,
        example_inputs=example_inputs, logit=logit, label=label,
    )  # fmt: skip
    asked = checked(options)
    options, grid = require_grid(_cached(asked), grid)
    cluster = validated(vars(cluster), where="the cluster")
    dataset = open_data(data)
    found = capture_model(
        model, schema=dataset.schema, example_inputs=example_inputs, logit=logit, label=label, loss=options.loss
    )
    require_parameters(found.captured.net, asked, cluster, {})

    def compiled(options: Options) -> Plan:
        return compile_net(found.captured, cluster, options, name=found.name)

    total = dataset.num_examples()
    uncached = compiled(replace(options, cache=NoCache()))
    # Before a cache is compiled that the user may not have asked for, and is told has no effect.
    require_trained_table(uncached)
    advice = advise_plan(
        compiled(options),
        uncached,
        Trace(data),
        AdviceRequest(grid, epochs, math.inf if most_accesses == "all" else most_accesses),
        DataListener(lambda number: on_examples(min(number, total) if total else number, total), on_step),
    )
    constants = {name: getattr(advice.cluster, name) for name in CONSTANTS}
    return replace(advice, cluster=replace(cluster, **constants), options=replace(options, cache=advice.options.cache))


def _cached(options: Options) -> Options:
    """The options with a cache whose hits data tells: their own, or where they have none the first kind that is such a one."""
    usual = next(kind for kind in CACHES.values() if kind.hits_as_given)
    return options if options.cache != NoCache() else replace(options, cache=usual())
