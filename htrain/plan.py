"""The plan: a folder that says which nets run where (DESIGN 4). Everything left of it knows models, everything right of it sockets.

plan.yaml          version, model digest, cluster, options, tables -> shards, centres, decisions, prediction
nets/train.onnx    the whole tagged train net
nets/trainer.onnx, group_ps_0.onnx, ..., init_group_ps_0.onnx, ..., sync_group_ps_0.onnx, center_dense_ps_0_group_ps_0.onnx, ...
params/*.safetensors   initial values, where the model came with them
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import torch
import yaml
from safetensors.torch import save_file

from htrain.cluster import Cluster, validated
from htrain.errors import ClusterError, PlanError, UsageError
from htrain.fitting import fitting
from htrain.net import Net
from htrain.onnx_io import read_net, to_model, write_net
from htrain.ops.collective import ALL_REDUCE
from htrain.options import Options, checked
from htrain.placement import Decision, Search, Shard

VERSION = 12
VALUES_FILE = "values.safetensors"


@dataclass(frozen=True)
class DeviceLoad:
    """What one example asks of a device: flops, bytes moved in its memory, CPU seconds (those of messages apart, too), bytes received and sent;
    messages of a step, in and out; the bytes it must hold; and its utilization at the predicted EPS."""

    ops: int
    flops_per_example: float
    bytes_per_example: float
    cpu_seconds_per_example: float
    message_seconds_per_example: float
    received_per_example: float
    sent_per_example: float
    messages: int
    parameter_bytes: int
    cpu: float
    network: float
    memory: float


@dataclass(frozen=True)
class Plan:
    """A placement, ready to run. `nets` by name: `train`, one per device, and their init, sync and centre nets.

    `notes` say, a sentence each, what compiling decided that the user may want to know.
    `inputs` are the reader's columns as `name: dtype[shape]`; `values` initial dense parameters and tables that came with the model.
    `search` tells how the placement was found and how near the best possible it is;
    `loads` is the predicted load of each device, utilization included, at `predicted_eps`.
    """

    model: str
    digest: str
    cluster: Cluster
    options: Options
    inputs: Mapping[str, str]
    tables: Mapping[str, tuple[Shard, ...]]
    centers: Mapping[str, str]
    decisions: tuple[Decision, ...]
    search: Search
    predicted_eps: float
    loads: Mapping[str, DeviceLoad]
    nets: Mapping[str, Net]
    values: Mapping[str, torch.Tensor]
    notes: tuple[str, ...]

    def net_of(self, device: str) -> Net:
        """The net that `device` runs in a step."""
        return self.nets[net_name(device)]

    def save(self, folder: Path) -> None:
        """Write the folder: whole, or not at all; an older plan there is replaced.

        Raises PlanError when `folder` holds something that is not a plan.
        """
        if folder.exists() and (
            not folder.is_dir() or (any(folder.iterdir()) and not (folder / "plan.yaml").is_file())
        ):
            raise PlanError(f"{folder}: exists and is not a plan folder: choose another --out, or remove it")
        partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
        try:
            self._write(partial)
            if folder.exists():
                shutil.rmtree(folder)
            partial.rename(folder)
        except OSError as error:
            raise PlanError(f"{folder}: cannot be written: {error.strerror or error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _write(self, folder: Path) -> None:
        (folder / "nets").mkdir(parents=True)
        for name, net in self.nets.items():
            write_net(net, folder / "nets" / f"{name}.onnx")
        if self.values:
            (folder / "params").mkdir()
            save_file(
                {name: tensor.contiguous() for name, tensor in self.values.items()}, folder / "params" / VALUES_FILE
            )
        (folder / "plan.yaml").write_text(yaml.safe_dump(self._header(), sort_keys=False, width=160))

    def _header(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "model": self.model,
            "digest": self.digest,
            "cluster": asdict(self.cluster),
            "options": asdict(self.options),
            "inputs": dict(self.inputs),
            "predicted_eps": self.predicted_eps,
            "loads": {device: asdict(load) for device, load in self.loads.items()},
            "tables": {
                table: [[s.first_row, s.num_rows, s.device] for s in shards] for table, shards in self.tables.items()
            },
            "centers": dict(self.centers),
            "search": asdict(self.search),
            "decisions": {d.module: f"{d.device} by rule '{d.rule}': {d.reason}" for d in self.decisions},
            "nets": list(self.nets),
            "notes": list(self.notes),
        }


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    """plan.yaml, as it must be."""

    version: int
    model: str
    digest: str
    cluster: dict[str, Any]
    options: dict[str, Any]
    inputs: dict[str, str]
    predicted_eps: float
    loads: dict[str, DeviceLoad]
    tables: dict[str, list[tuple[int, int, str]]]
    centers: dict[str, str]
    search: Search
    decisions: dict[str, str]
    nets: list[str]
    notes: list[str]


def net_name(device: str) -> str:
    """The name of a device's net, and of its file: `group_ps_0` for `group_ps:0`."""
    return device.replace(":", "_")


def digest_of(nets: Mapping[str, Net]) -> str:
    """A digest of the nets: two plans with the same one hold the same parameters in the same places."""
    digest = blake2b(digest_size=16)
    for name in sorted(nets):
        digest.update(name.encode())
        digest.update(to_model(nets[name]).SerializeToString(deterministic=True))
    return digest.hexdigest()


def load_plan(folder: Path) -> Plan:
    """The plan of a folder; `htrain.plan_check.check_plan` says whether it can run.

    Raises PlanError naming the file and entry that is damaged or unknown.
    """
    header = _read_header(folder)
    return _load(folder, header, _net_names(folder, header))


def load_part(folder: Path, device: str) -> Plan:
    """The plan of a folder with the nets that `device` runs alone: what a role needs of a plan that has been checked."""
    header = _read_header(folder)
    own = net_name(device)
    kinds = (own, f"init_{own}", f"sync_{own}", *((f"flush_{own}", ALL_REDUCE) if own == "trainer" else ()))
    centers = (f"center_{own}_", f"init_center_{own}_")
    return _load(folder, header, [n for n in _net_names(folder, header) if n in kinds or n.startswith(centers)])


def _load(folder: Path, header: _Header, names: Sequence[str]) -> Plan:
    nets = {name: read_net(folder / "nets" / f"{name}.onnx") for name in names}
    cluster, options = _settings(folder, header)
    return Plan(
        header.model, header.digest, cluster, options, header.inputs,
        {table: tuple(Shard(table, *s) for s in shards) for table, shards in header.tables.items()},
        header.centers, tuple(_decision(m, text, folder) for m, text in header.decisions.items()), header.search,
        header.predicted_eps, header.loads, nets, {}, tuple(header.notes),
    )  # fmt: skip


def _read_header(folder: Path) -> _Header:
    path = folder / "plan.yaml"
    try:
        document = yaml.safe_load(path.read_text())
        header = msgspec.convert(document, _Header)
    except OSError as error:
        raise PlanError(
            f"{folder}: not a plan folder ({path.name}: {error.strerror}); make one with 'htrain compile ... --out {folder}'"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    except msgspec.ValidationError as error:
        raise PlanError(f"{path}: {error}") from error
    if header.version != VERSION:
        raise PlanError(
            f"{path}: version {header.version}, this htrain reads version {VERSION}: compile the model again"
        )
    return header


def _net_names(folder: Path, header: _Header) -> list[str]:
    for name in header.nets:
        if not name.replace("_", "").isalnum():
            raise PlanError(f"{folder / 'plan.yaml'}: '{name}' is not the name of a net")
    return header.nets


def _settings(folder: Path, header: _Header) -> tuple[Cluster, Options]:
    path = folder / "plan.yaml"
    for kind, given in ((Cluster, header.cluster), (Options, header.options)):
        known = {field.name for field in fields(kind)}
        if set(given) != known:
            raise PlanError(
                f"{path}: {kind.__name__.lower()} has the fields {', '.join(sorted(set(given) ^ known))} too many or too few"
            )
    try:
        options = checked(msgspec.convert(header.options, Options))
        cluster = msgspec.convert(header.cluster, Cluster)
        return fitting(validated({name: getattr(cluster, name) for name in header.cluster}, where=str(path)), options)
    except (msgspec.ValidationError, UsageError, ClusterError) as error:
        raise PlanError(f"{path}: {error}") from error


def _decision(module: str, text: str, folder: Path) -> Decision:
    place, found, reason = text.partition("': ")
    device, rule_found, rule = place.partition(" by rule '")
    if not found or not rule_found:
        raise PlanError(f"{folder / 'plan.yaml'}: decision of '{module}' is not 'DEVICE by rule 'NAME': REASON'")
    return Decision(module, device, rule, reason)
