"""`make demo`: the main job end to end, ending with a table against plain PyTorch. --rows makes it smaller or larger."""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from baseline import train_and_evaluate
from rich.console import Console
from rich.table import Table

from htrain.spec.options import Options

HTRAIN = [str(Path(sys.executable).with_name("htrain"))]
MODEL = str(Path(__file__).parents[1] / "models" / "dlrm.py")


def command(console: Console, *arguments: str, as_json: bool = False) -> dict:
    """Run an htrain command, as a user would; its document when it prints one. One that is interrupted says itself how to go on."""
    console.print(f"[bold]$ htrain {' '.join(arguments)}[/bold]", highlight=False, soft_wrap=True)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--folder", type=Path, default=Path("demo-run"))
    arguments = parser.parse_args()
    console, folder = Console(), arguments.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    train, test = f"criteo:{folder}/train.tsv?rows=20000", f"criteo:{folder}/test.tsv?rows=20000"
    made = ["data", "synth", "criteo", "--table-rows", "20000"]
    command(console, *made, "--rows", str(arguments.rows), "--out", f"{folder}/train.tsv")
    best = command(
        console, *made, "--rows", str(arguments.rows // 5), "--part", "test",
        "--out", f"{folder}/test.tsv", as_json=True,
    )  # fmt: skip
    shape = ["--groups", "2", "--trainers", "2", "--group-ps", "2", "--sparse-ps", "2", "--dense-ps", "1"]
    command(console, "compile", MODEL, "--data", train, *shape, "--out", f"{folder}/plan")
    command(console, "show", f"{folder}/plan")
    run = command(console, "run", f"{folder}/plan", "--data", train, "--out", f"{folder}/run", as_json=True)
    found = command(console, "eval", f"{folder}/run", "--data", test, as_json=True)
    console.print("[bold]plain PyTorch, the same model, data, batch and optimizers, one process[/bold]")
    torch.set_num_threads(2)
    plain = train_and_evaluate(MODEL, train, test, Options())

    table = Table("", "NE (test)", "AUC (test)", "EPS (training)")
    table.add_row("best reachable", f"{best['best_ne']:.4f}", f"{best['best_auc']:.4f}", "")
    table.add_row("plain PyTorch, 2 threads", f"{plain.ne:.4f}", f"{plain.auc:.4f}", f"{plain.eps:,.0f}")
    eps = run["examples"] / run["train_seconds"]
    table.add_row("htrain, 2 x (2 + 2) + 2 + 1 roles", f"{found['ne']:.4f}", f"{found['auc']:.4f}", f"{eps:,.0f}")
    console.print(table)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
