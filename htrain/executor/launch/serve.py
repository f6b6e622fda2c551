"""Serving a plan's tables to workers from outside: its sparse PSs, without trainers, until told to stop (docs/how-to/serve-tables.md)."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

import msgspec
from rich.console import Console

from htrain.decoding import from_json
from htrain.errors import CheckpointError, PlanError, UsageError
from htrain.executor.host.address import address_of, require_free
from htrain.executor.launch.coordinator import Coordinator, Outside
from htrain.executor.launch.earlier import Beginning, Earlier
from htrain.executor.launch.interrupt import interrupts
from htrain.executor.launch.run import LocalPools, check_folder
from htrain.executor.loops.members import addresses_in
from htrain.executor.record.identity import Identity, identify_served
from htrain.executor.record.kept import find_checkpoints
from htrain.executor.record.progress import Progress
from htrain.executor.record.resume import resumed
from htrain.executor.record.run_folder import (
    Claim,
    RunRecord,
    cannot_be_written,
    claimed,
    read_record,
    require_empty,
    start_record,
)
from htrain.executor.record.run_log import RunLog
from htrain.executor.record.serving_log import ServingLog, ServingNews
from htrain.executor.record.totals import RunTotals
from htrain.executor.roles.coordination import RunResult
from htrain.executor.settings import RunSettings
from htrain.executor.strategies.strategy import cache_of
from htrain.executor.transport.port import Network
from htrain.files import read_file
from htrain.membership.served import FILE, Address, Listening, Served, Serving
from htrain.own.registry import places_of
from htrain.plan.check import check_plan
from htrain.plan.folder import header_digest
from htrain.plan.plan import Plan, load_plan
from htrain.printable import as_word
from htrain.spec.cache import CACHES

_MOST_BYTES = 1 << 16
_PORTS = 1 << 16
_EVERYWHERE = ("0.0.0.0", "*")
ANY_PORT, THIS_HOST = 0, "127.0.0.1"


def served_by(plan: Plan) -> Served:
    """What a plan's sparse PSs can serve to workers from outside. Raises PlanError where that is nothing."""
    caches = cache_of(plan, plan.cluster.roles[0]).served()
    if not caches:
        kinds = " or ".join(kind for kind, section in CACHES.items() if section.is_joined)
        raise PlanError(
            f"the plan has nothing to serve: workers from outside hold rows in a cache, its trainers have {plan.options.holder.words}; "
            f"compile it with --cache {kinds}"
        )
    if decay := getattr(plan.options.sparse_optimizer, "lazy_weight_decay", 0.0):
        raise PlanError(
            f"sparse_optimizer.lazy_weight_decay is {decay:g}: trainers add it to the gradients of their rows, and workers from outside would not: compile "
            f"the plan without it, and have {decay / 2:g} times the squares of a batch's rows in your loss"
        )
    return Served(plan.digest, plan.model, plan.cluster.sparse_ps, caches)


def serve_plan(
    settings: RunSettings,
    *,
    host: str,
    port: int,
    lease_seconds: float,
    resume: bool,
    num_threads: int,
    console: Console,
) -> RunResult:
    """Run a plan's sparse PSs for workers from outside, until interrupted; then they are saved.

    Raises PlanError, CheckpointError, UsageError for what cannot start; RunError where nothing can listen; PeerLost when a server died.
    """
    pools = LocalPools("processes", num_threads)
    network = pools.network()
    try:
        header = header_digest(settings.plan_folder)
        whole = check_plan(load_plan(settings.plan_folder))
        served = served_by(whole)
        check_folder(settings.run_folder, resume=resume)
        if resume and not read_record(settings.run_folder).is_served:
            earlier = as_word(settings.run_folder)
            raise CheckpointError(
                f"{settings.run_folder}: is a run that was trained: serve its tables in a folder of their own: --out RUN --begin-with {earlier}"
            )
        listening = _listening(
            settings.run_folder, host, port, servers=served.num_servers, lease_seconds=lease_seconds, resume=resume
        )
        settings = replace(
            settings,
            plan_header=header,
            ops=places_of((*whole.ops, *whole.strategies)),
            serving=Serving(served, listening),
        )
        with claimed(settings.run_folder) as claim, Progress(console, 0) as progress:
            identity = identify_served(whole)
            if all(settings.begin_with):
                Earlier(Beginning(*settings.begin_with), tables_only=True).require(whole)
            if resume:
                settings = resumed(settings, identity, find_checkpoints(settings.run_folder), progress.note)
            record = RunRecord(str(settings.plan_folder.resolve()), "", 1, False, settings.begin_with[1])
            if not resume:
                require_empty(settings.run_folder)
            start_record(settings.run_folder, record, resume=resume)
            return _serve(whole, settings, identity, network=network, pools=pools, claim=claim, tell=progress.note)
    finally:
        network.close()
        pools.close()


def _serve(
    plan: Plan,
    settings: RunSettings,
    identity: Identity,
    *,
    network: Network,
    pools: LocalPools,
    claim: Claim,
    tell: Callable[[str], None],
) -> RunResult:
    """In a folder that is ours."""
    log, news = ServingLog(RunLog(settings.run_folder, tell)), ServingNews()
    endpoints: dict[str, str] = {}

    def on_totals(totals: RunTotals, reports: dict[str, dict[str, Any]]) -> None:
        if endpoints:  # the first time: now they serve
            _publish(settings, endpoints, tell)
            endpoints.clear()
        log.write(totals, reports)
        for text in news.of(totals.seconds, reports):
            tell(text)

    servers = replace(plan, cluster=replace(plan.cluster, groups=0, dense_ps=0))  # none of the roles of trainers
    try:
        with interrupts() as interrupt:
            outside = Outside(interrupt, on_totals, tell, claim, endpoints.update)
            coordinator = Coordinator(servers, network, settings, identity, outside)
            return coordinator.run(pools.pool(servers, settings, network, coordinator.place))
    finally:
        log.close()


def _listening(folder: Path, host: str, port: int, *, servers: int, lease_seconds: float, resume: bool) -> Listening:
    """Where to listen; without a host, on this host alone, or where it was before.

    Servers that are started again are found where they were, by the token that workers have. Raises UsageError for an address that this host cannot listen at,
    as `address_of` does, and for ports beyond the last; RunError where nothing can listen for servers that are new.
    """
    before = _published(folder) if resume else None
    if host:
        if port and port + servers > _PORTS:
            raise UsageError(
                f"--listen {host}:{port}: {servers} servers take the ports {port} to {port + servers - 1}, the last of all is {_PORTS - 1}: choose a lower one"
            )
        ports = [port + k if port else ANY_PORT for k in range(servers)]
        host = host if host in _EVERYWHERE else address_of("--listen", host)
    elif before:
        places = [address.removeprefix("tcp://").rpartition(":") for address in (before.address, *before.others)]
        host, ports = places[0][0], [int(known) for _, _, known in places]
    else:
        host, ports = THIS_HOST, [ANY_PORT] * servers
    if not resume:  # those of before may be about to let go of their ports
        for each in ports:
            require_free("--listen", host, each)
    return Listening(host, tuple(ports), before.token if before else token_urlsafe(24), lease_seconds)


def _published(folder: Path) -> Address | None:
    try:
        return from_json(read_file(folder / FILE, most_bytes=_MOST_BYTES), Address)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{folder / FILE}: damaged: {error}; remove it to serve with another token") from error


def _publish(settings: RunSettings, book: Mapping[str, str], tell: Callable[[str], None]) -> None:
    """Write where to join, for nobody but this user to read. Raises CheckpointError or UsageError where the disk refuses
    (`cannot_be_written`)."""
    assert settings.serving
    first, *others = addresses_in(book, settings.serving.served.num_servers)
    place = Address(first, settings.serving.listening.token, tuple(others))
    path = settings.run_folder / FILE
    partial = path.with_name(f".{FILE}.partial")
    try:
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(place)))
        partial.replace(path)
    except OSError as error:
        raise cannot_be_written(path, error) from error
    tell(f"serving {', '.join(settings.serving.served.tables)} at {place.address}")
    tell(
        f"workers join with htrain.client.connect({str(settings.run_folder)!r}), or by address with the token in {FILE}"
    )
