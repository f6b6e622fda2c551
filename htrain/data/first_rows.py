"""The first rows of files whose columns nobody has described, as tables of what they hold."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from htrain.errors import DataError


@dataclass(frozen=True)
class FirstRows:
    """The first rows of data. `is_all` says that there are no more; `largest` is, of some columns, the largest whole number of all rows."""

    table: pa.Table
    is_all: bool
    largest: dict[str, int]


def joined(parts: Sequence[FirstRows], name: str) -> FirstRows:
    """The rows of files, one after another. Raises DataError where a column is of another type in one."""
    try:
        table = pa.concat_tables([part.table for part in parts], promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{name}: its files have other columns: {' '.join(str(error).split())}") from error
    largest = {
        column: max(part.largest[column] for part in parts)
        for column in parts[0].largest
        if all(column in part.largest for part in parts)
    }
    return FirstRows(table, all(part.is_all for part in parts), largest)
