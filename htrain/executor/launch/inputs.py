"""Whether data is what a plan can be run on: its inputs, and the numbers of its rows."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from htrain.data import Dataset, Schema
from htrain.data.schema import Input
from htrain.errors import DataError
from htrain.executor.record.pieces import is_models
from htrain.executor.strategies.strategy import cache_of
from htrain.net.blobs import BATCH_KEY
from htrain.ops.row_numbers import columns_looked_up, rows_by_number, rows_computed
from htrain.plan.plan import Plan
from htrain.spec.sparse_sync import SPARSE_SYNCS


def check_inputs(plan: Plan, dataset: Dataset) -> None:
    """Raises DataError when the data lacks an input of the plan, or has it in another shape."""
    columns = input_columns(dataset)
    for name, wanted in plan.inputs.items():
        if columns.get(name) != wanted:
            given = ", ".join(f"{name} {signature}" for name, signature in columns.items() if name != BATCH_KEY.name)
            seen = columns.get(name, f"no such input, but {given}")
            raise DataError(
                f"{dataset.source.name}: the plan wants input '{name}' as {wanted}, the data has {seen}; a model takes the inputs of its data by their names: "
                "compile it with --data for this data, or change the one or the other"
            )


def check_rows(plan: Plan, dataset: Dataset) -> None:
    """Raises DataError for data of which nobody has said how many rows its tables have, and whose largest id is not in one of the plan's that is looked up by
    it: such ids come with rows that are appended, and with a vocabulary that has grown. What is looked up by numbers that the model computes is left out."""
    known = {item.name: _known_rows(dataset, item) for item in dataset.schema.inputs if item.name in plan.inputs}
    if not any(map(any, known.values())):
        return
    sizes = _rows_of(plan)
    for whole, columns in columns_looked_up(plan.train, known).items():
        rows = sizes.get(whole, 0)
        each = [(known[item][min(column, len(known[item]) - 1)], item) for item, column in columns]
        counted, name = max(each, default=(0, ""))
        if not rows or counted <= rows:
            continue
        if not dataset.ids_are_counted:
            raise DataError(
                f"{dataset.source.name}: the vocabulary of '{name}' has rows up to {counted - 1}, '{whole}' has the rows 0 to {rows - 1} of it: "
                "give the vocabulary that it was compiled with, or compile the model anew, with --data, and start a new run with --out, which may --begin-with "
                "one whose vocabulary this one --extends"
            )
        raise DataError(
            f"{dataset.source.name}: has the id {counted - 1} in '{name}', and '{whole}' has the rows 0 to {rows - 1} of it: leave such "
            "lines out, or compile the model anew, with --data and ?rows=N for all ids that may come, and start a new run with --out"
        )


def _rows_of(plan: Plan) -> dict[str, int]:
    """How many rows each table and weight of the model has, by its name there."""
    sizes: dict[str, int] = {}
    for each in plan.train.parameters.values():
        if is_models(each) and each.shape:
            sizes[each.whole] = max(sizes.get(each.whole, 0), each.first_row + each.shape[0])
    return sizes


def _known_rows(dataset: Dataset, item: Input) -> Sequence[int]:
    """Of each column of an input how many rows its ids have for certain, 0 where any number up to that of its table may come, or none."""
    if dataset.ids_are_counted:
        return item.rows
    return [
        rows if digest else 0
        for rows, digest in zip(item.rows, item.vocabularies or [""] * len(item.rows), strict=True)
    ]


_NO_OTHERS: Mapping[str, Sequence[str]] = {}


def check_vocabularies(
    name: str,
    found: Mapping[str, str],
    wanted: Mapping[str, str],
    *,
    whose: str,
    extends: Mapping[str, Sequence[str]] = _NO_OTHERS,
) -> None:
    """Raises DataError where the vocabularies of data called `name`, by input and column, are not the `wanted` ones of the data `whose`, nor, by what each
    `extends`, begin with them: values would have rows of others."""
    for column in dict.fromkeys((*wanted, *found)):
        if found.get(column) != wanted.get(column) and wanted.get(column, "") not in extends.get(column, ()):
            seen = "has a vocabulary, unlike" if column in found else "has no vocabulary, unlike"
            seen = "has another vocabulary than" if column in found and column in wanted else seen
            cure = ", or one that --extends it" if extends is not _NO_OTHERS and column in wanted else ""
            raise DataError(
                f"{name}: column {column} {seen} the data {whose}: its values would have other rows; give the schema file and vocabulary of that data{cure}"
            )


class Values(Protocol):
    """What says how the values of columns are read: a schema, or what was recorded of one."""

    @property
    def vocabularies(self) -> Mapping[str, str]:
        """Digests by input and column."""

    @property
    def meanings(self) -> "Meanings":
        """Columns and what becomes of their values, by input."""


Meanings = Mapping[str, Sequence[tuple[str, str]]]


def check_meanings(plan: Plan, name: str, found: Meanings, wanted: Meanings, *, whose: str) -> None:
    """Raises DataError where what becomes of the values of data called `name` is not what becomes of those of the data `whose`, as far as both say it
    (`Schema.meanings`), in an input that a plan reads: a weight or a row would be that of other values.

    A column may have another name, but not that of one which stood elsewhere.
    """
    for item in [item for item in wanted if item in found and item in plan.inputs]:
        names = {column for column, _ in wanted[item]}
        for (column, meaning), (other, as_before) in zip(found[item], wanted[item], strict=False):
            if column != other and column in names:
                seen = f"has '{column}' where '{other}' stands in"
            elif meaning and as_before and meaning != as_before:
                seen = f"has '{column}' as {meaning}, and as {as_before} in"
            else:
                continue
            raise DataError(
                f"{name}: input '{item}' {seen} the data {whose}: read it by the schema, or the options, of that"
            )


def check_values(plan: Plan, name: str, found: Values, wanted: Values, *, whose: str) -> None:
    """Raises DataError where data called `name` is not read as the data `whose`; see `check_vocabularies` and `check_meanings`."""
    check_vocabularies(name, found.vocabularies, wanted.vocabularies, whose=whose)
    check_meanings(plan, name, found.meanings, wanted.meanings, whose=whose)


def check_grown(
    plan: Plan, name: str, found: Schema, wanted: Values, *, whose: str, said: frozenset[str] = frozenset()
) -> frozenset[str]:
    """The tables of a plan whose rows are those of the same values in data called `name` as in the data `whose`, as far as that has them: there may be more.
    Of those that are `said` to be such, weights too, it is believed.
    Raises DataError as `check_values` does, but for vocabularies that extend those of that data; then for what may have another row for a value now."""
    check_vocabularies(name, found.vocabularies, wanted.vocabularies, whose=whose, extends=found.extends)
    check_meanings(plan, name, found.meanings, wanted.meanings, whose=whose)
    known = [item for item in found.names if _is_known(found.meanings.get(item, ()), wanted.meanings.get(item, ()))]
    grown = [item.name for item in found.inputs if _has_grown(item, wanted)]
    ids = [item.name for item in found.inputs if item.kind != "dense"]
    computed = [of for of in rows_computed(plan.train, ids) if of not in said] if grown else []
    if computed:
        is_models_own = any(each.whole == computed[0] for each in plan.train.parameters.values())
        or_said = f", or say --grow {computed[0]}, where its first rows are what they were in that run, and the others are new"
        raise DataError(
            f"{name}: input '{grown[0]}' has more values than in the data {whose}, and rows of '{computed[0]}' may be those of others now, as they are not "
            "looked up by ids as they come, or not by these alone: give the vocabulary of that data, or look up each column in a table of its own"
            + (or_said if is_models_own else "")
        )
    return rows_by_number(plan.train, known) | said


def _is_known(found: Sequence[tuple[str, str]], wanted: Sequence[tuple[str, str]]) -> bool:
    """Whether both say what becomes of all values of an input."""
    return len(found) == len(wanted) > 0 and all(meaning for _, meaning in (*found, *wanted))


def _has_grown(item: Input, wanted: Values) -> bool:
    columns = zip(item.columns, item.vocabularies, strict=False)
    return any(wanted.vocabularies.get(f"{item.name}.{column}", "") != digest for column, digest in columns)


def check_numbers(plan: Plan, dataset: Dataset) -> None:
    """Raises DataError where data is numbered by another partition than a plan's tables, or by one where these are by none."""
    wanted, name = cache_of(plan, plan.cluster.roles[0]).partition, dataset.source.name
    if dataset.partition == wanted:
        return
    if not wanted:
        kinds = " or ".join(kind for kind, section in SPARSE_SYNCS.items() if section.beside)
        raise DataError(
            f"{name}: was packed by a partition, its rows have other numbers than the model's: train it with --sparse-sync {kinds}, or give "
            "the data that it was packed from"
        )
    found = (
        f"was packed by another partition (digest {dataset.partition[:12]}, the plan has {wanted[:12]})"
        if dataset.partition
        else "is not packed"
    )
    raise DataError(
        f"{name}: {found}: {plan.options.holder.words} wants htrain data pack DATA --partition FILE, with the partition of the plan"
    )


def input_columns(dataset: Dataset) -> dict[str, str]:
    """The columns of a dataset's batches as `name: dtype[shape]`, as a plan writes them."""
    columns = {"label": "float32[B]", BATCH_KEY.name: "int64[1]"}
    for item in dataset.schema.inputs:
        if item.kind == "dense":
            columns[item.name] = f"float32[B,{item.width}]"
        elif item.kind == "bag":
            columns |= {
                item.name: f"int64[<={item.width if item.width > 1 else ''}B]",
                f"{item.name}_offsets": "int64[B]",
            }
        else:
            columns[item.name] = f"int64[B,{item.width}]"
            columns |= {f"{item.name}_length": "int64[B]"} if item.kind == "padded" else {}
    return columns
