"""A sparse PS against raw pyzmq: bytes per second of pull and push, the server's CPU and memory.

    python tools/bench/sparse_ps.py [--runs 7] [--ids 8] [--link 1gbit] [--optimizer adagrad] [--history FILE]

The plan is that of a DLRM with 26 tables of 10^5 rows x 64 (batch 2048; one trainer, one group PS, one sparse PS). The real sparse PS runs in a process of its
own. One client plays all others by the plan's nets: it sends 2048 distinct ids of each table (`--ids`), takes the rows, sends gradients back and takes the Ack,
with `--open` steps under way. Another such client does the same with a bare pyzmq server, which answers with frames made beforehand, of the same
number and sizes and without a copy. Runs alternate. Bytes are those of ids, rows and gradients, without headers of any kind.

With `--link`, server and client are hosts of their own (tools/netlab.py; wants root), joined by links of that rate. A link carries its rate both ways at once:
the share is that of the busier way; `in all` is what the link carried that way, headers and acknowledgements included. No raw server then.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, get_args

from history import append, summary

sys.path.insert(0, str(Path(__file__).parents[1]))

from netlab import Lab, bits_per_second, unwind_when_ended

import htrain
from htrain.executor.launch.environment import role_environment
from htrain.spec.cluster import this_machine
from htrain.spec.numerics import GradientDtype, RowDtype
from htrain.spec.tree import with_flags

MODEL = str(Path(__file__).parents[2] / "models" / "dlrm.py:build_bench")
PARTS = str(Path(__file__).parent / "sparse_ps_parts.py")
Run = dict[str, float]


class Part:
    """A process that answers a line with a line; its environment is that of roles."""

    def __init__(self, name: str, plan: Path, host: str, asked: argparse.Namespace, inside: list[str]) -> None:
        words = [*inside, sys.executable, PARTS, name, str(plan), host, str(asked.workers), str(asked.ids)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=role_environment(1)
        )

    def tell(self, **words: Any) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a part of the benchmark has ended")
        heard: dict[str, Any] = json.loads(line)
        if heard.get("error"):
            raise SystemExit(heard["error"])
        return heard

    def ask(self, **words: Any) -> dict[str, Any]:
        self.tell(**words)
        return self.hear()

    def close(self) -> None:
        """The end of its input ends it."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()


class Pair:
    """A server and its client."""

    def __init__(
        self, kind: str, plan: Path, asked: argparse.Namespace, hosts: list[tuple[str, list[str]]], stack: ExitStack
    ) -> None:
        self._server, self._client = (
            stack.enter_context(closing(Part(name, plan, host, asked, inside)))
            for name, (host, inside) in zip((kind, "drive"), hosts, strict=True)
        )
        self.said, book = self._server.hear(), self._client.hear()["book"]
        self._server.tell(book=book)
        self._client.tell(address=self.said["address"])

    def run(self, steps: int, open_steps: int) -> Run:
        before = self._server.ask(report=True)
        found = self._client.ask(steps=steps, open_steps=open_steps)
        after = self._server.ask(report=True)
        whole = steps + 2 * open_steps
        rate = (found["sent"] + found["received"]) / found["seconds"]
        cpu = (after["cpu"] - before["cpu"]) / whole
        return {
            **found,
            "rate": rate,
            "steps_a_second": steps / found["seconds"],
            "cpu": cpu,
            "memory": after["memory"],
        }


def make_plan(folder: Path, optimizer: str, row_dtype: RowDtype, fuse: bool) -> Path:
    gradients: GradientDtype = "float32" if row_dtype == "float32" else "bfloat16"
    options = with_flags(
        batch_size=2048,
        dense_optimizer="sgd",
        sparse_optimizer=optimizer,
        fuse_servers=fuse,
        row_dtype=row_dtype,
        row_gradient_dtype=gradients,
    )
    cluster = this_machine(groups=1, trainers=1, group_ps=1, sparse_ps=1)
    htrain.compile(MODEL, data="synthetic:?table_rows=100000", cluster=cluster, options=options).save(folder / "plan")
    return folder / "plan"


def on_loopback(plan: Path, asked: argparse.Namespace, stack: ExitStack) -> dict[str, list[Run]]:
    """Runs of the sparse PS and of bare pyzmq, in turn."""
    here: list[tuple[str, list[str]]] = [("127.0.0.1", [])] * 2
    pairs = {kind: Pair(kind, plan, asked, here, stack) for kind in ("serve", "echo")}
    found: dict[str, list[Run]] = {kind: [] for kind in pairs}
    for number in range(asked.runs + 1):
        for kind, pair in pairs.items():
            run = pair.run(asked.steps, asked.open)
            found[kind] += [run] if number else []  # the first does not count: loops are compiled, buffers made
    print_memory(pairs["serve"].said, found["serve"])
    return found


def print_memory(said: Run, runs: list[Run]) -> None:
    """Memory beyond that of the process before it filled its tables, against the bytes of rows and their optimizer's state."""
    filled, most = (
        (memory - said["bare"]) / said["stored"] for memory in (said["filled"], max(run["memory"] for run in runs))
    )
    stored, bare = said["stored"] / 1e6, said["bare"] / 1e6
    print(
        f"memory    {stored:,.0f} MB of rows and state; {filled:.3f} of that when filled, {most:.3f} under load, beside {bare:,.0f} MB"
    )


def print_loopback(found: dict[str, list[Run]], arguments: dict[str, Any], history: Path | None) -> None:
    ours, raw = found["serve"], found["echo"]
    ratios = [a["rate"] / b["rate"] for a, b in zip(ours, raw, strict=True)]
    for name, runs in (("sparse PS", ours), ("pyzmq", raw)):
        rates, cpu = ([run[key] * factor for run in runs] for key, factor in (("rate", 1e-6), ("cpu", 1e3)))
        steps = [run["steps_a_second"] for run in runs]
        print(
            f"{name:<10}{_text(rates, '8,.0f')} MB/s   {_text(steps, '7,.0f')} steps a second   server {_text(cpu, '.3f')} CPU ms a step"
        )
    print(f"ratio     {_text(ratios, '8.3f')}  n={len(ratios)}")
    if history:
        append(
            history,
            "sparse_ps",
            arguments,
            {"ratio": summary(ratios), **{k: summary([r["rate"] for r in runs]) for k, runs in found.items()}},
        )


def over_link(plan: Path, asked: argparse.Namespace, stack: ExitStack) -> None:
    rate = bits_per_second(asked.link) / 8
    lab = stack.enter_context(Lab(2, rate=asked.link))
    hosts = [(f"10.77.0.{k}", ["ip", "netns", "exec", host]) for k, host in enumerate(lab.hosts, 1)]
    pair = Pair("serve", plan, asked, hosts, stack)
    shares, sums, in_all, cpu = [], [], [], []
    for number in range(asked.runs + 1):
        before = lab.traffic()[lab.hosts[0]]
        run = pair.run(asked.steps, asked.open)
        after = lab.traffic()[lab.hosts[0]]
        carried = (
            max(after.received - before.received, after.sent - before.sent)
            / (asked.steps + 2 * asked.open)
            * asked.steps
        )
        if number:
            shares.append(max(run["sent"], run["received"]) / run["seconds"] / rate)
            sums.append(run["rate"] / 1e6)
            in_all.append(carried / run["seconds"] / rate)
            cpu.append(1e3 * run["cpu"])
    print(
        f"link {asked.link}: payload of the busier way {_text(shares, '.3f')} of the rate, in all {_text(in_all, '.3f')}"
    )
    print(f"both ways {_text(sums, '.1f')} MB/s   server {_text(cpu, '.1f')} CPU ms a step   n={len(shares)}")
    if asked.history:
        append(
            asked.history,
            "sparse_ps",
            vars(asked),
            {"share": summary(shares), "in_all": summary(in_all), "megabytes": summary(sums)},
        )


def _text(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form.strip('8')}} to {max(values):{form.strip('8')}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40, help="steps of a run that are counted")
    parser.add_argument(
        "--ids", type=int, default=2048, help="distinct ids of each table in a step; small requests have 8"
    )
    parser.add_argument("--open", type=int, default=6, help="steps under way at once")
    parser.add_argument("--workers", type=int, default=2, help="threads of the sparse PS that run stages")
    parser.add_argument("--link", default="", help="a rate, such as 1gbit")
    parser.add_argument("--optimizer", default="sgd", choices=["sgd", "adagrad", "rowwise_adagrad"])
    parser.add_argument(
        "--row-dtype",
        default="float32",
        choices=get_args(RowDtype),
        help="where it is not float32, gradients are bfloat16",
    )
    parser.add_argument("--no-fuse-servers", action="store_true")
    parser.add_argument("--history", type=Path, help="add a line of JSON to this file")
    asked = parser.parse_args()
    unwind_when_ended()
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        plan = make_plan(Path(made), asked.optimizer, asked.row_dtype, not asked.no_fuse_servers)
        if asked.link:
            over_link(plan, asked, stack)
        else:
            print_loopback(on_loopback(plan, asked, stack), vars(asked), asked.history)


if __name__ == "__main__":
    main()
