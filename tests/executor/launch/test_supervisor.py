"""Who becomes a supervisor, and how."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import htrain

ROOT = Path(htrain.__file__).parents[1]

FORKS = """
import os, time
from htrain.executor.launch.environment import role_environment
os.environ.update(role_environment(1))
import htrain.executor.launch.supervisor as module
{before}
module.fork_supervisor()
forked = bool(module._forked)
supervisor = module.start_supervisor(1)
deadline = time.monotonic() + 60
while os.getsid(supervisor.process.pid) == os.getsid(0) and time.monotonic() < deadline:
    time.sleep(0.01)  # it is about to leave the terminal's session
print(forked, os.getsid(supervisor.process.pid) != os.getsid(0), flush=True)
supervisor.connection.send_bytes(module.END)
supervisor.connection.poll(60)  # its answer, which a launcher that is ended at once does not read: the system calls that a reset
supervisor.connection.close()
print(supervisor.process.wait(60))
"""

PRINTS = """
import os, sys
from contextlib import redirect_stdout
from htrain.executor.launch.environment import role_environment
os.environ.update(role_environment(1))
import htrain.executor.launch.supervisor as module
def supervise(connection):
    print("a role prints")
    print("and says what ends it", file=sys.stderr)
    return 7
module.supervise = supervise
document = sys.stdout
with redirect_stdout(sys.stderr):  # as a command has it
    module.fork_supervisor(document)
    document.write(str(module.start_supervisor(1).process.wait(60)))
"""


def said(before: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", FORKS.format(before=before)], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_process_without_threads_forks_its_supervisor_which_ends_with_the_connection() -> None:
    assert said("") == ["True True", "0"]


def test_a_process_with_threads_starts_another_instead() -> None:
    begins = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    first, last = said(begins)
    assert first.startswith("False ")
    assert last == "0"


def test_what_roles_say_goes_to_standard_error_and_none_of_it_to_the_document_of_the_command() -> None:
    done = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, text=True, timeout=100, check=True)
    assert done.stderr == "a role prints\nand says what ends it\n"
    assert done.stdout == "7"


STARTS = """
import sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
import htrain.executor.launch.supervisor as module
{before}
supervisor = module.start_supervisor(1)
supervisor.connection.close()
print(supervisor.process.wait(60))
"""


@pytest.mark.parametrize("before", ["", "sys.path.insert(0, '')"], ids=["a command", "a notebook"])
def test_a_file_in_the_current_folder_is_not_taken_for_a_module_of_pythons(before: str, tmp_path: Path) -> None:
    """As `htrain role` is started wherever its user stands; and as notebooks are, beside whose files those of Python's own names lie."""
    for name in ("multiprocessing", "shutil", "htrain"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the current folder')")
    done = subprocess.run(
        [sys.executable, "-P", "-c", STARTS.format(before=before)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
