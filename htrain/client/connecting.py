"""Joining servers: by the folder that they run in, or by address."""

import math
import os
import socket
from itertools import count
from pathlib import Path
from typing import Literal

import msgspec

from htrain.client.link import Where
from htrain.client.tables import Tables
from htrain.decoding import from_json
from htrain.errors import UsageError
from htrain.membership.served import FILE, Address
from htrain.printable import as_word

TOKEN = "HTRAIN_TOKEN"  # of the environment
_LONGEST_NAME = 200
_number = count(1)  # of this process's workers


def connect(
    where: str | Path,
    *,
    token: str = "",
    worker: str = "",
    capacity: int | None = None,
    gradient_scale: float | Literal["mean"] = "mean",
    deadline_seconds: float = 60.0,
    round_seconds: float = 1800.0,
) -> Tables:
    """Join the servers of `htrain serve`: by the folder that it runs in, or by address, `HOST:PORT`, with its token (or that of $HTRAIN_TOKEN).

    `worker` names this one among others; a process that joins under the name of another takes its place. `capacity` are the rows of each cache, by default
    as the plan has them. Gradients are scaled by `gradient_scale`: `mean` divides by the number of torch.distributed's workers, as DistributedDataParallel
    does for weights. A server that does not answer for `deadline_seconds` is lost; with a staleness of 0, other workers are waited for up to `round_seconds`.
    Raises UsageError for a place that is none, PeerLost where nobody answers, RunError where this worker is refused.

        import torch

        import htrain.client

        with htrain.client.connect("runs/tables") as tables:
            users = htrain.client.HetEmbedding(tables, "embeddings.tables.user")
            users(torch.tensor([4, 17])).square().sum().backward()
            tables.step()
    """
    if capacity is not None and (not isinstance(capacity, int) or capacity < 1):
        raise UsageError(f"connect: capacity: {capacity} is no number of rows")
    if gradient_scale != "mean" and not (isinstance(gradient_scale, int | float) and math.isfinite(gradient_scale)):
        raise UsageError(f"connect: gradient_scale: is {gradient_scale!r}, want a number or 'mean'")
    if not all(seconds > 0 for seconds in (deadline_seconds, round_seconds)):
        raise UsageError(
            f"connect: deadline_seconds {deadline_seconds} and round_seconds {round_seconds}: want seconds above 0"
        )
    if len(worker) > _LONGEST_NAME:
        raise UsageError(f"connect: worker: has {len(worker)} characters, want at most {_LONGEST_NAME}")
    place = Path(where).resolve() if Path(where).is_dir() else str(where)  # a process may change its folder
    name = worker or f"{socket.gethostname()}:{os.getpid()}.{next(_number)}"

    def find() -> Where:
        address, known = _found(place, token)
        return Where(address, known, name, deadline_seconds, round_seconds)

    return Tables(find, capacity=capacity, gradient_scale=gradient_scale)


def _found(where: str | Path, token: str) -> tuple[str, str]:
    """The address of a server, and its token."""
    if isinstance(where, Path):
        return _read(where, token)
    address = where.removeprefix("tcp://")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise UsageError(f"connect: '{where}' is neither a folder that 'htrain serve' runs in nor an address HOST:PORT")
    word = token or os.environ.get(TOKEN, "")
    if not word:
        raise UsageError(
            f"connect: {address} wants a token: give token=, or set {TOKEN}; it stands in {FILE} of the folder that 'htrain serve' runs in"
        )
    return f"tcp://{address}", word


def _read(folder: Path, token: str) -> tuple[str, str]:
    path = folder / FILE
    try:
        found = from_json(path.read_bytes(), Address)
    except FileNotFoundError:
        cure = (
            f"serve it first: htrain serve {as_word(folder)} --out RUN, and connect to RUN"
            if (folder / "plan.yaml").exists()
            else "is 'htrain serve' running there?"
        )
        raise UsageError(f"connect: {folder}: holds no {FILE}: {cure}") from None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"connect: {path}: cannot be read: {error}") from error
    return found.address, token or found.token
