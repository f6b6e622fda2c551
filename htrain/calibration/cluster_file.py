"""A cluster as a YAML file, rates and all."""

import os
from dataclasses import asdict
from pathlib import Path

import yaml

from htrain.cluster import NUMBERS, Cluster, is_rate
from htrain.errors import ClusterError


def cluster_yaml(cluster: Cluster, comment: str) -> str:
    """The file's text: counts and sizes, then the rates under a `comment`."""
    values = asdict(cluster)
    lines = [f"{name}: {values[name]}" for name in NUMBERS if not is_rate(name)]
    rates = [f"{name}: {values[name]}" for name in NUMBERS if is_rate(name)]
    constraints = {
        name: value
        for name, value in (("pin", dict(cluster.pin)), ("together", [list(names) for names in cluster.together]))
        if value
    }
    tail = yaml.safe_dump(constraints, sort_keys=False) if constraints else ""
    return "\n".join([*lines, "", *(f"# {line}" for line in comment.splitlines()), *rates, ""]) + tail


def write_cluster(path: Path, text: str) -> None:
    """Write the file whole, or not at all. Raises ClusterError."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.write_text(text)
        partial.replace(path)
    except OSError as error:
        raise ClusterError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
