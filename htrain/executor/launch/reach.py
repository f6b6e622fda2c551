"""What roles on another host need to reach, and whether they do: said before the first step, by name of role, host and path."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import msgspec

from htrain.data.identity import DataIdentity, other_than_read
from htrain.errors import CheckpointError, DataError, PlanError, PublishError, RunError
from htrain.executor.host.address import address_within
from htrain.executor.launch.earlier import Beginning, places_of
from htrain.executor.record.checkpoint import read_manifest
from htrain.executor.settings import RunSettings
from htrain.net.names import TRAINER, device_of, role_of
from htrain.own.registry import load_own
from htrain.plan.plan import load_part
from htrain.publishing.storage import storage_of

_PROBE = "launcher"  # its file, in a folder that is made as those of checkpoints are
_COMMON = "data, run folder and versions of a run lie where all of its hosts see them, under the same name"


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent prepares: the `files` of the plan, plan.yaml with its digest, and what else roles use. `shared` are the places in which the launcher has
    put a probe of this name, and with this content: the run folder, and where versions go. The checkpoint to `begin_with` has a manifest of the checksum
    `begun`."""

    files: tuple[str, ...]
    header_digest: str
    data: str
    identity: DataIdentity
    shared: tuple[str, ...]
    probe: str
    content: str
    ops: tuple[str, ...] = ()
    begin_with: tuple[str, str] = ("", "")
    begun: str = ""
    trainer_network: str = ""


class Needed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rank of mpiexec needs besides: the plan, which lies in `plan_folder`. `processes` are the roles of each rank but the first."""

    task: Task
    processes: tuple[tuple[str, ...], ...]
    plan_folder: str


@dataclass(frozen=True)
class Probes:
    """Objects that the launcher leaves in the places which all roles write to, so that these know them; they go again with `remove`. In folders of a file
    system each lies in a folder of its own, which the launcher makes as it makes those of checkpoints: whoever can write there, can save."""

    places: tuple[str, ...]
    name: str
    content: str

    @classmethod
    def of(cls, settings: RunSettings) -> "Probes":
        """New ones, for the places that all roles of a run write to."""
        return cls(shared_places(settings), f"probe-{token_hex(8)}", token_hex(16))

    def put(self) -> None:
        """Raises PublishError for a place that cannot be written to."""
        for place in self.places:
            storage_of(place).put(_probe_in(place, self.name, _PROBE), self.content.encode())

    def remove(self) -> None:
        """As far as they can be removed."""
        for place in self.places:
            try:
                storage_of(place).remove(_probe_in(place, self.name, _PROBE))
                storage_of(place).remove_folder(self.name)
            except PublishError:
                continue


def task_of(
    settings: RunSettings, identity: DataIdentity, probes: Probes, *, files: Sequence[str], header_digest: str
) -> Task:
    """What the roles of a run on data of this identity need. Raises CheckpointError where what it begins with is not there any more."""
    return Task(
        files=tuple(files), header_digest=header_digest, data=settings.data, identity=identity, shared=probes.places,
        probe=probes.name, content=probes.content, ops=settings.ops, begin_with=settings.begin_with,
        begun=read_manifest(Path(settings.begin_with[1])).checksum if all(settings.begin_with) else "",
        trainer_network=settings.trainer_network,
    )  # fmt: skip


def shared_places(settings: RunSettings) -> tuple[str, ...]:
    """The places that all roles of a run write to."""
    return (str(settings.run_folder), *([settings.publishing.address] if settings.publishing else []))


def require_reach(task: Task, roles: Sequence[str], agent: str) -> None:
    """Raises an error that names what cannot be reached here, or is not what it is at the launcher: ModelError, DataError, CheckpointError, PublishError,
    RunError."""
    load_own(task.ops)
    for place in task.shared:
        _require_shared(place, task, agent)
    if task.trainer_network:
        address_within("--trainer-network", task.trainer_network)
    if any(role_of(role) == TRAINER for role in roles):
        require_same(task.data, task.identity)
    if all(task.begin_with):
        _require_beginning(Beginning(*task.begin_with), task.begun)


def require_needed(needed: Needed, roles: Sequence[str], rank: str) -> None:
    """Raises what `require_reach` does; PlanError where the plan is not here what it is at the launcher."""
    require_reach(needed.task, roles, rank)
    try:
        for role in roles:
            load_part(Path(needed.plan_folder), device_of(role), needed.task.header_digest)
    except PlanError as error:
        raise PlanError(
            f"{needed.plan_folder}: is not here what it is at the launcher ({error}): under mpiexec a plan lies where all hosts see it"
        ) from error


def _require_beginning(beginning: Beginning, checksum: str) -> None:
    """Raises CheckpointError where a checkpoint is not here, or what else the run begins with; or it is another one, which has the same name."""
    is_here = Path(beginning.checkpoint).is_dir()
    for place in places_of(beginning) if is_here else [beginning.checkpoint]:
        if not Path(place).is_dir():
            raise CheckpointError(f"{place}: is not here, and the run begins with it: {_COMMON}")
    if read_manifest(Path(beginning.checkpoint)).checksum != checksum:
        raise CheckpointError(
            f"{beginning.checkpoint}: is another checkpoint here than at the launcher, and the run begins with that: {_COMMON}"
        )


def require_same(data: str, wanted: DataIdentity) -> None:
    """Raises DataError where data is not here, or is other data than the launcher's, beside what has come since."""
    try:
        difference = other_than_read(data, wanted, is_copy=True)
    except DataError as error:
        raise DataError(f"{error} (looked for in {Path.cwd()}); {_COMMON}") from error
    if difference:
        raise DataError(f"{data}: is other data here than at the launcher: {difference}".replace(" it had ", " there "))


def _require_shared(place: str, task: Task, agent: str) -> None:
    """Raises CheckpointError where a place is not the launcher's here, or nothing can be saved there."""
    own = _probe_in(place, task.probe, agent)
    try:
        storage = storage_of(place)
        if storage.get(_probe_in(place, task.probe, _PROBE)).decode() != task.content:
            raise RunError("it holds another run's probe")
    except (PublishError, RunError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{place}: is not here what it is at the launcher ({error}): {_COMMON}, such as a folder that all of them mount"
        ) from error
    try:
        storage.put(own, b"")
        storage.remove(own)
    except PublishError as error:
        raise CheckpointError(
            f"{place}: nothing can be saved here ({error}): roles write into folders that the launcher makes: run them as its user, or as others of a group "
            "for which it makes them (umask 002)"
        ) from error


def _probe_in(place: str, probe: str, whose: str) -> str:
    """The name of an object of the launcher, or of an agent, by which a place is known. Stores of objects have no folders."""
    return f"{probe}-{whose}" if "://" in place else f"{probe}/{whose}"
