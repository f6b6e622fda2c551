"""A cluster as a YAML file, rates and all."""

from dataclasses import asdict
from pathlib import Path

import yaml

from htrain.errors import ClusterError
from htrain.files import has_seal, place_to_write, sealed, write_file
from htrain.spec.cluster import NUMBERS, Cluster, is_rate
from htrain.spec.fields import fields_of


def cluster_yaml(cluster: Cluster, comment: str) -> str:
    """The file's text: counts and sizes, then the rates under a `comment`."""
    values = asdict(cluster)
    words = {name: str(value).lower() for name, value in values.items()}
    lines = [f"{name}: {words[name]}" for name in NUMBERS if not is_rate(name)]
    rates = [
        f"{name}: {words[name]}  # {field.sentence}" for name, field in fields_of(Cluster).items() if is_rate(name)
    ]
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
