"""The page of a partition: what its batches fetch beside samples and rows anywhere, from whom, and which rows most. One file, like that of a plan."""

from functools import partial
from pathlib import Path

from htrain.data.partition_file import PartitionFile
from htrain.errors import DataError
from htrain.report.fetches import fetches_of
from htrain.report.rendering import rendered, write_page


def partition_html(made: PartitionFile) -> str:
    """The page of a partition. The same partition gives the same text."""
    return rendered("partition.html", facts=made.facts, fetches=fetches_of(made))


def write_partition_page(made: PartitionFile, path: Path) -> None:
    """Write the page to `path`: whole, or not at all; an older page there is replaced, and nothing else. Raises DataError."""
    write_page(path, partial(partition_html, made), DataError)
