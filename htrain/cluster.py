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

The sections `dense` and `sparse` of the file are options: see `htrain.options_file`.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import psutil
from msgspec import ValidationError, convert

from htrain.errors import ClusterError
from htrain.footprint import ROLE_BYTES
from htrain.yaml_file import Entry, read_yaml

GIB = 1024**3


@dataclass(frozen=True)
class Cluster:
    """Devices by role. Memory is in bytes, bandwidth in bytes per second each way; cores and the rates are per device.

    Names that begin with `core_` say what one core does in a second, those that begin with `op_` and `message_` what each costs;
    `htrain calibrate` measures them on a host. A GEMM reaches half of `core_flops` when its smallest dimension is
    `gemm_half_size`. `host_cores` is the number of cores that all roles share, as on one machine; 0 where each has its own. `python_lock` is 0 for
    an interpreter whose threads share no lock.

    `distinct_percent` says how many of the ids that a batch asks a table for are distinct: 100 where nothing is known of the data but the
    number of rows. `cache_hit_percent` says how many of a batch's distinct rows a cache holds and may still read.

    `pin` are pairs of a pattern and the device for the modules and tables that it matches; `together` are patterns whose modules share
    a device.
    """

    groups: int = 1
    trainers: int = 1
    group_ps: int = 1
    sparse_ps: int = 1
    dense_ps: int = 1
    trainer_cores: int = 18
    group_ps_cores: int = 18
    sparse_ps_cores: int = 18
    dense_ps_cores: int = 18
    trainer_memory: int = 64 * GIB
    group_ps_memory: int = 64 * GIB
    sparse_ps_memory: int = 256 * GIB
    dense_ps_memory: int = 64 * GIB
    trainer_bandwidth: int = 3_125_000_000
    group_ps_bandwidth: int = 3_125_000_000
    sparse_ps_bandwidth: int = 3_125_000_000
    dense_ps_bandwidth: int = 3_125_000_000
    host_cores: int = 0
    python_lock: int = 1
    core_flops: int = 60_000_000_000  # of a large fp32 GEMM
    core_bf16_flops: int = 60_000_000_000
    core_int8_flops: int = 60_000_000_000
    core_batched_flops: int = 10_000_000_000  # of many small GEMMs, as in DLRM's interaction
    gemm_half_size: int = 16
    core_bandwidth: int = 8_000_000_000  # bytes read and written by an elementwise op
    core_gather_bandwidth: int = 4_000_000_000  # bytes of rows read at random
    core_scatter_bandwidth: int = 2_000_000_000  # bytes of rows updated at random
    core_quantize_bandwidth: int = 2_000_000_000  # bytes of fp32 converted
    op_nanoseconds: int = 6_000  # to start an op
    message_nanoseconds: int = 40_000  # CPU of one message, sender and receiver each
    message_tensor_nanoseconds: int = 8_000  # CPU of each tensor in it, sender and receiver each
    message_bandwidth: int = 4_000_000_000  # bytes that a core takes to or from a socket
    distinct_percent: int = 100
    cache_hit_percent: int = 75
    pin: tuple[tuple[str, str], ...] = ()
    together: tuple[tuple[str, ...], ...] = ()

    def memory_of(self, device: str) -> int:
        """Memory of a device such as `sparse_ps:3`, in bytes."""
        return int(getattr(self, f"{role_of(device)}_memory"))

    def cores_of(self, device: str) -> int:
        return int(getattr(self, f"{role_of(device)}_cores"))

    def bandwidth_of(self, device: str) -> int:
        return int(getattr(self, f"{role_of(device)}_bandwidth"))

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that a net can be placed on: one trainer and the group PSs stand for those of every group."""
        ps = [f"{role}:{k}" for role in ("group_ps", "sparse_ps", "dense_ps") for k in range(getattr(self, role))]
        return ("trainer", *ps)

    @property
    def roles(self) -> tuple[str, ...]:
        """Every role of a run: `trainer:G:I`, `group_ps:G:K`, `sparse_ps:K`, `dense_ps:K`."""
        inner = [
            f"{role}:{g}:{i}"
            for g in range(self.groups)
            for role, n in (("trainer", self.trainers), ("group_ps", self.group_ps))
            for i in range(n)
        ]
        return (
            *inner,
            *(f"sparse_ps:{k}" for k in range(self.sparse_ps)),
            *(f"dense_ps:{k}" for k in range(self.dense_ps)),
        )


def role_of(device: str) -> str:
    """The role's name in a device or role name: `group_ps` of `group_ps:0:1`."""
    return device.split(":", 1)[0]


def device_of(role: str) -> str:
    """The device that a role runs: `group_ps:1` of `group_ps:0:1` (group 0), `trainer` of `trainer:0:1`."""
    kind, *rest = role.split(":")
    return "trainer" if kind == "trainer" else f"{kind}:{rest[-1]}"


def this_machine(**counts: int) -> Cluster:
    """A cluster of this machine's roles: they share its cores and memory evenly; messages cross the loopback."""
    cluster = validated(counts, where="the cluster")
    share = ROLE_BYTES + (psutil.virtual_memory().total - ROLE_BYTES) // max(1, len(cluster.roles))  # as threads they are one process
    cores = os.cpu_count() or 1
    kinds = ("trainer", "group_ps", "sparse_ps", "dense_ps")
    limits = {
        f"{kind}_{what}": value
        for kind in kinds
        for what, value in (("cores", cores), ("memory", share), ("bandwidth", 10**9))
    }
    limits["host_cores"] = cores
    limits = {name: value for name, value in limits.items() if name not in counts}
    return replace(cluster, **limits)  # type: ignore[arg-type]


def load_cluster(path: Path, overrides: Mapping[str, int]) -> Cluster:
    """The cluster of a YAML file, `overrides` on top. Raises ClusterError naming file, line and field."""
    values: dict[str, Any] = {}
    for field, entry in cluster_entries(path).items():
        where = f"{path}:{entry.line}"
        if field in _OPTIONS:
            continue
        if field in _CONSTRAINTS:
            values[field] = _constraint(field, entry.plain(), where=where)
        else:
            values[field] = parse_field(field, entry.text, where=where)
    return validated({**values, **overrides}, where=str(path))


def cluster_entries(path: Path) -> Mapping[str, Entry]:
    """The entries of a cluster file. Raises ClusterError."""
    document = read_yaml(path, ClusterError, missing="; give a cluster file, or leave --cluster out to use this machine")
    if not isinstance(document.value, dict):
        raise ClusterError(f"{path}:1: want 'field: value' lines such as 'groups: 2'")
    return document.mapping()


_OPTIONS = ("dense", "sparse")
_CONSTRAINTS = {"pin": "a mapping of modules to devices", "together": "a list of lists of modules"}


def _constraint(name: str, value: object, *, where: str) -> tuple[tuple[str, ...], ...]:
    """The pairs of `pin`, or the lists of `together`, checked for their form."""
    lists = list(value.items()) if name == "pin" and isinstance(value, dict) else value if name == "together" else None
    try:
        return convert(lists, tuple[tuple[str, ...], ...])
    except ValidationError as error:
        example = "pin: {top.0: 'group_ps:1'}" if name == "pin" else "together: [[top.0, top.2]]"
        raise ClusterError(f"{where}: {name}: want {_CONSTRAINTS[name]}, such as {example}") from error


NUMBERS = tuple(f.name for f in fields(Cluster) if f.name not in _CONSTRAINTS)


def is_rate(field: str) -> bool:
    """Whether a field is one that `htrain calibrate` measures."""
    return field.startswith(("core_", "op_", "message_", "gemm_", "distinct_"))


def validated(values: Mapping[str, Any], *, where: str) -> Cluster:
    """A cluster of `values`. Raises ClusterError for what is no field, out of bounds, or contradicts another."""
    for name in values.keys() - {*NUMBERS, *_CONSTRAINTS}:
        raise ClusterError(f"{where}: unknown field '{name}'; the fields are {', '.join((*NUMBERS, *_CONSTRAINTS))}")
    cluster = replace(Cluster(), **values)
    for name in NUMBERS:
        least, most, value = _LEAST.get(name, 1), _MOST.get(name, _MOST_OF_ALL), getattr(cluster, name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ClusterError(f"{where}: {name}: {value!r} must be a whole number of {least} to {most:,}")
    if cluster.groups * (cluster.trainers + cluster.group_ps) > _MOST_ROLES:
        raise ClusterError(
            f"{where}: {cluster.groups:,} groups of {cluster.trainers} trainers and {cluster.group_ps} group PSs are more than {_MOST_ROLES:,} roles"
        )
    if cluster.group_ps == 0 and cluster.trainers > 1:
        raise ClusterError(
            f"{where}: {cluster.trainers} trainers share one dense replica, which needs group_ps >= 1; for EASGD use trainers: 1 and more groups"
        )
    for pattern, device in cluster.pin:
        if device not in cluster.devices or device.startswith("dense_ps"):
            known = ", ".join(d for d in cluster.devices if not d.startswith("dense_ps"))
            raise ClusterError(f"{where}: pin '{pattern}': '{device}' is not one of {known}")
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
_MOST_OF_ALL = 2**62
_MOST = {
    "python_lock": 1, "distinct_percent": 100, "cache_hit_percent": 100, "groups": 10_000, "trainers": 1_000, "group_ps": 1_000, "sparse_ps": 10_000,
    "dense_ps": 1_000, **dict.fromkeys(("trainer_cores", "group_ps_cores", "sparse_ps_cores", "dense_ps_cores", "host_cores"), 1_000_000),
}  # fmt: skip
_MOST_ROLES = 100_000
_LEAST = {"python_lock": 0, "group_ps": 0, "sparse_ps": 0, "dense_ps": 0, "host_cores": 0, "cache_hit_percent": 0}


def parse_field(name: str, text: object, *, where: str) -> int:
    """The value of a field written as text: a count, or a size such as `512GiB` or `25Gbit/s`. Raises ClusterError."""
    if name not in NUMBERS:
        raise ClusterError(f"{where}: unknown field '{name}'; the fields are {', '.join((*NUMBERS, *_CONSTRAINTS, *_OPTIONS))}")
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:[eE][0-9]+)?)\s*([A-Za-z/]*)", str(text).strip().replace("_", ""))
    unit = match.group(2).upper() if match else "?"
    sized = name.endswith(("memory", "bandwidth", "flops"))
    factor = _UNITS.get(unit.removesuffix("/S"), 0) or _BITS.get(unit, 0) / 8
    if not match or not factor or (unit and not sized):
        raise ClusterError(
            f"{where}: {name}: '{text}' is not {'a size such as 512GiB or 25Gbit/s' if sized else 'a whole number'}"
        )
    value = float(match.group(1)) * factor
    least, most = _LEAST.get(name, 1), _MOST.get(name, _MOST_OF_ALL)
    if not least <= value <= most or value != int(value):
        range_text = f"at least {least}" if most == _MOST_OF_ALL and value < least else f"{least} to {most:,}"
        raise ClusterError(f"{where}: {name}: '{text}' must be a whole number of {range_text}")
    return int(value)
