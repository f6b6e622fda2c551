"""The suite on other versions: each Python that is here with the versions of constraints.txt, and Python 3.11 with every dependency at its lower bound.

    python tools/versions.py --folder /tmp/versions                          # all of it: a fresh environment and a whole suite each
    python tools/versions.py --folder /tmp/versions --only 3.13 -- tests/executor -k memory
    python tools/versions.py --folder /tmp/versions --only 3.11-lowest

Environments stay in --folder and are used again. torch is at the version of constraints.txt everywhere: where no wheel of its CPU build is at hand,
pip takes the one with CUDA, several gigabytes. Pythons are looked for on PATH, and among those of pyenv.
"""

import argparse
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOWEST = "3.11-lowest"
COMBINATIONS = ("3.11", "3.12", "3.13", LOWEST)
_PASSED = re.compile(r"(\d+) (passed|failed|error|errors|skipped)\b")


def interpreter(version: str) -> Path | None:
    """A Python of this minor version, or None where there is none."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    found = [*pyenv[-1:], *(Path(p) for p in [shutil.which(f"python{version}")] if p)]
    return next((path for path in found if _minor(path) == version), None)


def _minor(path: Path) -> str:
    say = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([path, "-c", say], capture_output=True, text=True, check=False).stdout.strip()


def lower_bounds() -> list[str]:
    """Every dependency but torch at the lowest version that pyproject.toml admits."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["mpi"]]
    bounds = [re.match(r"([\w-]+)>=([\w.]+)", line.replace(" ", "")) for line in declared]
    assert all(bounds), "a dependency without a lower bound"
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound and bound[1] != "torch"]


def environment(name: str, folder: Path) -> Path:
    """The Python of an environment for a combination, made where it is not there yet. Raises RuntimeError with pip's words."""
    place = folder / name
    python = place / "bin" / "python"
    if (place / "ready").exists():
        return python
    base = interpreter(name.partition("-")[0])
    if base is None:
        raise RuntimeError("no such Python here")
    shutil.rmtree(place, ignore_errors=True)
    _run([base, "-m", "venv", place])
    constraints = ["-c", ROOT / "constraints.txt"]
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet"]
    _run([*pip, *constraints, "torch"])
    extras = f"{ROOT}[dev,mpi]"
    if name == LOWEST:
        (folder / "lowest.txt").write_text("\n".join(lower_bounds()) + "\n")
        _run([*pip, "-c", folder / "lowest.txt", "-e", extras])
    else:
        _run([*pip, *constraints, "-e", extras])
    (place / "ready").touch()
    return python


def _run(command: list[str | Path]) -> None:
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(" ".join(ended.stderr.split())[-400:])


def suite(python: Path, arguments: list[str], log: Path) -> str:
    """Run the suite as `make test` does; what pytest counted, in words."""
    command = [str(python), "-m", "pytest", "-v", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", *arguments]
    with log.open("w") as file:
        subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False)
    lines = log.read_text(errors="replace").splitlines()
    counted = next((line for line in reversed(lines) if _PASSED.search(line)), "")
    return ", ".join(f"{number} {what}" for number, what in _PASSED.findall(counted)) or "nothing counted"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where environments and logs stay")
    parser.add_argument("--only", action="append", choices=COMBINATIONS)
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    worst = 0
    print(f"{'combination':<14}{'result':<44}{'minutes':>8}  log", flush=True)
    for name in asked.only or COMBINATIONS:
        began, log = time.monotonic(), asked.folder / f"{name}.log"
        try:
            found = suite(environment(name, asked.folder), asked.pytest, log)
        except RuntimeError as error:
            found = f"no environment: {error}"
        worst |= "failed" in found or "error" in found or "passed" not in found
        print(f"{name:<14}{found:<44}{(time.monotonic() - began) / 60:>8.1f}  {log}", flush=True)
    sys.exit(worst)


if __name__ == "__main__":
    main()
