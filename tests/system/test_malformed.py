"""Malformed inputs: one clear line, a non-zero exit, no traceback, no hang, no half-written output."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import Commands

import htrain
from htrain.data import Malformed
from htrain.data.pack import pack
from htrain.spec.cluster import this_machine
from htrain.spec.migrations import NEWEST
from htrain.spec.options import Options

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with good data, a good plan and a good run, to be spoiled in copies."""
    folder = tmp_path_factory.mktemp("good")
    draw = random.Random(0)
    rows = [f"{draw.choice((1, -1))} " + " ".join(f"{draw.randrange(50)}:1" for _ in range(4)) for _ in range(600)]
    (folder / "a.libfm").write_text("\n".join(rows) + "\n")
    data = f"libfm:{folder}/a.libfm?rows=50"
    plan = htrain.compile(
        str(MODELS / "wide_deep.py"), data=data, cluster=this_machine(), options=Options(batch_size=64)
    )
    plan.save(folder / "plan")
    htrain.run(folder / "plan", data=data, out=folder / "run", hosting="threads")
    return folder


def htrain_says(commands: Commands, folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit status and last line of standard error of a command run in `folder`."""
    run = commands.run(arguments, folder, timeout=90)
    assert "Traceback" not in run.stderr, run.stderr
    assert len([line for line in run.stderr.splitlines() if line.startswith("htrain:")]) == 1, run.stderr
    return run.returncode, run.stderr.splitlines()[-1]


def model(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "model.py").write_text("import torch\nfrom torch import nn\n" + text) and None  # type: ignore[func-returns-value]


def edit(path: str, old: str, new: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        text = (folder / path).read_text()
        assert old in text
        (folder / path).write_text(text.replace(old, new, 1))

    return spoil


def write(path: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / path).write_bytes(data) and None  # type: ignore[func-returns-value]


def truncate_checkpoint(folder: Path) -> None:
    file = max((folder / "run" / "checkpoints").iterdir()) / "group_ps_0_0.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def spoil_manifest(folder: Path) -> None:
    path = max((folder / "run" / "checkpoints").iterdir()) / "manifest.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "surprise": 1}))


def drop_manifest(folder: Path) -> None:
    (max((folder / "run" / "checkpoints").iterdir()) / "manifest.json").unlink()


def cut_short(folder: Path) -> None:
    pack(f"libfm:{folder}/a.libfm?rows=50", folder / "a.packed", malformed=Malformed())
    (folder / "a.packed").write_bytes((folder / "a.packed").read_bytes()[:-100])


def change_after_packing(folder: Path) -> None:
    pack(f"libfm:{folder}/a.libfm?rows=50", folder / "a.packed", malformed=Malformed())
    (folder / "a.libfm").write_text("1 1:1\n")


def nothing(folder: Path) -> None:
    return


COMPILE = ["compile", "model.py", "--out", "new"]
RUN = ["run", "plan", "--data", "libfm:a.libfm?rows=50", "--out", "new"]
RESUME = ["run", "plan", "--data", "libfm:a.libfm?rows=50", "--resume", "run"]
EVAL = ["eval", "run", "--data", "libfm:a.libfm?rows=50"]
MODULE = "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.e = nn.Embedding(50, 4)\n        self.l = nn.Linear(4, 1)\n"
FORWARD = "    def forward(self, sparse):\n"
BUILD = "def build():\n    return M()\n"
EXAMPLE = "def example_inputs(n):\n    return {'sparse': torch.zeros(n, dtype=torch.int64)}\n"

Spoil = Callable[[Path], object]
CASES: dict[str, tuple[Spoil, list[str], int, str]] = {
    "no such command": (nothing, ["train"], 2, "No such command 'train'"),
    "no arguments": (nothing, ["compile"], 2, "Missing argument 'MODEL'"),
    "a flag that is no number": (nothing, ["compile", "m.py", "--out", "new", "--batch-size", "many"], 2, "--batch-size"),
    "no such model": (nothing, COMPILE, 1, "model.py: no such file"),
    "a model file with a syntax error": (model("def build(:\n"), COMPILE, 1, "cannot be imported: SyntaxError"),
    "a model file without a factory": (model(""), COMPILE, 1, "has no function 'build'"),
    "a factory that fails": (model("def build():\n    raise ValueError('no')\n"), COMPILE, 1, "building the model failed: ValueError: no"),
    "a factory that wants more than it is given": (
        model("def build(schema, width, depth=2):\n    return 3\n"), COMPILE, 1, "the factory wants 'width', but is called with `schema` or with nothing",
    ),
    "a factory that gives no module": (model("def build():\n    return 3\n"), COMPILE, 1, "returned a int"),
    "an op that cannot be compiled": (
        model(MODULE + FORWARD + "        return torch.special.bessel_j0(self.e(sparse))[:, 0]\n" + BUILD + EXAMPLE),
        COMPILE, 1, "cannot be compiled",
    ),
    "control flow on data": (
        model(MODULE + FORWARD + "        return self.l(self.e(sparse)) if sparse.sum() > 3 else self.e(sparse)[:, :1]\n" + BUILD + EXAMPLE),
        COMPILE, 1, "torch.export cannot capture M",
    ),
    "a model that would never train": (
        model(MODULE + FORWARD + "        return self.l(self.e(sparse)).detach()\n" + BUILD + EXAMPLE),
        COMPILE, 1, "would never train",
    ),
    "inputs that the data does not have": (
        model(MODULE + "    def forward(self, words):\n        return self.l(self.e(words))\n" + BUILD), COMPILE, 1, "takes 'words', the data gives",
    ),
    "an ONNX file that is none": (write("model.onnx", b"not onnx"), ["compile", "model.onnx", "--out", "new"], 1, "model.onnx"),
    "a cluster file that is no YAML": (write("c.yaml", b"groups: [1"), [*COMPILE, "--cluster", "c.yaml"], 1, "c.yaml: not YAML"),
    "an unknown field of the cluster": (write("c.yaml", b"groups: 1\ngruops: 2\n"), [*COMPILE, "--cluster", "c.yaml"], 1, "c.yaml:2: unknown field 'gruops'"),
    "a cluster that contradicts itself": (write("c.yaml", b"trainers: 2\ngroup_ps: 0\n"), [*COMPILE, "--cluster", "c.yaml"], 1, "needs group_ps >= 1"),
    "no such plan": (nothing, ["show", "nowhere"], 1, "nowhere: not a plan folder"),
    "a plan of another version": (edit("plan/plan.yaml", f"version: {NEWEST}", f"version: {NEWEST + 1}"), ["check", "plan"], 1, f"version {NEWEST + 1}"),
    "an unknown key in a plan": (edit("plan/plan.yaml", "model:", "surprise: 2\nmodel:"), ["check", "plan"], 1, "surprise"),
    "a net that is no ONNX": (write("plan/nets/trainer.onnx", b"\x00\x01"), ["check", "plan"], 1, "trainer.onnx"),
    "a plan without a net": (lambda folder: (folder / "plan/nets/group_ps_0.onnx").unlink(), ["check", "plan"], 1, "group_ps_0.onnx"),
    "a tampered digest": (edit("plan/plan.yaml", "seed: 0", "seed: 1"), ["check", "plan"], 0, ""),
    "no such data": (nothing, [*RUN[:3], "libfm:b.libfm", *RUN[4:]], 1, "b.libfm: no such file"),
    "an unknown data format": (nothing, [*RUN[:3], "tsv:a.libfm", *RUN[4:]], 1, "want FORMAT:PATH"),
    "data of another shape": (nothing, [*RUN[:3], "synthetic:?rows=100", *RUN[4:]], 1, "the plan wants input 'sparse'"),
    "an empty data file": (write("a.libfm", b""), RUN, 1, "a.libfm: is empty"),
    "a data file of rubbish": (write("a.libfm", b"\x00\xff rubbish\n" * 100), RUN, 1, "a.libfm:1: the label is not a number"),
    "too many malformed rows": (lambda f: (f / "a.libfm").write_text((f / "a.libfm").read_text() + "1 x:y\n" * 50) and None, RUN, 1, "a.libfm:"),
    "a packed file that is cut short": (cut_short, [*RUN[:3], "packed:a.packed", *RUN[4:]], 1, "a.packed: is no packed file, or a damaged"),
    "data that changed after it was packed": (change_after_packing, [*RUN[:3], "packed:a.packed", *RUN[4:]], 1, "pack it again (htrain data pack 'libfm:"),
    "a packed file over its source": (nothing, ["data", "pack", "libfm:a.libfm", "--out", "a.libfm"], 1, "a.libfm: is what would be packed"),
    "data of rubbish to pack": (write("a.libfm", b"rubbish\n" * 100), ["data", "pack", "libfm:a.libfm?rows=50", "--out", "new"], 1, "a.libfm:1: the label"),
    "a run folder that is taken": (nothing, [*RUN[:-1], "run"], 2, "already holds a run"),
    "a run folder under a file": (nothing, [*RUN[:-1], "a.libfm/run"], 2, "cannot be written"),
    "no such run to resume": (nothing, [*RESUME[:-1], "nowhere"], 1, "nowhere: no such run folder"),
    "a truncated checkpoint": (truncate_checkpoint, RESUME, 1, "damaged"),
    "an unknown key in a manifest": (spoil_manifest, RESUME, 1, "surprise"),
    "no complete checkpoint": (drop_manifest, EVAL, 1, "no complete checkpoint"),
    "a replica that is not there": (nothing, [*EVAL, "--replica", "group:7"], 1, "want center, or group:N"),
}  # fmt: skip
EMPTY = (
    MODULE.replace("Embedding(50", "Embedding(0")
    + FORWARD
    + "        return self.l(self.e(sparse))\n"
    + BUILD
    + EXAMPLE
)
NOT_OURS = "it holds something that htrain did not write there"
SOUND = MODULE + FORWARD + "        return self.l(self.e(sparse))\n" + BUILD + EXAMPLE
PACK = ["data", "pack", "libfm:a.libfm", "--out"]
SYNTH = ["data", "synth", "criteo", "--rows", "9"]
CLUSTER = [*COMPILE, "--cluster", "c.yaml"]
CASES |= {
    "a number beyond all numbers": (write("c.yaml", b"groups: 1e400"), CLUSTER, 1, "c.yaml:1: groups: '1e400' is not a whole number of 1 to 10,000"),
    "more groups than anybody has": (nothing, [*COMPILE, "--groups", "100000000"], 1, "--groups: groups: '100000000' is not a whole number of 1 to 10,000"),
    "a list as a key": (write("c.yaml", b"groups: 1\n[a, b]: 1"), CLUSTER, 1, "c.yaml:2: a key is a list, a mapping or an alias"),
    "5,000 brackets": (write("c.yaml", b"groups: " + b"[" * 5000), CLUSTER, 1, "c.yaml:1: lists and mappings are nested more than 32 deep"),
    "a key twice": (write("c.yaml", b"groups: 1\ngroups: 2"), CLUSTER, 1, "c.yaml:2: 'groups' is given twice"),
    "laughs by the billion": (write("c.yaml", b"pin: &a [x, x]\ntogether: [*a, *a]"), CLUSTER, 1, "c.yaml:2: the alias *a is not read"),
    "a tag": (write("c.yaml", b"groups: !!python/object:os.system x"), CLUSTER, 1, "is not read: leave it out"),
    "a date that is none": (write("c.yaml", b"groups: 2020-99-99"), CLUSTER, 1, "c.yaml:1: groups: '2020-99-99' is not a whole number"),
    "a cluster file of another alphabet": (write("c.yaml", "groups: é".encode("latin-1")), CLUSTER, 1, "c.yaml: not YAML: byte 8 is not UTF-8 text"),
    "a cluster file that is a pipe": (lambda folder: os.mkfifo(folder / "c.yaml"), CLUSTER, 1, "c.yaml: is a pipe, want a file"),
    "a cluster file that is a folder": (lambda folder: (folder / "c.yaml").mkdir(), CLUSTER, 1, "c.yaml: Is a directory; give a cluster file"),
    "a cluster file without an end": (nothing, [*COMPILE, "--cluster", "/dev/zero"], 1, "/dev/zero: is a device, want a file"),
    "a digit that is none": (nothing, [*COMPILE, "--split-table", "e=²"], 2, "want TABLE=N"),
    "a plan without a name": (nothing, [*COMPILE[:-1], ""], 2, "'--out': is empty, want the name of a file or folder"),
    "a plan of 300 letters": (model(SOUND), [*COMPILE[:-1], "a" * 300], 1, "cannot be written: File name too long"),
    "a plan under a file": (model(SOUND), [*COMPILE[:-1], "a.libfm/new"], 1, "a.libfm/new: cannot be written: Not a directory"),
    "a name that is not UTF-8": (nothing, [*COMPILE[:-1], "\udcff"], 2, "is not UTF-8 text"),
    "a name that clears the screen": (nothing, ["show", "\x1b[2J"], 1, "\\x1b[2J: not a plan folder"),
    "a table without rows": (model(EMPTY), COMPILE, 1, "table 'e.weight' has the shape [0, 4]: there is nothing in it to train"),
    "a model that ends Python": (model("import sys\nsys.exit(0)\n"), COMPILE, 1, "cannot be imported: it called sys.exit(0), which ends Python"),
    "a factory that ends Python": (model("def build():\n    raise SystemExit\n"), COMPILE, 1, "building the model failed: it called sys.exit(None)"),
    "a forward that ends Python": (
        model(SOUND.replace("        return", "        exit(0)\n        return")), COMPILE, 1, "torch.export cannot capture M: SystemExit: 0",
    ),
    "example inputs that end Python": (
        model(SOUND.replace("    return {'", "    exit(3)\n    return {'")), COMPILE, 1, "example_inputs(6) failed: it called sys.exit(3)",
    ),
    "example inputs of another kind": (
        model(SOUND.replace("    return {'sparse'", "    return {3")), COMPILE, 1, "example_inputs gave 3: a Tensor; want tensors by name",
    ),
    "a model with an exception of its own": (
        model("class E(BaseException):\n    def __str__(self):\n        1 / 0\nraise E\n"), COMPILE, 1, "E: (its message cannot be shown)",
    ),
    "a model of another alphabet": (write("model.py", "x = 'é'\n".encode("latin-1")), COMPILE, 1, "cannot be imported: SyntaxError"),
    "a model that is a pipe": (lambda folder: os.mkfifo(folder / "model.py"), COMPILE, 1, "model.py: is a pipe, want a file"),
    "a model that calls itself for ever": (model("def build():\n    return build()\n"), COMPILE, 1, "building the model failed: RecursionError"),
    "a table that is not there": (model(SOUND), [*COMPILE, "--split-table", "nosuch=2"], 2, "the model has no table 'nosuch'; there are e.weight"),
    "a window without a cache": (model(SOUND), [*COMPILE, "--cache-window", "5"], 2, "--cache-window 5 has no effect: it belongs to --cache het"),
    "a flag at its default without effect": (nothing, [*COMPILE, "--sync-period", "8"], 2, "--sync-period 8 has no effect"),
    "an entry of the file without effect": (write("c.yaml", b"options: {dense_sync: {period: 8}}"), CLUSTER, 2, "--sync-period 8 has no effect"),
    "an entry of a cache that is not there": (
        write("c.yaml", b"sparse: {window: 5}"), CLUSTER, 1, "c.yaml:1: options.cache.window: belongs to kind het or lookahead, and the cache is none",
    ),
    "dense PSs that nobody asks": (write("c.yaml", b"dense_ps: 2\ndense: {sync: ps}"), CLUSTER, 2, "dense_ps in the cluster file) has no effect"),
    "a label of a model that has none": (nothing, [*COMPILE, "--label", "y"], 2, "--label y has no effect"),
    "a limit without a solver": (nothing, [*COMPILE, "--solver", "rules", "--solve-seconds", "5"], 2, "--solve-seconds has no effect beside --solver rules"),
    "a share that is no number": (nothing, [*RUN, "--malformed-share", "nan"], 2, "nan is not a finite number"),
    "a time that is no number": (nothing, [*RUN, "--checkpoint-seconds", "nan"], 2, "'nan' is not a finite number"),
    "a time without an end": (nothing, [*RUN, "--checkpoint-seconds", "inf"], 2, "'inf' is not a finite number"),
    "a rate that is no number": (nothing, [*COMPILE, "--dense-lr", "nan"], 2, "'nan' is not a finite number"),
    "groups for a search of groups": (nothing, ["size", "model.py", "--eps", "5", "--groups", "2"], 2, "--groups has no effect beside size"),
    "a page over the plan": (nothing, ["show", "plan", "--html", "plan/plan.yaml"], 1, NOT_OURS),
    "a page over a model": (model(SOUND), ["show", "plan", "--html", "model.py"], 1, NOT_OURS),
    "a page over a device": (nothing, ["show", "plan", "--html", "/dev/null"], 1, "/dev/null: cannot be written: it is a device, want a file"),
    "data over somebody's file": (model(""), [*SYNTH, "--out", "model.py"], 1, NOT_OURS),
    "packed data over somebody's file": (model(""), [*PACK, "model.py"], 1, NOT_OURS),
    "a cluster over somebody's file": (model(""), ["calibrate", "--out", "model.py"], 1, NOT_OURS),
    "data that is a pipe": (lambda folder: os.mkfifo(folder / "p"), [*RUN[:3], "libfm:p", *RUN[4:]], 1, "p: no such file"),
    "a plan that is a device": (nothing, ["show", "/dev/zero"], 1, "/dev/zero: not a plan folder"),
    "a plan.yaml that is a pipe": (
        lambda folder: ((folder / "plan/plan.yaml").unlink(), os.mkfifo(folder / "plan/plan.yaml")), ["show", "plan"], 1, "plan.yaml: is a pipe",
    ),
    "rules that end Python": (
        model(SOUND + "def rules(net, workload):\n    exit()\n"), [*COMPILE, "--rules", "model.py:rules"], 2, "failed: it called sys.exit(None)",
    ),
}  # fmt: skip
CASES.pop("a tampered digest")  # options are not part of the nets' digest


@pytest.mark.parametrize("name", CASES)
def test_malformed_input_gives_one_clear_line(name: str, good: Path, commands: Commands, tmp_path: Path) -> None:
    spoil, arguments, status, wanted = CASES[name]
    folder = tmp_path / "work"
    shutil.copytree(good, folder)
    (folder / "run" / "run.json").write_text((folder / "run" / "run.json").read_text().replace(str(good), str(folder)))
    spoil(folder)
    code, line = htrain_says(commands, folder, *arguments)
    assert (code, wanted in line) == (status, True), line
    left = [p.name for p in folder.iterdir() if p.name.startswith(".")]
    assert not left
    assert not (folder / "new" / "plan.yaml").exists()
