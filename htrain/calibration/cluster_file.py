"""A cluster as a YAML file, rates and all."""

from dataclasses import asdict
from pathlib import Path

import yaml

from htrain.cluster import NUMBERS, Cluster, is_rate
from htrain.errors import ClusterError
from htrain.files import has_seal, place_to_write, sealed, write_file

_MEANINGS = {
    "core_flops": "flops of a large float32 FC",
    "core_bf16_flops": "of a bfloat16 FC, its conversions included",
    "core_int8_flops": "of an int8 FC, its conversions included",
    "core_batched_flops": "of many small GEMMs",
    "gemm_half_size": "a GEMM whose smallest side this is reaches half of those flops",
    "core_bandwidth": "bytes that elementwise ops read and write",
    "core_gather_bandwidth": "bytes of rows looked up",
    "core_scatter_bandwidth": "bytes of rows updated",
    "core_quantize_bandwidth": "bytes quantized or restored",
    "op_nanoseconds": "to start an op",
    "message_nanoseconds": "CPU of a message at each end",
    "message_tensor_nanoseconds": "and of each tensor in it",
    "message_bandwidth": "bytes of messages for a second of CPU at each end",
    "distinct_percent": "of a batch's ids of a table",
}


def cluster_yaml(cluster: Cluster, comment: str) -> str:
    """The file's text: counts and sizes, then the rates under a `comment`."""
    values = asdict(cluster)
    lines = [f"{name}: {values[name]}" for name in NUMBERS if not is_rate(name)]
    rates = [f"{name}: {values[name]}  # {_MEANINGS[name]}" for name in NUMBERS if is_rate(name)]
    constraints = {
        name: value
        for name, value in (("pin", dict(cluster.pin)), ("together", [list(names) for names in cluster.together]))
        if value
    }
    tail = yaml.safe_dump(constraints, sort_keys=False) if constraints else ""
    return "\n".join([*lines, "", *(f"# {line}" for line in comment.splitlines()), *rates, ""]) + tail


def require_writable(path: Path) -> None:
    """Say so before a host is measured for long. Raises ClusterError where no file can be written, or one of the user's own would be lost."""
    try:
        place_to_write(path, has_seal)
    except OSError as error:
        raise ClusterError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_cluster(path: Path, text: str) -> None:
    """Write the file whole, or not at all; only one that was written here and not changed since is replaced. Raises ClusterError."""
    try:
        write_file(path, sealed(text, "# {}"), has_seal)
    except OSError as error:
        raise ClusterError(f"{path}: cannot be written: {error.strerror or error}") from error
