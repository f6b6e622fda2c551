"""What htrain raises. Every error that a user can cause derives from `Error`; anything else is a bug of ours.

    Error
     ├── UsageError      the command line or the API was called in a way that cannot work (exit status 2)
     ├── ModelError      the model cannot be captured or compiled; names the op and the module it came from
     ├── ClusterError    the cluster file or its flags are wrong; names file and line or the field
     ├── PlacementError  no placement fits; names table, op or device, size and limit
     ├── PlanError       a plan folder is damaged, unknown or inconsistent; names the file and the entry
     ├── DataError       a data file cannot be read or holds too many malformed rows; names file and line
     ├── CheckpointError a run folder or checkpoint is missing, damaged or does not match its plan
     │    └── DamagedCheckpoint  what was written is not what is there: an older checkpoint may be whole
     ├── PublishError    a version of a model cannot be written to storage, or read from it; names the address
     └── RunError        a run ended early
          ├── PeerLost     a role died or fell silent; names role, host and last step
          └── Interrupted  the user asked the run to stop; a checkpoint was written

A message says what, where, and what to do. The CLI prints it on one line, without a traceback.
"""


class Error(Exception):
    """Base of all errors that a user can cause."""

    exit_status = 1


class UsageError(Error):
    """The command line or the API was called in a way that cannot work."""

    exit_status = 2


class ModelError(Error):
    """The model cannot be captured or compiled."""


class ClusterError(Error):
    """The cluster file, or a flag that stands for one of its fields, is wrong."""


class PlacementError(Error):
    """No placement fits the cluster."""


class PlanError(Error):
    """A plan folder is damaged, unknown or inconsistent."""


class DataError(Error):
    """A data file cannot be read, or holds too many malformed rows."""


class CheckpointError(Error):
    """A run folder or a checkpoint is missing, damaged, or belongs to another plan."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint whose bytes are not those that were written."""


class PublishError(Error):
    """A version of a model cannot be written to storage, or read from it."""


class RunError(Error):
    """A run ended early."""


class PeerLost(RunError):
    """A role died or fell silent."""


class Interrupted(RunError):
    """The user asked the run to stop; a checkpoint was written first."""

    exit_status = 130


def error_named(kind: str, text: str) -> Error:
    """The error of a class of this name, as another process has raised it; a RunError where there is no such class."""
    found = globals().get(kind, RunError)
    return found(text) if isinstance(found, type) and issubclass(found, Error) else RunError(text)
