"""Hosts as network namespaces of this machine, with links of a given rate, to run a plan on: one role a host. Needs root.

    python tools/netlab.py plan/ --data criteo:train.tsv --out runs/lab --rate 100mbit

Every host has a link to one bridge; `tc tbf` limits it both ways. mpiexec starts a rank in every host; ranks find each other over MPI, and
values travel over ZeroMQ across the links. Whatever happens, the namespaces are gone afterwards: those of this lab, by its own id.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from htrain.plan import load_plan

BIN = Path(sys.executable).parent
_ETC = Path("/etc/netns")


def sh(*words: str, timeout: float = 30.0) -> str:
    """Run a command; its output. Raises RuntimeError with what it said on failure."""
    run = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
    if run.returncode:
        raise RuntimeError(f"{' '.join(words)}: {run.stderr.strip()}")
    return run.stdout


@dataclass(frozen=True)
class Traffic:
    """Bytes that a host's link carried."""

    received: int
    sent: int


class Lab:
    """`num_hosts` namespaces on a bridge in a namespace of its own. Use as a context manager."""

    def __init__(self, num_hosts: int, *, rate: str) -> None:
        self.name = f"lab{os.getpid()}"
        self.hosts = [f"{self.name}h{k}" for k in range(num_hosts)]
        self._rate = rate
        self._switch = f"{self.name}sw"

    def __enter__(self) -> "Lab":
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _build(self) -> None:
        sh("ip", "netns", "add", self._switch)
        self._in(self._switch, "ip", "link", "add", "br0", "type", "bridge")
        self._in(self._switch, "ip", "link", "set", "br0", "up")
        names = "".join(f"10.77.0.{k + 1} {host}\n" for k, host in enumerate(self.hosts))
        for k, host in enumerate(self.hosts):
            sh("ip", "netns", "add", host)
            (_ETC / host).mkdir(parents=True, exist_ok=True)
            (_ETC / host / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
            sh(
                "ip",
                "link",
                "add",
                "eth0",
                "netns",
                host,
                "type",
                "veth",
                "peer",
                "name",
                f"p{k}",
                "netns",
                self._switch,
            )
            self._in(self._switch, "ip", "link", "set", f"p{k}", "master", "br0", "up")
            self._in(host, "ip", "addr", "add", f"10.77.0.{k + 1}/16", "dev", "eth0")
            self._in(host, "ip", "link", "set", "eth0", "up")
            self._in(host, "ip", "link", "set", "lo", "up")
            self._limit(host, "eth0")
            self._limit(self._switch, f"p{k}")

    def _limit(self, namespace: str, device: str) -> None:
        """A token bucket with room for a few large packets."""
        bucket = ["tbf", "rate", self._rate, "burst", "256kb", "latency", "400ms"]
        self._in(namespace, "tc", "qdisc", "add", "dev", device, "root", *bucket)

    def _in(self, namespace: str, *words: str) -> str:
        return sh("ip", "netns", "exec", namespace, *words)

    def traffic(self) -> dict[str, Traffic]:
        """What each host's link has carried so far."""
        found = {}
        for host in self.hosts:
            (link,) = json.loads(self._in(host, "ip", "-j", "-s", "link", "show", "eth0"))
            stats = link["stats64"]
            found[host] = Traffic(int(stats["rx"]["bytes"]), int(stats["tx"]["bytes"]))
        return found

    def run_plan(self, plan_folder: Path, data: str, out: Path, *, timeout: float) -> dict[str, object]:
        """Run a plan, the launcher on the first host and a role on each other one; the JSON that `htrain run` prints."""
        words = [str(BIN / "mpiexec")]
        command = f"exec {BIN / 'htrain'} run {plan_folder} --data '{data}' --out {out} --json"
        for k, host in enumerate(self.hosts):
            words += [":"] * (k > 0) + [
                "-n",
                "1",
                "ip",
                "netns",
                "exec",
                host,
                "unshare",
                "--uts",
                "sh",
                "-c",
                f"hostname {host}; {command}",
            ]
        run = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
        if run.returncode:
            raise RuntimeError(f"htrain run: exit {run.returncode}: {run.stderr[-1500:]}")
        return json.loads(run.stdout)

    def close(self) -> None:
        """Remove every namespace of this lab, and the processes that were started in it."""
        for namespace in (*self.hosts, self._switch):
            pids = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True).stdout.split()
            for pid in pids:
                subprocess.run(["kill", "-9", pid], capture_output=True)
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)
            shutil.rmtree(_ETC / namespace, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--timeout", type=float, default=600.0)
    arguments = parser.parse_args()
    roles = load_plan(arguments.plan).cluster.roles
    with Lab(len(roles) + 1, rate=arguments.rate) as lab:
        before = lab.traffic()
        found = lab.run_plan(
            arguments.plan.resolve(), arguments.data, arguments.out.resolve(), timeout=arguments.timeout
        )
        after = lab.traffic()
        for role, host in zip(("launcher", *roles), lab.hosts, strict=True):
            sent, received = after[host].sent - before[host].sent, after[host].received - before[host].received
            print(f"{role:<16}{host:<16}{sent / 1e6:>10.1f} MB out{received / 1e6:>10.1f} MB in")
        print(f"{found['measured']['eps']:,.0f} EPS")  # type: ignore[index]


if __name__ == "__main__":
    main()
