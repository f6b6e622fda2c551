"""CPU seconds of each op of a plan as it trains, beside those that the cost model gives it: where a prediction is off, this says for which op.

    htrain compile models/wide_deep.py --data DATA ... --out plan/
    python tools/bench/op_seconds.py plan/ DATA [--trace] [--epochs 3]

Roles are processes, as in any run. What a kernel takes is the CPU time of its thread, Python and torch's own included; what the model gives is `op_seconds` of
the op at the sizes that the simulation uses (with --trace, of caches that ask for the rows of DATA). Messages, and what threads do besides, are the rest of a
role's CPU, which is printed, too.
"""

import argparse
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from htrain.executor.launch.environment import role_environment

os.environ.update(role_environment(1))  # before torch is loaded: roles are forked from this process

import htrain
from htrain.costs.seconds import op_seconds
from htrain.executor.engine import program
from htrain.executor.launch.supervisor import fork_supervisor
from htrain.net.names import device_of
from htrain.net.net import Net, Op
from htrain.ops import OPS
from htrain.ops.cache_rates import NO_RATES
from htrain.plan.plan import load_plan
from htrain.simulation.cache_rates import rates_of
from htrain.simulation.id_sources import Trace
from htrain.simulation.run import sized_nets

_FIRST = 20  # runs of an op that do not count: caches are cold, and Numba compiles


@dataclass
class _Spent:
    """The CPU nanoseconds of the runs of an op that count."""

    runs: int = 0
    nanoseconds: int = 0

    def add(self, nanoseconds: int) -> None:
        self.runs += 1
        if self.runs > _FIRST:
            self.nanoseconds += nanoseconds

    @property
    def seconds(self) -> float:
        return self.nanoseconds * 1e-9 / max(1, self.runs - _FIRST)


SPENT: dict[tuple[str, tuple[str, ...]], _Spent] = defaultdict(_Spent)


def _timed(spent: _Spent, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        began = time.thread_time_ns()
        try:
            return kernel(*arguments, **named)
        finally:
            spent.add(time.thread_time_ns() - began)

    return run


def _time_kernels() -> None:
    """From now on, every kernel that a program binds is timed."""
    for name in ("_bound", "_bound_to_bundles"):
        bind = getattr(program, name)

        def timed(net: Net, op: Op, parameters: Mapping[str, Any], *, bind: Callable[..., Any] = bind) -> Any:
            return _timed(SPENT[net.name, _key(op)], bind(net, op, parameters))

        setattr(program, name, timed)


def _key(op: Op) -> tuple[str, ...]:
    return (op.type, *op.inputs, "->", *op.outputs)


def _write_when_played(folder: Path) -> None:
    """From now on, every role leaves what its kernels took, its CPU seconds and its steps in `folder`."""
    module = import_module("htrain.executor.launch.supervisor")
    play_all = module.play_all

    def played(roles: Sequence[str], *rest: Any, **left: Any) -> None:
        play_all(roles, *rest, **left)
        name = roles[0]
        spent = [[net, key, each.runs, each.seconds] for (net, key), each in SPENT.items()]
        (folder / f"{name}.json").write_text(json.dumps([time.process_time(), spent]))

    module.play_all = played


def report(folder: Path, nets: Mapping[str, Net], predicted: Callable[[Net, Op], float], least_share: float) -> None:
    """A line for each type of op of each device, the dearest first: those of its first role."""
    for device, net in nets.items():
        role = min(path for path in folder.glob("*.json") if device_of(path.stem) == device)
        cpu, spent = json.loads(role.read_text())
        known = {tuple(key): (runs, seconds) for _, key, runs, seconds in spent if runs > _FIRST}
        rows: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
        for op in net.ops:
            if _key(op) in known and OPS[op.type].work != "message":
                row = rows[op.type]
                row[0] += 1
                row[1] += known[_key(op)][1]
                row[2] += predicted(net, op)
        measured, model = (sum(row[i] for row in rows.values()) for i in (1, 2))
        steps = max((runs for runs, _ in known.values()), default=1)
        print(
            f"{role.stem}: ops {measured * 1e3:.2f} ms a step measured, {model * 1e3:.2f} by the model; all CPU {cpu * 1e3 / steps:.2f}, start included"
        )
        for kind, (count, took, given) in sorted(rows.items(), key=lambda item: -max(item[1][1:])):
            if max(took, given) >= least_share * max(measured, model):
                ratio = took / given if given else float("inf")
                print(f"  {kind:<26}{count:>4.0f}{took * 1e6:>10.0f} us{given * 1e6:>10.0f} us{ratio:>7.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("data")
    parser.add_argument("--trace", action="store_true", help="caches ask for the rows that DATA makes them ask for")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--least-share", type=float, default=0.02, help="leave out what takes less of its device")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _time_kernels()
        _write_when_played(Path(folder))
        fork_supervisor()
        htrain.run(given.plan, data=given.data, out=Path(folder) / "run", epochs=given.epochs)
        plan = load_plan(given.plan)
        nets = sized_nets(plan, rates_of(plan, Trace(given.data)) if given.trace else NO_RATES)

        def predicted(net: Net, op: Op) -> float:
            inputs, outputs = [net.blob(n) for n in op.inputs], [net.blob(n) for n in op.outputs]
            return op_seconds(op, inputs, outputs, plan.cluster, plan.options.batch_size)

        report(Path(folder), nets, predicted, given.least_share)


if __name__ == "__main__":
    main()
