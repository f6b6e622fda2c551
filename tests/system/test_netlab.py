"""Hosts in namespaces: links as slow as asked for, and nothing left behind. Skipped without root."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from netlab import Lab

CAN = os.geteuid() == 0 and all(shutil.which(tool) for tool in ("ip", "tc", "unshare"))
if CAN:
    CAN = subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0
pytestmark = pytest.mark.skipif(not CAN, reason="wants root, ip, tc and namespaces")

RECEIVE = "import socket; s=socket.create_server(('0.0.0.0', 7000)); c,_=s.accept()\nwhile c.recv(1<<16): pass"
SEND = "import socket; c=socket.create_connection(('{}', 7000)); c.sendall(bytes({})); c.shutdown(1); c.recv(1)"


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


def start(host: str, code: str) -> subprocess.Popen:
    return subprocess.Popen(["ip", "netns", "exec", host, sys.executable, "-c", code])


def test_bytes_between_hosts_take_as_long_as_the_links_rate_says() -> None:
    with Lab(2, rate="40mbit") as lab:
        receiver = start(lab.hosts[1], RECEIVE)
        deadline = time.monotonic() + 20
        while (
            "LISTEN"
            not in subprocess.run(
                ["ip", "netns", "exec", lab.hosts[1], "ss", "-ltn"], capture_output=True, text=True
            ).stdout
        ):
            assert time.monotonic() < deadline, "the receiver did not come up"
            time.sleep(0.05)
        began = time.monotonic()
        start(lab.hosts[0], SEND.format("10.77.0.2", 10_000_000)).wait(60)
        receiver.wait(60)
        seconds = time.monotonic() - began
        moved = lab.traffic()
    assert 1.7 < seconds < 6  # 10 MB at 40 Mbit/s: 2 s, and starting Python
    assert 10_000_000 < moved[lab.hosts[0]].sent < 11_500_000
    assert 10_000_000 < moved[lab.hosts[1]].received < 11_500_000


def test_nothing_is_left_behind_when_the_work_inside_fails() -> None:
    lab = Lab(2, rate="100mbit")
    processes = []

    def work() -> None:
        with lab:
            processes.append(start(lab.hosts[0], "import time; time.sleep(600)"))
            assert lab.hosts[0] in namespaces()
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        work()
    assert lab.name not in namespaces()
    assert not list(Path("/etc/netns").glob(f"{lab.name}*"))
    processes[0].wait(10)
