"""Cluster: how many devices of each role there are and what one of them can do; from YAML or flags, validated.

A flat file: every key of it is a field of `Cluster`, and a flag of `htrain compile`.

    groups: 2               # dense replicas
    trainers: 2             # per group
    group_ps: 2             # per group; 0: the one trainer of a group holds the dense parameters (EASGD, HT 2.2)
    sparse_ps: 2
    dense_ps: 1
    sparse_ps_memory: 512GiB
    pin: {bottom.*: "group_ps:0", C1: "sparse_ps:1"}     # modules and tables, by name or pattern
    together: [[top.0, top.2]]                           # modules that share a device, whichever it is

The section `options` of the file says how to train: see `htrain.spec.cluster_file`.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, ValidationError

from htrain.decoding import converted
from htrain.errors import ClusterError
from htrain.net.names import DENSE_PS, GROUP_PS, SPARSE_PS, TRAINER, Device, Role, role_of
from htrain.spec.fields import about, check, fields_of, parse, wanted
from htrain.spec.footprint import ROLE_BYTES
from htrain.spec.machine import core_limit, memory_limit
from htrain.spec.yaml_file import Entry, read_yaml

GIB = 1024**3


Count = Annotated[int, Meta(ge=1, le=1_000)]
Many = Annotated[int, Meta(ge=0, le=10_000)]
Few = Annotated[int, Meta(ge=0, le=1_000)]
Cores = Annotated[int, Meta(ge=1, le=1_000_000)]
Size = Annotated[int, Meta(ge=1, le=2**62, extra={"wanted": "a size such as 512GiB or 25Gbit/s"})]
Number = Annotated[int, Meta(ge=1, le=2**62)]
Percent = Annotated[int, Meta(ge=0, le=100)]


@dataclass(frozen=True)
class Cluster:
    """Devices by role. Memory is in bytes, bandwidth in bytes per second each way; cores and the rates are per device.

    Names that begin with `core_` say what one core does in a second, those that begin with `op_` and `message_` what each costs;
    `htrain calibrate` measures them on a host.

    `pin` are pairs of a pattern and the device for the modules and tables that it matches; `together` are patterns whose modules share
    a device.
    """

    groups: Annotated[Annotated[int, Meta(ge=1, le=10_000)], about("Dense replicas.")] = 1
    trainers: Annotated[Count, about("Trainers of each group.")] = 1
    group_ps: Annotated[
        Few, about("Group PSs of each group; with 0, the one trainer of a group holds the dense weights.")
    ] = 1
    sparse_ps: Annotated[
        Many, about("Sparse PSs, which serve all groups; with 0, the one trainer holds the tables.")
    ] = 1
    sparse_ps_processes: Annotated[
        Count,
        about(
            "Processes of a sparse PS, over the same tables: each serves a share of the steps under a Python lock of its own."
        ),
    ] = 1
    dense_ps: Annotated[Few, about("Dense PSs, which hold the centre of all groups.")] = 1
    trainer_cores: Annotated[Cores, about("Cores of a trainer.")] = 18
    group_ps_cores: Annotated[Cores, about("Cores of a group PS.")] = 18
    sparse_ps_cores: Annotated[Cores, about("Cores of a sparse PS.")] = 18
    dense_ps_cores: Annotated[Cores, about("Cores of a dense PS.")] = 18
    trainer_memory: Annotated[Size, about("Memory of a trainer.")] = 64 * GIB
    group_ps_memory: Annotated[Size, about("Memory of a group PS.")] = 64 * GIB
    sparse_ps_memory: Annotated[Size, about("Memory of a sparse PS.")] = 256 * GIB
    dense_ps_memory: Annotated[Size, about("Memory of a dense PS.")] = 64 * GIB
    trainer_bandwidth: Annotated[Size, about("Bytes per second that come to, and that leave, a trainer.")] = (
        3_125_000_000
    )
    group_ps_bandwidth: Annotated[Size, about("Bytes per second that come to, and that leave, a group PS.")] = (
        3_125_000_000
    )
    sparse_ps_bandwidth: Annotated[Size, about("Bytes per second that come to, and that leave, a sparse PS.")] = (
        3_125_000_000
    )
    dense_ps_bandwidth: Annotated[Size, about("Bytes per second that come to, and that leave, a dense PS.")] = (
        3_125_000_000
    )
    host_cores: Annotated[
        Cores | Literal["own"], about("Cores that all roles share, as on one machine; own where each has its own.")
    ] = "own"
    python_lock: Annotated[bool, about("Whether the threads of a role share a lock, as Python's do.")] = True
    core_flops: Annotated[Size, about("Flops of a large float32 FC.")] = 60_000_000_000
    core_bf16_flops: Annotated[Size, about("Flops of a bfloat16 FC, its conversions included.")] = 60_000_000_000
    core_int8_flops: Annotated[Size, about("Flops of an int8 FC, its conversions included.")] = 60_000_000_000
    core_batched_flops: Annotated[Size, about("Flops of many small GEMMs, as in DLRM's interaction.")] = 10_000_000_000
    gemm_half_size: Annotated[Number, about("A GEMM whose smallest side this is reaches half of those flops.")] = 16
    core_bandwidth: Annotated[Size, about("Bytes that elementwise ops read and write.")] = 8_000_000_000
    core_gather_bandwidth: Annotated[Size, about("Bytes of rows looked up at random.")] = 4_000_000_000
    core_scatter_bandwidth: Annotated[Size, about("Bytes of rows updated at random.")] = 2_000_000_000
    core_quantize_bandwidth: Annotated[Size, about("Bytes of float32 quantized or restored.")] = 2_000_000_000
    core_key_nanoseconds: Annotated[Number, about("Time to find a key in the index of a large cache.")] = 60
    op_nanoseconds: Annotated[Number, about("Time to start an op.")] = 6_000
    message_nanoseconds: Annotated[Number, about("CPU of a message at each end.")] = 40_000
    message_tensor_nanoseconds: Annotated[Number, about("CPU of each tensor in it, at each end.")] = 8_000
    message_bandwidth: Annotated[Size, about("Bytes of messages for a second of CPU at each end.")] = 4_000_000_000
    distinct_percent: Annotated[
        Annotated[int, Meta(ge=1, le=100)],
        about("How many of a batch's ids of a table are distinct; 100 where nothing is known."),
    ] = 100
    cache_hit_percent: Annotated[
        Percent, about("How many of a batch's distinct rows a HET cache holds and may still read.")
    ] = 75
    pin: tuple[tuple[str, str], ...] = ()
    together: tuple[tuple[str, ...], ...] = ()

    @property
    def shared_cores(self) -> int | None:
        """The cores that all roles share; None where each has its own."""
        return None if self.host_cores == "own" else self.host_cores

    def memory_of(self, device: str) -> int:
        """Memory of a device such as `sparse_ps:3`, in bytes."""
        return int(getattr(self, f"{role_of(device)}_memory"))

    def cores_of(self, device: str) -> int:
        """Cores of a device such as `sparse_ps:3`."""
        return int(getattr(self, f"{role_of(device)}_cores"))

    def bandwidth_of(self, device: str) -> int:
        """Bandwidth of a device such as `sparse_ps:3`, in bytes per second."""
        return int(getattr(self, f"{role_of(device)}_bandwidth"))

    def processes_of(self, device: str) -> int:
        """Processes of each role of a device."""
        return self.sparse_ps_processes if role_of(device) == SPARSE_PS else 1

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that a net can be placed on: one trainer and the group PSs stand for those of every group."""
        ps = (Device(kind, k) for kind in (GROUP_PS, SPARSE_PS, DENSE_PS) for k in range(getattr(self, kind)))
        return (TRAINER, *map(str, ps))

    @property
    def roles(self) -> tuple[str, ...]:
        """Every role of a run: `trainer:G:I`, `group_ps:G:K`, `sparse_ps:K`, `dense_ps:K`."""
        inner = (
            Role(kind, number, group)
            for group in range(self.groups)
            for kind, count in ((TRAINER, self.trainers), (GROUP_PS, self.group_ps))
            for number in range(count)
        )
        outer = (Role(kind, number) for kind in (SPARSE_PS, DENSE_PS) for number in range(getattr(self, kind)))
        return tuple(map(str, (*inner, *outer)))


def cores_here() -> int:
    """The cores of this machine, as far as this process may use them."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(own, core_limit())))


def this_machine(**counts: Any) -> Cluster:
    """A cluster of this machine's roles: they share its cores and memory evenly, as far as this process may use them; messages cross the loopback."""
    cluster = validated(counts, where="the cluster")
    # Imported where it is asked: a tenth of the time that `htrain --help` takes
    memory = int(min(import_module("psutil").virtual_memory().total, memory_limit()))
    spare = max(0, memory - ROLE_BYTES)
    share = ROLE_BYTES + spare // max(1, len(cluster.roles))  # as threads they are one process
    cores = cores_here()
    kinds = (TRAINER, GROUP_PS, SPARSE_PS, DENSE_PS)
    limits: dict[str, Any] = {
        f"{kind}_{what}": value
        for kind in kinds
        for what, value in (("cores", cores), ("memory", share), ("bandwidth", 10**9))
    }
    limits["host_cores"] = cores
    limits = {name: value for name, value in limits.items() if name not in counts}
    return replace(cluster, **limits)


def load_cluster(path: Path, overrides: Mapping[str, Any]) -> Cluster:
    """The cluster of a YAML file, `overrides` on top. Raises ClusterError naming file, line and field."""
    values: dict[str, Any] = {}
    for field, entry in cluster_entries(path).items():
        where = f"{path}:{entry.line}"
        if field in (OPTIONS, HOSTS, *OLDER_SECTIONS):
            continue
        if field in _CONSTRAINTS:
            values[field] = _constraint(field, entry.plain(), where=where)
        else:
            values[field] = parse_field(field, _older(field, entry.text), where=where)
    return validated({**values, **overrides}, where=str(path))


def cluster_entries(path: Path) -> Mapping[str, Entry]:
    """The entries of a cluster file. Raises ClusterError."""
    document = read_yaml(
        path, ClusterError, missing="; give a cluster file, or leave --cluster out to use this machine"
    )
    if not isinstance(document.value, dict):
        raise ClusterError(f"{path}:1: want 'field: value' lines such as 'groups: 2'")
    return document.mapping()


OPTIONS, HOSTS = "options", "hosts"  # the latter is about a run (htrain.spec.hosts_file)
OLDER_SECTIONS = ("dense", "sparse")
_OLDER_WORDS = {("host_cores", "0"): "own", ("python_lock", "0"): "false", ("python_lock", "1"): "true"}


def _older(field: str, text: str) -> str:
    """The field's value as plans before version 15 wrote it."""
    return _OLDER_WORDS.get((field, text), text)


_CONSTRAINTS = {"pin": "a mapping of modules to devices", "together": "a list of lists of modules"}


def _constraint(name: str, value: object, *, where: str) -> tuple[tuple[str, ...], ...]:
    """The pairs of `pin`, or the lists of `together`, checked for their form."""
    lists = list(value.items()) if name == "pin" and isinstance(value, dict) else value
    try:
        return converted(lists, tuple[tuple[str, str], ...] if name == "pin" else tuple[tuple[str, ...], ...])
    except ValidationError as error:
        example = "pin: {top.0: 'group_ps:1'}" if name == "pin" else "together: [[top.0, top.2]]"
        raise ClusterError(f"{where}: {name}: want {_CONSTRAINTS[name]}, such as {example}") from error


def _checked(name: str, value: Any, *, where: str) -> Any:
    if name in _CONSTRAINTS:
        return _constraint(name, value, where=where)
    try:
        return check(value, fields_of(Cluster)[name].hint)
    except ValueError as error:
        raise ClusterError(f"{where}: {name}: {error}") from error


NUMBERS = tuple(fields_of(Cluster))


def is_rate(field: str) -> bool:
    """Whether a field is one that `htrain calibrate` measures."""
    return field.startswith(("core_", "op_", "message_", "gemm_", "distinct_"))


def validated(values: Mapping[str, Any], *, where: str) -> Cluster:
    """A cluster of `values`. Raises ClusterError for what is no field, out of bounds, or contradicts another."""
    for name in values.keys() - {*NUMBERS, *_CONSTRAINTS}:
        raise ClusterError(f"{where}: unknown field '{name}'; the fields are {', '.join((*NUMBERS, *_CONSTRAINTS))}")
    cluster = replace(Cluster(), **{name: _checked(name, value, where=where) for name, value in values.items()})
    if cluster.groups * (cluster.trainers + cluster.group_ps) > _MOST_ROLES:
        raise ClusterError(
            f"{where}: {cluster.groups:,} groups of {cluster.trainers} trainers and {cluster.group_ps} group PSs are more than {_MOST_ROLES:,} roles"
        )
    if cluster.group_ps == 0 and cluster.trainers > 1:
        raise ClusterError(
            f"{where}: {cluster.trainers} trainers share one dense replica, which needs group_ps >= 1; or have trainers: 1 and more groups"
        )
    for pattern, device in cluster.pin:
        known = [d for d in cluster.devices if role_of(d) != DENSE_PS]
        if device not in known:
            raise ClusterError(f"{where}: pin '{pattern}': '{device}' is not one of {', '.join(known)}")
    return cluster


_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_BITS = {"KBIT/S": 10**3, "MBIT/S": 10**6, "GBIT/S": 10**9}
_MOST_ROLES = 100_000  # names of roles are made one by one: a slip of the finger must not fill the memory


def parse_field(name: str, text: str, *, where: str) -> Any:
    """The value of a field written as text: a count, a word, or a size such as `512GiB` or `25Gbit/s`. Raises ClusterError."""
    if name not in NUMBERS:
        raise ClusterError(
            f"{where}: unknown field '{name}'; the fields are {', '.join((*NUMBERS, *_CONSTRAINTS, OPTIONS, HOSTS))}"
        )
    hint = fields_of(Cluster)[name].hint
    number = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:[eE][0-9]+)?)\s*([A-Za-z/]*)", text.strip().replace("_", ""))
    try:
        return check(_number(number, sized=is_size(name)), hint) if number else parse(text, hint)
    except (ValueError, OverflowError) as error:
        shown = f"'{text}' is not {wanted(hint)}"
        raise ClusterError(f"{where}: {name}: {shown}") from error


def is_size(field: str) -> bool:
    """Whether a field is a number of bytes or flops, which may be written with a unit."""
    return field.endswith(("memory", "bandwidth", "flops"))


def _number(match: re.Match[str], *, sized: bool) -> int:
    """A number with its unit. Raises ValueError for a unit that is none, or a part of one."""
    unit = match.group(2).upper()
    value = float(match.group(1)) * (_UNITS.get(unit.removesuffix("/S"), 0) or _BITS.get(unit, 0) / 8)
    if (not value and float(match.group(1))) or (unit and not sized) or value != int(value):
        raise ValueError(unit)
    return int(value)
