"""Data whose columns can be counted as they stand: of a URI that a schema file describes, or a table in memory."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from htrain.data.address import AnyPath
from htrain.data.described import Watch, open_table
from htrain.data.layout import Layout, load_layout
from htrain.data.reader import Source
from htrain.data.source import format_of, watched
from htrain.data.vocabulary import ReadVocabulary


@dataclass(frozen=True)
class Countable:
    """`name` is what messages call the data; `open` takes what reads vocabularies, or None for their files, and what is told of the rows that come, and gives
    the layout and what is to be read. With `parts_by_ids` which rows are held out follows from their ids."""

    name: str
    open: Callable[[ReadVocabulary | None, Watch], tuple[Layout, Source]]
    parts_by_ids: bool = False


def countable(uri: str) -> Countable:
    """The data of a URI. What opens it raises DataError as `watched` does, and this for a URI that is none."""

    def opened(read: ReadVocabulary | None, watch: Watch) -> tuple[Layout, Source]:
        found: list[Layout] = []

        def layout_at(path: AnyPath) -> Layout:
            found.append(load_layout(path, read))
            return found[0]

        source = watched(uri, layout_at, watch)
        return found[0], source

    return Countable(uri, opened, parts_by_ids="test" in format_of(uri)[1])


def countable_table(
    table: Callable[[Layout], pa.Table], layout: Callable[[ReadVocabulary | None], Layout], name: str
) -> Countable:
    """A table in memory. What opens it raises DataError as `open_table` does."""

    def opened(read: ReadVocabulary | None, watch: Watch) -> tuple[Layout, Source]:
        found = layout(read)
        return found, open_table(table(found), found, name, watch).source

    return Countable(name, opened)
