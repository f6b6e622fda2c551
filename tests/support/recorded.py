"""Run folders as runs leave them, without a run: what each role reports is given, and written by the run's own log."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from htrain.data.identity import READER, DataIdentity
from htrain.executor.record.checkpoint import (
    VERSION,
    Manifest,
    ReaderPosition,
    TrainerState,
    TrainerTotals,
    write_manifest,
)
from htrain.executor.record.identity import Identity, PlanIdentity
from htrain.executor.record.measured import predicted_edges
from htrain.executor.record.run_folder import RunRecord, start_record
from htrain.executor.record.run_log import RunLog
from htrain.executor.record.sent import packed
from htrain.executor.record.totals import summarise
from htrain.net.names import device_of, role_of
from htrain.plan.plan import Plan

Reports = dict[str, dict[str, Any]]


def reports_at(
    plan: Plan,
    seconds: float,
    *,
    eps: float = 0.0,
    cpu: Mapping[str, float] | None = None,
    sent: Mapping[tuple[str, str], float] | None = None,
    memory: int = 0,
    waited: float = 0.0,
    caches: Mapping[str, Any] | None = None,
) -> Reports:
    """What roles report after `seconds` of training that goes as the plan predicts, but for what is given: EPS, times as much CPU by device
    and bytes by edge, bytes of memory, the share of time that trainers wait, and what caches count a second."""
    examples = (eps or plan.predicted_eps) * seconds
    edges = predicted_edges(plan)
    found: Reports = {}
    for role in plan.cluster.roles:
        device = device_of(role)
        count = sum(device_of(other) == device for other in plan.cluster.roles)
        load = plan.loads[device]
        times = (cpu or {}).get(device, 1.0)
        sent_to = {
            next(r for r in plan.cluster.roles if device_of(r) == target): int(
                examples / count * num_bytes * (sent or {}).get((source, target), 1.0)
            )
            for (source, target), num_bytes in edges.items()
            if source == device
        }
        found[role] = {
            "cpu_seconds": load.cpu_seconds_per_example * examples / count * times,
            "memory_bytes": memory or load.holds.total,
            "bytes_sent": sum(sent_to.values()),
            "sent_to": packed(sent_to),
            "staleness": {"0": int(seconds * 10), "1": int(seconds * 30)},
            "sync_rounds": int(seconds),
            **({"caches": {name: int(n * seconds) for name, n in caches.items()}} if caches else {}),
        }
        if role_of(role) == "trainer":
            done = int(examples / count)
            found[role] |= {
                "examples": done, "steps": done // 8, "log_loss": 0.5 * done, "positives": done / 3,
                "seconds_waited": waited * seconds, "malformed": 0,
            }  # fmt: skip
    return found


def write_run(
    folder: Path, plan: Plan, moments: Sequence[tuple[float, Reports]], *, plan_folder: Path = Path("plan")
) -> Path:
    """A run folder with a line of metrics for each moment; a folder that is there is resumed."""
    is_resumed = folder.exists()
    folder.mkdir(exist_ok=True, parents=True)
    start_record(folder, RunRecord(str(plan_folder), "synthetic:?rows=10", 1, False), resume=is_resumed)
    log = RunLog(folder, lambda _: None)
    before: tuple[float, Reports] = (0.0, {})
    for seconds, reports in moments:
        log.write(summarise(reports, before[1], seconds=seconds, window_seconds=seconds - before[0]), reports)
        before = seconds, reports
    log.close()
    return folder


def write_checkpoint(folder: Path, plan: Plan, *, examples: int, finished: bool) -> None:
    """A checkpoint that says what it belongs to, and holds nothing."""
    place = folder / "checkpoints" / f"examples_{examples:012d}"
    place.mkdir(parents=True)
    identity = Identity(PlanIdentity.of(plan), DataIdentity(READER, "synthetic", {}, ()))
    state = TrainerState(ReaderPosition(0, 0, 0), TrainerTotals(examples, 1, 0.0, 0.0))
    write_manifest(place, Manifest(VERSION, place.name, 1, identity, examples, {"trainer:0:0": state}, {}, finished))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
