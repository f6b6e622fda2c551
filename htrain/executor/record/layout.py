"""How a plan has cut the model's parameters, kept in the run folder: what a checkpoint's files hold is known though the plan be gone, or made again.

They stand in RUN/parameters, in a file named by the plan's digest.
"""

from pathlib import Path

import msgspec

from htrain.decoding import from_json
from htrain.errors import CheckpointError
from htrain.executor.record.run_folder import cannot_be_written
from htrain.files import put_file, read_file
from htrain.net.net import Parameter
from htrain.ops.batch_norm import variances_of
from htrain.plan.plan import Plan

_FOLDER = "parameters"
_DIGITS = 16  # of a digest, in a file's name
_MOST_BYTES = 1 << 30


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The parameters of a plan's train net, by name: each says of which it is a part, and which. `centers` says where weights have centres, by name; `plan` is
    where the plan lay. `variances` are running ones, each with the running mean that it is about; a folder of an older htrain does not say."""

    digest: str
    plan: str
    groups: int
    centers: dict[str, str]
    parameters: dict[str, Parameter]
    variances: dict[str, str] = {}

    @classmethod
    def of(cls, plan: Plan, folder: str = "") -> "Layout":
        return cls(
            digest=plan.digest,
            plan=folder,
            groups=plan.cluster.groups,
            centers=dict(plan.centers),
            parameters=dict(plan.train.parameters),
            variances=variances_of(plan.train),
        )


def keep_layout(run_folder: Path, layout: Layout) -> None:
    """Keep the layout of a plan that trains in a folder, where it is not there yet. Raises CheckpointError or UsageError where it cannot be written
    (`cannot_be_written`)."""
    path = _path(run_folder, layout.digest)
    if path.exists():
        return
    try:
        path.parent.mkdir(exist_ok=True)
        put_file(path, msgspec.json.encode(layout))
    except OSError as error:
        raise cannot_be_written(path, error) from error


def read_layout(run_folder: Path, digest: str) -> Layout | None:
    """The layout of the plan of this digest, as a run has kept it; None where it has not. Raises CheckpointError for one that is damaged."""
    path = _path(run_folder, digest)
    try:
        layout = from_json(read_file(path, most_bytes=_MOST_BYTES), Layout)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged: {' '.join(str(error).split())}") from error
    if layout.digest != digest:
        raise CheckpointError(f"{path}: damaged: it is of another plan")
    return layout


def _path(run_folder: Path, digest: str) -> Path:
    return run_folder / _FOLDER / f"{digest[:_DIGITS]}.json"
