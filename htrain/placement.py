"""What tagging decides, as values: the shards of every table, and a device for every module with the rule that chose it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shard:
    """Rows [first_row, first_row + num_rows) of a table, on `device`."""

    table: str
    first_row: int
    num_rows: int
    device: str


@dataclass(frozen=True)
class Decision:
    """Why a module is where it is: the name of the rule and, in words, what it saw."""

    module: str
    device: str
    rule: str
    reason: str


def shard_name(table: str, index: int, count: int) -> str:
    """The parameter that holds shard `index` of `count` of `table`: the table itself when it is whole."""
    return table if count == 1 else f"{table}/{index}"
