"""What compression and low precision save and cost (HT 4.2, 5.1): bytes on the wire, and AUC on Frappe.

    python tools/precision.py --frappe ../shared/data/frappe.libfm.gz
    htrain data synth criteo --rows 200000 --out train.tsv && htrain data synth criteo --rows 20000 --part test --out test.tsv
    python tools/precision.py --train criteo:train.tsv --test criteo:test.tsv --model dlrm.py

One group of 2 trainers and 2 group PSs as local processes, one epoch, every value that travels between them encoded. The placement is
that of the rules, so that it is the same for all: the search would place anew what is small.
Bytes are those that trainers and group PSs sent each other, by the roles' own counters of what went into their sockets; the median and
the range of AUC are over `--repeats` runs, since Hogwild makes each run another one.
"""

import argparse
import gzip
import random
import statistics
import tempfile
from pathlib import Path

from rich.console import Console

import htrain
from htrain.net.names import role_of
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

MODELS = Path(__file__).parents[1] / "models"
SETTINGS: dict[str, dict[str, object]] = {
    "float32": {"fc_dtype": "float32"},
    "bfloat16": {"activation_dtype": "bfloat16", "gradient_dtype": "bfloat16"},
    "int8 + bfloat16 gradients": {"activation_dtype": "int8", "gradient_dtype": "bfloat16"},
    "FCs in bfloat16": {"fc_dtype": "bfloat16"},
    "FCs in bfloat16, both passes": {"fc_dtype": "bfloat16", "fc_gradient_dtype": "bfloat16"},
    "FCs in int8": {"fc_dtype": "int8"},
}


def parts(data: Path, folder: Path) -> tuple[str, str]:
    """Train and test URIs: rows shuffled with seed 0, split 80/20."""
    rows = gzip.decompress(data.read_bytes()).splitlines(keepends=True)
    random.Random(0).shuffle(rows)
    cut = len(rows) * 8 // 10
    (folder / "train.libfm").write_bytes(b"".join(rows[:cut]))
    (folder / "test.libfm").write_bytes(b"".join(rows[cut:]))
    return f"libfm:{folder}/train.libfm?rows=5382", f"libfm:{folder}/test.libfm?rows=5382"


def in_group(device: str) -> bool:
    return role_of(device) in ("trainer", "group_ps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frappe", type=Path)
    parser.add_argument("--train", default="")
    parser.add_argument("--test", default="")
    parser.add_argument("--model", default="wide_deep.py")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--only", action="append", choices=list(SETTINGS), help="a setting to run; all by default")
    arguments = parser.parse_args()
    print(f"{'':<30}{'bytes / example':>16}{'less':>8}{'AUC':>9}  lowest to highest of {arguments.repeats}")
    full = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train, test = parts(arguments.frappe, folder) if arguments.frappe else (arguments.train, arguments.test)
        for label, changes in ((label, SETTINGS[label]) for label in arguments.only or SETTINGS):
            shorter = any(name.startswith(("activation", "gradient")) for name in changes)
            options = with_flags(
                with_flags(batch_size=arguments.batch_size, compress="always" if shorter else "auto"), **changes
            )
            plan = htrain.compile(
                str(MODELS / arguments.model),
                data=train,
                options=options,
                cluster=this_machine(trainers=2, group_ps=2, sparse_ps=1),
                solver="rules",
                fc_splits={},
            )
            plan.save(folder / label)
            found, sent = [], 0.0
            for repeat in range(arguments.repeats):
                out = folder / f"{label} {repeat}"
                result = htrain.run(folder / label, data=train, out=out, console=Console(quiet=True))
                found.append(htrain.evaluate(out, data=test).auc)
                sent = sum(e.measured_bytes for e in result.measured.edges if in_group(e.source) and in_group(e.target))
            full = full or sent
            print(
                f"{label:<30}{sent:>16,.0f}{full / sent:>7.2f}x{statistics.median(found):>9.4f}  {min(found):.4f} to {max(found):.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
