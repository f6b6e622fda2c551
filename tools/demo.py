"""`make demo`: what a newcomer compares first, one process beside plain PyTorch; then the hierarchy and what it is for; then scores and a model to serve.

--rows makes it smaller or larger.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from baseline import Baseline, train_and_evaluate
from rich.console import Console
from rich.table import Table

from htrain.data import START, Malformed, open_data
from htrain.spec.options import Options

HTRAIN = [str(Path(sys.executable).with_name("htrain"))]
MODEL = str(Path(__file__).parents[1] / "models" / "dlrm.py")
ONE = ("--groups", "1", "--trainers", "1", "--group-ps", "0", "--sparse-ps", "0", "--dense-ps", "0")
HIERARCHY = ("--groups", "2", "--trainers", "2", "--group-ps", "2", "--sparse-ps", "2", "--dense-ps", "1")
HOSTS = ("--trainers", "4", "--group-ps", "2", "--sparse-ps", "4", "--dense-ps", "1", "--host-cores", "own",
         "--trainer-cores", "8", "--group-ps-cores", "16", "--sparse-ps-cores", "8")  # fmt: skip
SCORED = 1000


class Demo:
    """The steps, in a folder; each prints the commands that it runs, as a user would type them."""

    def __init__(self, console: Console, folder: Path, rows: int) -> None:
        self.console, self.folder, self.rows = console, folder, rows
        self.train, self.test = f"criteo:{folder}/train.tsv?rows=20000", f"criteo:{folder}/test.tsv?rows=20000"

    def say(self, text: str) -> None:
        """A heading."""
        self.console.print(f"\n[bold]{text}[/bold]", highlight=False)

    def command(self, *arguments: str, as_json: bool = False) -> dict:
        """Run an htrain command; its document when it prints one. One that is interrupted says itself how to go on."""
        self.console.print(f"[bold]$ htrain {' '.join(arguments)}[/bold]", highlight=False, soft_wrap=True)
        words = [*HTRAIN, *arguments, *(["--json"] if as_json else [])]
        with subprocess.Popen(words, stdout=subprocess.PIPE if as_json else None, text=True) as run:
            try:
                said, _ = run.communicate()
            except KeyboardInterrupt:
                run.communicate()
                sys.exit(130)
        if run.returncode:
            sys.exit(run.returncode)
        return json.loads(said) if as_json else {}

    def data(self) -> dict:
        """Training and test data; what can be reached on the latter."""
        made = ["data", "synth", "criteo", "--table-rows", "20000"]
        self.command(*made, "--rows", str(self.rows), "--out", f"{self.folder}/train.tsv")
        count = str(self.rows // 5)
        return self.command(*made, "--rows", count, "--part", "test", "--out", f"{self.folder}/test.tsv", as_json=True)

    def trained(self, name: str, shape: tuple[str, ...], *, shown: bool = False) -> Mapping[str, float]:
        """EPS, NE and AUC of a plan of this shape."""
        plan, run = f"{self.folder}/{name}-plan", f"{self.folder}/{name}"
        self.command("compile", MODEL, "--data", self.train, *shape, "--out", plan)
        if shown:
            self.command("show", plan)
        said = self.command("run", plan, "--data", self.train, "--out", run, as_json=True)
        found = self.command("eval", run, "--data", self.test, as_json=True)
        return {"eps": said["examples"] / said["train_seconds"], "ne": found["ne"], "auc": found["auc"]}

    def plain(self) -> Baseline:
        """Plain PyTorch."""
        torch.set_num_threads(2)
        return train_and_evaluate(MODEL, self.train, self.test, Options())

    def on_hosts(self) -> list[tuple[int, float, float]]:
        """Of one, two and four groups on hosts of their own: groups, cores, EPS, simulated."""
        plan = f"{self.folder}/hosts-plan"
        self.command("compile", MODEL, "--data", self.train, "--groups", "4", *HOSTS, "--out", plan)
        rows = []
        for groups in (1, 2, 4):
            found = self.command("simulate", plan, "--groups", str(groups), as_json=True)
            rows.append((groups, groups * (4 * 8 + 2 * 16) + 4 * 8, found["eps"]))
        return rows

    def served(self, run: str) -> None:
        """Scores, and the same ones from a model that another runtime has loaded."""
        self.command("predict", run, "--data", self.test, "--out", f"{self.folder}/scores.npy")
        self.command("export", run, "--to", "onnx", "--out", f"{self.folder}/model.onnx")
        session = onnxruntime.InferenceSession(f"{self.folder}/model.onnx")
        batch = next(
            open_data(self.test).batches(
                batch_size=SCORED, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()
            )
        )
        inputs = {each.name: batch.columns[each.name] for each in session.get_inputs()}
        (score,) = session.run(["score"], inputs)
        wanted = np.load(f"{self.folder}/scores.npy")["score"][: batch.num_examples]
        apart = float(np.abs(score.ravel() - wanted).max())
        self.console.print(f"ONNX Runtime scores {batch.num_examples:,} rows as htrain does, within {apart:.0e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--folder", type=Path, default=Path("demo-run"))
    arguments = parser.parse_args()
    shutil.rmtree(arguments.folder, ignore_errors=True)
    arguments.folder.mkdir(parents=True)
    demo = Demo(Console(), arguments.folder, arguments.rows)
    demo.say("Data: a click log with a planted model")
    best = demo.data()
    demo.say("One process, as one would begin")
    one = demo.trained("one", ONE)
    demo.say("Plain PyTorch: the same model, data, batch size and optimizers, in one process")
    plain = demo.plain()
    demo.say(
        "The hierarchy: two groups of trainers and group PSs, sparse PSs, a dense PS. Here they share this machine's cores, and are slower than one process"
    )
    groups = demo.trained("run", HIERARCHY, shown=True)
    demo.say("What it is for: many hosts. Simulated, trainers and sparse PSs of 8 cores, group PSs of 16")
    hosts = demo.on_hosts()
    demo.say("Scores, and a model to serve")
    demo.served(f"{arguments.folder}/one")

    table = Table("", "NE (test)", "AUC (test)", "EPS (training)")
    table.add_row("best reachable", f"{best['best_ne']:.4f}", f"{best['best_auc']:.4f}", "")
    table.add_row("plain PyTorch, one process, 2 threads", f"{plain.ne:.4f}", f"{plain.auc:.4f}", f"{plain.eps:,.0f}")
    for what, found in (("htrain, one process", one), ("htrain, 2 x (2 + 2) + 2 + 1 roles on this machine", groups)):
        table.add_row(what, f"{found['ne']:.4f}", f"{found['auc']:.4f}", f"{found['eps']:,.0f}")
    for count, cores, eps in hosts:
        table.add_row(
            f"simulated: {count} group{'s' if count > 1 else ''} on hosts, {cores} cores", "", "", f"{eps:,.0f}"
        )
    demo.console.print(table)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
