"""The section `options` of a cluster file: the tree of options, as plan.yaml has it; what is not said is as by default.

    groups: 2
    options:
      batch_size: 512
      dense_optimizer: {kind: adam, lr: 0.001}
      dense_sync: {kind: easgd, period: 4}
      cache: {kind: het, capacity: 10%, staleness: 100, tables: {C1: 50%, "C2*": none}}
      sparse_optimizer: rowwise_adagrad       # a kind with its defaults

The sections `dense` and `sparse` are an older form of some of these.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from htrain.errors import ClusterError, UsageError
from htrain.spec.cluster import OLDER_SECTIONS, OPTIONS, cluster_entries
from htrain.spec.fields import Field, Section, check, fields_of, is_pairs, parse, parse_in_pair
from htrain.spec.options import Options
from htrain.spec.tree import (
    KIND,
    document_of,
    entries_wanted,
    flag_of,
    options_of,
    questions,
    sections_of,
    unknown_entry,
)
from htrain.spec.yaml_file import Entry

_OLDER: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "dense": {"sync": ("dense_sync", KIND), "bucket_bytes": ("dense_sync", "bucket_bytes")},
    "sparse": {
        "sync": ("sparse_sync", KIND), "store": ("sparse_sync", "store"), "cache": ("cache", KIND),
        **{name: ("cache", name) for name in ("capacity", "staleness", "policy", "window", "tables", "sets", "ways", "patch", "average", "device")},
    },
}  # fmt: skip
_DEFAULTS = (("window", "0"), ("sets", "0"))  # how these were written


def load_options(path: Path) -> Options:
    """The options of a cluster file. Raises ClusterError naming file, line and entry."""
    values = {name: _value(name, entry, path) for name, entry in _document(path).items()}
    try:
        return options_of(values, OPTIONS)
    except UsageError as error:
        raise ClusterError(f"{path}: {error}") from error


def said_in(path: Path) -> set[str]:
    """The flags to which a cluster file gives a value, be it the default. Requires: `load_options` can read the file."""
    found = set()
    for name, entry in _document(path).items():
        if name not in questions() or isinstance(entry.value, str):
            found.add(name)
            continue
        section = _section(name, entry, path)
        known = fields_of(section)
        found |= {name if field == KIND else flag_of(name, known[field]) for field in entry.mapping()}
    return found


def _document(path: Path) -> Mapping[str, Entry]:
    """The entries of the tree that a cluster file gives."""
    entries = cluster_entries(path)
    older = [name for name in OLDER_SECTIONS if name in entries]
    if older and OPTIONS in entries:
        raise ClusterError(
            f"{path}:{entries[older[0]].line}: {older[0]}: an older form of what `options` says too: leave it out"
        )
    return _of_older(path, entries) if older else _mapping(entries.get(OPTIONS), f"{path}", OPTIONS)


def _section(name: str, entry: Entry, path: Path) -> type[Section]:
    """The kind of section that an entry gives: as text, or among its own entries."""
    if isinstance(entry.value, str):
        entry = Entry(entry.line, {KIND: entry})
    kind = entry.mapping()[KIND].text if KIND in entry.mapping() else getattr(Options(), name).kind
    for section in sections_of(name):
        if section.kind == kind:
            return section
    kinds = ", ".join(s.kind for s in sections_of(name))
    raise ClusterError(f"{path}:{entry.mapping()[KIND].line}: {OPTIONS}.{name}.{KIND}: '{kind}' is not one of {kinds}")


def _mapping(entry: Entry | None, path: str, name: str) -> Mapping[str, Entry]:
    if entry is None:
        return {}
    if not isinstance(entry.value, dict):
        raise ClusterError(f"{path}:{entry.line}: {name}: want entries such as {_example(name)}")
    return entry.mapping()


def _example(name: str) -> str:
    return {"dense": "{sync: allreduce}", "sparse": "{sync: ps}"}.get(name, "{batch_size: 512}")


def _of_older(path: Path, entries: Mapping[str, Entry]) -> Mapping[str, Entry]:
    """The document that the sections `dense` and `sparse` stand for."""
    found: dict[str, dict[str, Entry]] = {}
    for section, known in _OLDER.items():
        for name, entry in _mapping(entries.get(section), f"{path}", section).items():
            if name not in known:
                raise ClusterError(
                    f"{path}:{entry.line}: {section}.{name}: unknown entry; {section} takes {', '.join(known)}"
                )
            target, field = known[name]
            if (name, entry.text) not in _DEFAULTS:
                found.setdefault(target, {})[field] = (
                    Entry(entry.line, "unbounded", "unbounded") if entry.text == "-1" else entry
                )
    return {target: Entry(min(e.line for e in fields.values()), fields) for target, fields in found.items()}


def _value(name: str, entry: Entry, path: Path) -> Any:
    """The plain value of an entry of the tree, read as its field wants it."""
    where = f"{path}:{entry.line}: {OPTIONS}.{name}"
    if name not in questions():
        known = fields_of(Options)
        if name not in known:
            raise ClusterError(f"{where}: unknown entry; {OPTIONS} are {', '.join(document_of(Options()))}")
        return _parsed(entry, known[name], where)
    if not isinstance(entry.value, dict) and not (isinstance(entry.value, str) and questions()[name].kinds):
        raise ClusterError(f"{where}: {entries_wanted(name)}")
    section = _section(name, entry, path)
    if isinstance(entry.value, str):
        return entry.value
    found: dict[str, Any] = {}
    for field, value in entry.mapping().items():
        known, place = fields_of(section), f"{path}:{value.line}: {OPTIONS}.{name}.{field}"
        if field == KIND and section.kind:
            found[field] = value.text
        elif field in known:
            found[field] = _parsed(value, known[field], place)
        else:
            raise ClusterError(f"{place}: {unknown_entry(name, section, field)}")
    return found


def _parsed(entry: Entry, field: Field, where: str) -> Any:
    try:
        if is_pairs(field.hint):
            pairs = (
                [(key, parse_in_pair(value.text, field.hint)) for key, value in entry.mapping().items()]
                if isinstance(entry.value, dict)
                else entry.plain()
            )
            return check(pairs, field.hint)
        if isinstance(entry.value, list | dict):
            raise ClusterError(f"{where}: want one value")
        return parse(entry.text, field.hint)
    except ValueError as error:
        raise ClusterError(f"{where}: {error}") from error
