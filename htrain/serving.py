"""Serving a plan's tables to workers of one's own: `htrain.serve`, of which `htrain serve` is the command. Workers use `htrain.client`."""

from pathlib import Path

from rich.console import Console

from htrain.errors import UsageError
from htrain.executor.launch.earlier import begun_with
from htrain.executor.launch.serve import ANY_PORT, serve_plan
from htrain.executor.roles.coordination import RunResult
from htrain.executor.settings import RunSettings
from htrain.given import in_files, require_plan, words
from htrain.plan.plan import Plan
from htrain.spec.arguments import require_arguments
from htrain.spec.settings import CheckpointSeconds


def serve(
    plan: str | Path | Plan,
    *,
    out: str | Path = "",
    resume: str | Path = "",
    begin_with: str | Path = "",
    listen: str = "auto",
    lease_seconds: float = 30.0,
    checkpoint_seconds: CheckpointSeconds = 300.0,
    liveness_seconds: float = 60.0,
    num_threads: int = 1,
    console: Console | None = None,
) -> RunResult:
    """Serve the tables of a plan with HET caches to workers from outside, until Ctrl-C or SIGTERM; then they are saved in `out`.

    Each sparse PS is a process. `listen` is `HOST` or `HOST:PORT`: the first listens there, the others at the ports that follow; without a port, each at one
    that is free. `auto` is 127.0.0.1, or with `resume` where it was. Where to join, and with what token, stands in `serving.json` of the run folder. A worker
    that is not heard for `lease_seconds` is a member no more. `resume` goes on from the last checkpoint of a folder, `begin_with` from the tables of a run of
    the same model. `plan` is the folder of one, or a plan as `htrain.compile` gives it, which is kept in the run folder.
    Raises PlanError for a plan without such caches, CheckpointError, UsageError for what cannot start, RunError where nothing can listen, PeerLost when a
    server has died.

        from pathlib import Path

        import htrain

        cluster = htrain.Cluster(groups=1, trainers=1, group_ps=0, sparse_ps=2)
        options = htrain.Options(cache=htrain.HetCache(capacity="10%", staleness=2))
        plan = htrain.compile("models/wide_deep.py", data="packed:train.packed", cluster=cluster, options=options)
        plan.save(Path("tables"))
        htrain.serve("tables", out="runs/tables")  # until Ctrl-C
    """
    require_arguments(
        "serve", plan=words(plan), out=out, resume=resume, begin_with=begin_with, lease_seconds=lease_seconds, checkpoint_seconds=checkpoint_seconds,
        liveness_seconds=liveness_seconds, num_threads=num_threads,
    )  # fmt: skip
    require_plan("serve", plan)
    if bool(out) == bool(resume):
        raise UsageError("serve: give either out=, a new run folder, or resume=, the folder of one to go on with")
    if begin_with and resume:
        raise UsageError("serve: begin_with= is for a new folder: resume= goes on from its own checkpoint")
    host, port = listening_at(listen)
    folder = Path(out or resume)
    given = in_files(folder, plan=plan, is_new=not resume, function="serve")
    with begun_with(begin_with) as beginning, given as (plan_folder, *_):
        settings = RunSettings(
            plan_folder,
            "",
            folder,
            liveness_seconds=liveness_seconds,
            checkpoint_seconds=checkpoint_seconds,
            begin_with=beginning,
        )
        return serve_plan(
            settings,
            host=host,
            port=port,
            lease_seconds=lease_seconds,
            resume=bool(resume),
            num_threads=num_threads,
            console=console or Console(stderr=True),
        )


def listening_at(listen: str) -> tuple[str, int]:
    """The host and port of `HOST` or `HOST:PORT`; port 0 is any, and the host of `auto` "". Raises UsageError for another text."""
    if listen == "auto":
        return "", ANY_PORT
    host, colon, port = listen.rpartition(":") if listen.rpartition(":")[2].isdigit() else (listen, "", "")
    if not host or (colon and not 1 <= int(port) <= 65535) or any(c.isspace() for c in host):
        raise UsageError(
            f"listen: '{listen}' is no address of this host, want HOST or HOST:PORT, such as 10.0.0.7:7400"
        )
    return host, int(port) if colon else ANY_PORT
