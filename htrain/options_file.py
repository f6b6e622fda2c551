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

import yaml

from htrain.errors import ClusterError, UsageError
from htrain.options import UNBOUNDED, Options, capacity_rows

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

    Requires: a file that `htrain.cluster.load_cluster` has read.
    """
    document = yaml.compose(path.read_text(), Loader=yaml.SafeLoader)
    assert isinstance(document, yaml.MappingNode)
    found: dict[str, Any] = {}
    for key, section in document.value:
        if key.value not in _FIELDS:
            continue
        known = _FIELDS[key.value]
        if not isinstance(section, yaml.MappingNode):
            raise ClusterError(f"{path}:{key.start_mark.line + 1}: {key.value}: want entries such as {{sync: {_example(key.value)}}}")
        for entry, value in section.value:
            where = f"{path}:{entry.start_mark.line + 1}: {key.value}.{entry.value}"
            if entry.value not in known:
                raise ClusterError(f"{where}: unknown entry; {key.value} takes {', '.join(known)}")
            found[known[entry.value]] = _value(known[entry.value], value, where)
    return found


def _example(section: str) -> str:
    return {"dense": "allreduce", "sparse": "ps"}[section]


def _value(field: str, node: yaml.Node, where: str) -> Any:
    if field == "cache_tables":
        return _tables(node, where)
    if not isinstance(node, yaml.ScalarNode):
        raise ClusterError(f"{where}: want one value")
    text, choices = str(node.value), get_args(get_type_hints(Options)[field])
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
    if field == "cache_staleness" and text == "unbounded":
        return UNBOUNDED
    if not text.isdecimal() or len(text) > 9:
        raise ClusterError(f"{where}: '{text}' is not a whole number{' or unbounded' if field == 'cache_staleness' else ''}")
    return int(text)


def _capacity(text: str, where: str) -> str:
    try:
        capacity_rows(text, 1, where=where)
    except UsageError as error:
        raise ClusterError(str(error)) from error
    return text


def _tables(node: yaml.Node, where: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(node, yaml.MappingNode):
        raise ClusterError(f"{where}: want tables and capacities, such as {{C1: 50%, C2: none}}")
    pairs = [(str(table.value), str(capacity.value)) for table, capacity in node.value]
    return tuple((t, c if c == "none" else _capacity(c, f"{where}.{t}")) for t, c in pairs)
