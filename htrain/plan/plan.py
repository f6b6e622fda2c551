"""The plan: a folder that says which nets run where (docs/architecture.md). Everything left of it knows models, everything right of it sockets.

plan.yaml          version, model digest, cluster, options, tables -> shards, centres, decisions, prediction, the other files
nets/train.onnx    the whole tagged train net
nets/heads.onnx    what evaluation makes of its values beside the score, where the model has heads
nets/evaluation.onnx  what evaluation does, where that is something else than the train net
nets/trainer.onnx, group_ps_0.onnx, ..., init_group_ps_0.onnx, ..., sync_group_ps_0.onnx, center_dense_ps_0_group_ps_0.onnx, ...
params/*.safetensors   initial values, where the model came with them
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import save_file

from htrain.costs.loads import COST_MODEL, DeviceLoad
from htrain.decoding import converted
from htrain.errors import ClusterError, PlanError, UsageError
from htrain.net.names import SPARSE_PS, TRAINER, Device, NetName, role_of
from htrain.net.net import Net
from htrain.net.placement import Decision, Search, Shard
from htrain.onnx_format.files import MOST_BYTES, net_of, to_model, write_net
from htrain.ops.cache_rates import NO_RATES, Rates
from htrain.own.registry import Source, require, sources_of
from htrain.plan.folder import (
    HEADER,
    Digests,
    content_of,
    digest_of_header,
    is_part,
    place_of,
    require_header,
    steadily,
    write_folder,
)
from htrain.plan.nets import NetsOfPlan
from htrain.spec.cluster import Cluster, validated
from htrain.spec.compatibility import compatible
from htrain.spec.migrations import NEWEST, OLDEST, migrated
from htrain.spec.options import Options
from htrain.spec.tree import document_of, kinds_of, options_of
from htrain.spec.yaml_file import parse_yaml

VALUES = "params/values.safetensors"


@dataclass(frozen=True, repr=False)
class Plan(NetsOfPlan):
    """A placement, ready to run. `nets` by name: `train`, one per device, and their init, sync and centre nets.

    `notes` say, a sentence each, what compiling decided that the user may want to know.
    `inputs` are the reader's columns as `name: dtype[shape]`; `values` initial dense parameters and tables that came with the model.
    `search` tells how the placement was found and how near the best possible it is;
    `loads` is the predicted load of each device, utilization included, at `predicted_eps`, as `cost_model` counts it: a plan keeps what an older one said.
    `ops` are the types of the user's own, and `strategies` the sections, such as `dense_sync.mine`, each with its file.
    `rates` are those at which its caches ask for rows, as `htrain advise` has found them for data; without any, the cluster's constants say it.
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
    ops: Mapping[str, Source] = field(default_factory=dict)
    strategies: Mapping[str, Source] = field(default_factory=dict)
    cost_model: int = COST_MODEL
    rates: Rates = NO_RATES

    def __repr__(self) -> str:
        """One line: what is in it would fill pages of a notebook, which shows the value of its last line."""
        size = f"{len(self.nets)} nets, {len(self.tables)} tables, {len(self.cluster.roles)} roles"
        return f"<Plan of {self.model}: {size}, predicted {self.predicted_eps:,.0f} EPS>"

    def known_rates(self, rates: Rates) -> Rates:
        """`rates` where they tell of any cache, and otherwise those that the plan was compiled with.

        `htrain.simulate` counts with them.

            import htrain

            advice = htrain.advise("packed:train.packed", model="models/wide_deep.py")
            plan = htrain.compile("models/wide_deep.py", data="packed:train.packed", options=advice.options)
            rates = plan.known_rates(advice.recommended.rates)
        """
        return rates if rates.caches else self.rates

    @property
    def processes(self) -> tuple[tuple[str, ...], ...]:
        """The roles of each process of a run."""
        roles = self.cluster.roles
        if not self.options.sparse_sync.beside:
            return tuple((role,) for role in roles)
        trainers = [role for role in roles if role_of(role) == TRAINER]
        servers = [role for role in roles if role_of(role) == SPARSE_PS]
        return tuple(zip(trainers, servers, strict=True))

    def save(self, folder: str | Path) -> None:
        """Write the folder: whole, or not at all; an older plan there is replaced, and nothing else.

        Raises PlanError when `folder` holds something that is not a plan, or one of its files is not as htrain wrote it.

            from pathlib import Path

            import htrain

            plan = htrain.compile("models/wide_deep.py", data="packed:train.packed")
            plan.save(Path("plans/here"))
        """
        writers: dict[str, Callable[[Path], None]] = {
            f"nets/{name}.onnx": partial(write_net, net) for name, net in self.nets.items()
        }
        if self.values:
            values = {name: tensor.contiguous() for name, tensor in self.values.items()}
            writers[VALUES] = partial(save_file, values)
        try:
            write_folder(Path(folder), writers, self._header_text)
        except (OSError, ValueError, SafetensorError) as error:
            raise PlanError(f"{folder}: cannot be written: {getattr(error, 'strerror', None) or error}") from error

    def _header_text(self, files: Digests) -> bytes:
        document = {**self._header(), "files": dict(files)}
        return yaml.safe_dump(document, sort_keys=False, width=160, allow_unicode=True).encode()

    def _header(self) -> dict[str, Any]:
        return {
            "version": NEWEST,
            "model": self.model,
            "digest": self.digest,
            "cluster": asdict(self.cluster),
            "options": document_of(self.options),
            "inputs": dict(self.inputs),
            "cost_model": self.cost_model,
            "predicted_eps": self.predicted_eps,
            "loads": {device: asdict(load) for device, load in self.loads.items()},
            "tables": {
                table: [[s.first_row, s.num_rows, s.device] for s in shards] for table, shards in self.tables.items()
            },
            "centers": dict(self.centers),
            "search": asdict(self.search),
            "decisions": {d.module: f"{d.device} by rule '{d.rule}': {d.reason}" for d in self.decisions},
            "notes": list(self.notes),
            **({"rates": msgspec.to_builtins(self.rates)} if self.rates.caches else {}),
            **({"ops": {op: asdict(source) for op, source in self.ops.items()}} if self.ops else {}),
            **(
                {"strategies": {kind: asdict(source) for kind, source in self.strategies.items()}}
                if self.strategies
                else {}
            ),
        }


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    """The entries of plan.yaml."""

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
    notes: list[str]
    files: dict[str, str]
    ops: dict[str, Source] = {}
    strategies: dict[str, Source] = {}
    cost_model: int = 1  # of plans that do not say
    rates: Rates = NO_RATES


def digest_of(nets: Mapping[str, Net]) -> str:
    """A digest of the nets: two plans with the same one hold the same parameters in the same places."""
    digest = blake2b(digest_size=16)
    for name in sorted(nets):
        digest.update(name.encode())
        digest.update(to_model(nets[name]).SerializeToString(deterministic=True))
    return digest.hexdigest()


def load_plan(folder: Path) -> Plan:
    """The plan of a folder, `values` aside; `htrain.plan.check.check_plan` says whether it can run.

    Raises PlanError naming the file and entry that is damaged, unknown, or of another plan.
    """

    def load(text: bytes) -> Plan:
        header = _parse_header(folder, text)
        if VALUES in header.files:
            place_of(folder, VALUES, header.files[VALUES])
        return _load(folder, header, _net_names(header))

    return steadily(folder, load)


def load_part(folder: Path, device: str, wanted: str = "") -> Plan:
    """The plan of a folder with the nets that `device` runs alone: what a role needs of a plan that has been checked. Raises PlanError where it is not that
    which is `wanted`, by the digest of its plan.yaml; "" takes any."""

    def load(text: bytes) -> Plan:
        require_header(folder, text, wanted)
        header = _parse_header(folder, text)
        own = Device.parse(device)
        return _load(folder, header, [name for name in _net_names(header) if NetName.parse(name).run_by == own])

    return steadily(folder, load)


def files_of(folder: Path) -> tuple[str, dict[str, Path]]:
    """The digest of plan.yaml, and where each file of the plan stands, that one among them, by name. Raises PlanError."""

    def find(text: bytes) -> tuple[str, dict[str, Path]]:
        files = _parse_header(folder, text).files
        found = {name: place_of(folder, name, digest) for name, digest in files.items()}
        return digest_of_header(text), {HEADER: folder / HEADER, **found}

    return steadily(folder, find)


def values_file(folder: Path) -> Path:
    """The file with the values that came with the model. Raises PlanError where the plan has none."""

    def find(text: bytes) -> Path:
        files = _parse_header(folder, text).files
        if VALUES not in files:
            raise PlanError(f"{folder}: a net wants values that came with the model, and {HEADER} names no {VALUES}")
        return place_of(folder, VALUES, files[VALUES])

    return steadily(folder, find)


def _load(folder: Path, header: _Header, names: Sequence[str]) -> Plan:
    require(header.ops, str(folder / HEADER), "op")
    require(header.strategies, str(folder / HEADER), "strategy")
    cluster, options = _settings(folder, header)
    for kind in sources_of(kinds_of(options)).keys() - header.strategies.keys():
        raise PlanError(
            f"{folder / HEADER}: strategy {kind} is one of a user's own, and it names no file of that: compile the model again"
        )
    nets = {name: _read_net(folder, name, header) for name in names}
    for op in sources_of(op.type for net in nets.values() for op in net.ops).keys() - header.ops.keys():
        raise PlanError(
            f"{folder / HEADER}: its nets have op {op}, one of a user's own, and it names no file of that: compile the model again"
        )
    return Plan(
        model=header.model, digest=header.digest, cluster=cluster, options=options, inputs=header.inputs,
        tables={table: tuple(Shard(table, *s) for s in shards) for table, shards in header.tables.items()},
        centers=header.centers, decisions=tuple(_decision(m, text, folder) for m, text in header.decisions.items()),
        search=header.search, predicted_eps=header.predicted_eps, loads=header.loads,
        nets=nets, values={}, notes=tuple(header.notes), ops=header.ops, strategies=header.strategies,
        cost_model=header.cost_model, rates=header.rates,
    )  # fmt: skip


def _read_net(folder: Path, name: str, header: _Header) -> Net:
    file = f"nets/{name}.onnx"
    return net_of(content_of(folder, file, header.files[file], most_bytes=MOST_BYTES), folder / file)


def _parse_header(folder: Path, text: bytes) -> _Header:
    path = folder / HEADER
    try:
        document = parse_yaml(text.decode(), PlanError, str(path)).plain()
        _check_version(path, document)  # before its entries, which another version may have otherwise
        header = converted(document, _Header)
    except UnicodeDecodeError as error:
        raise PlanError(f"{path}: not YAML: byte {error.start} is not UTF-8 text") from error
    except msgspec.ValidationError as error:
        raise PlanError(f"{path}: is not as htrain wrote it: {error}; compile the model again") from error
    for name in header.files:
        if not is_part(name):
            raise PlanError(f"{path}: '{name}' is not a file of a plan")
    for place in _unknown(document, msgspec.to_builtins(header)):
        raise PlanError(f"{path}: {place} is no entry that this htrain knows: compile the model again")
    return header


def _check_version(path: Path, document: object) -> None:
    version = document.get("version") if isinstance(document, dict) else None
    if isinstance(version, int) and not OLDEST <= version <= NEWEST:
        raise PlanError(
            f"{path}: version {version}, this htrain reads the versions {OLDEST} to {NEWEST}: compile the model again"
        )


def _unknown(given: object, known: object, place: str = "") -> Iterator[str]:
    """The entries of a document that were not read: msgspec passes over fields that a dataclass does not have."""
    if isinstance(given, dict) and isinstance(known, dict):
        for name, value in given.items():
            if name in known:
                yield from _unknown(value, known[name], f"{place}{name}.")
            else:
                yield f"'{place}{name}'"


def _net_names(header: _Header) -> list[str]:
    return [name[len("nets/") : -len(".onnx")] for name in header.files if name.startswith("nets/")]


def _settings(folder: Path, header: _Header) -> tuple[Cluster, Options]:
    """The cluster and the options, all of them: an entry that is younger than the plan comes with a migration."""
    path = folder / HEADER
    try:
        said = migrated({"cluster": header.cluster, "options": header.options}, header.version)
        for field in fields(Cluster):
            if field.name not in said["cluster"]:
                raise ClusterError(f"cluster: '{field.name}' is missing")
        return compatible(
            validated(said["cluster"], where="cluster"), options_of(said["options"], "options", whole=True)
        )
    except (ValueError, UsageError, ClusterError) as error:
        raise PlanError(f"{path}: {error}") from error


def _decision(module: str, text: str, folder: Path) -> Decision:
    place, found, reason = text.partition("': ")
    device, rule_found, rule = place.partition(" by rule '")
    if not found or not rule_found:
        raise PlanError(f"{folder / HEADER}: decision of '{module}' is not 'DEVICE by rule 'NAME': REASON'")
    return Decision(module, device, rule, reason)
