"""The sections `dense` and `sparse` of a cluster file: how dense weights are kept alike, and what stands before the tables.

    dense: {sync: allreduce, bucket_bytes: 1048576}
    sparse:
      store: memory           # mapped: tables in files, larger than memory
      cache: het              # lookahead, none
      capacity: 10%           # of the rows of all tables that share a cache, or a number of rows
      staleness: 100          # HET's s; unbounded for no bound
      policy: light-lfu       # lfu, lru
      window: 64              # batches that a trainer reads ahead
      tables: {C1: 50%, "C2*": none}
      sets: 150000            # lookahead: of each table's cache; the window is in batches, too
      ways: 16
      patch: true             # false: a row that changed after it was prefetched stays as it was read
      device: cpu             # cuda: the cache, and with it the trainer's steps, on its CUDA device
      average: 1              # steps between two averages of what several trainers have changed: cDLRM's lambda
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from htrain.cluster import cluster_entries
from htrain.errors import ClusterError, UsageError
from htrain.options import Options, capacity_rows, parse_count, parse_staleness
from htrain.yaml_file import Entry

_FIELDS: Mapping[str, Mapping[str, str]] = {
    "dense": {"sync": "dense_sync", "bucket_bytes": "bucket_bytes"},
    "sparse": {
        "sync": "sparse_sync", "store": "table_store", "cache": "cache", "capacity": "cache_capacity", "staleness": "cache_staleness",
        "policy": "cache_policy", "window": "cache_window", "tables": "cache_tables",
        "sets": "cache_sets", "ways": "cache_ways", "patch": "cache_patch",
        "average": "cache_average", "device": "cache_device",
    },
}  # fmt: skip
SECTIONS = tuple(_FIELDS)


def load_options(path: Path) -> dict[str, Any]:
    """The fields of Options that a cluster file sets. Raises ClusterError naming file, line and entry.

        """
    found: dict[str, Any] = {}
    for section, known in _FIELDS.items():
        given = cluster_entries(path).get(section)
        if given is None:
            continue
        if not isinstance(given.value, dict):
            raise ClusterError(f"{path}:{given.line}: {section}: want entries such as {{sync: {_example(section)}}}")
        for name, entry in given.mapping().items():
            where = f"{path}:{entry.line}: {section}.{name}"
            if name not in known:
                raise ClusterError(f"{where}: unknown entry; {section} takes {', '.join(known)}")
            found[known[name]] = _value(known[name], entry, where)
    return found


def _example(section: str) -> str:
    return {"dense": "allreduce", "sparse": "ps"}[section]


def _value(field: str, entry: Entry, where: str) -> Any:
    if field == "cache_tables":
        return _tables(entry, where)
    if isinstance(entry.value, list | dict):
        raise ClusterError(f"{where}: want one value")
    text, choices = entry.text, get_args(get_type_hints(Options)[field])
    if choices and text not in choices:
        raise ClusterError(f"{where}: '{text}' is not one of {', '.join(choices)}")
    if field == "cache_capacity":
        return _capacity(text, where)
    if choices:
        return text
    if field == "cache_patch":
        if text not in ("true", "false"):
            raise ClusterError(f"{where}: '{text}' is neither true nor false")
        return text == "true"
    try:
        return parse_staleness(text) if field == "cache_staleness" else parse_count(text)
    except ValueError as error:
        raise ClusterError(f"{where}: {error}") from error


def _capacity(text: str, where: str) -> str:
    try:
        capacity_rows(text, 1, where=where)
    except UsageError as error:
        raise ClusterError(str(error)) from error
    return text


def _tables(entry: Entry, where: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(entry.value, dict) or any(isinstance(c.value, list | dict) for c in entry.value.values()):
        raise ClusterError(f"{where}: want tables and capacities, such as {{C1: 50%, C2: none}}")
    pairs = [(table, capacity.text) for table, capacity in entry.mapping().items()]
    return tuple((t, c if c == "none" else _capacity(c, f"{where}.{t}")) for t, c in pairs)
