"""`htrain.run` with role processes, from wherever a user's Python may stand: its main module is run once, whatever it is, and nothing is left behind."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from whole_runs import WIDE_DEEP, libfm

import htrain
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options

RUN = """
import sys, htrain
print("main", flush=True)
done = htrain.run(sys.argv[1], data=sys.argv[2], out=sys.argv[3])
print(done.totals.examples, flush=True)
"""
IN_A_THREAD = (
    "import threading\ndef run():"
    + RUN.replace("\n", "\n    ")
    + "\nthread = threading.Thread(target=run)\nthread.start()\nthread.join()\n"
)
IN_A_DAEMON = (
    "import multiprocessing\ndef run():"
    + RUN.replace("\n", "\n    ")
    + "\nprocess = multiprocessing.get_context('fork').Process(target=run, daemon=True)\nprocess.start()\nprocess.join()\n"
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("callers")
    data = libfm(folder / "train.libfm", 400)
    cluster = this_machine(group_ps=1, sparse_ps=1)
    htrain.compile(WIDE_DEEP, data=data, cluster=cluster, options=Options(batch_size=32)).save(folder / "plan")
    return folder / "plan", data


@pytest.mark.parametrize(
    ("program", "comes_by"),
    [(RUN, "a file without a guard"), (RUN, "-c"), (RUN, "standard input"), (IN_A_THREAD, "-c"), (IN_A_DAEMON, "-c")],
    ids=["file without a guard", "-c", "standard input", "thread", "daemonic process"],
)
def test_a_run_from_python(program: str, comes_by: str, small: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(program)
    words = {"-c": ["-c", program], "standard input": ["-"]}.get(comes_by, [str(tmp_path / "main.py")])
    done = subprocess.run(
        [sys.executable, *words, str(small[0]), small[1], str(tmp_path / "run")],
        input=program if comes_by == "standard input" else "",
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "main\n400\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert not any(str(small[0]) in word for process in psutil.process_iter() for word in words_of(process))


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
