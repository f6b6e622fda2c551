"""Hosts as network namespaces of this machine, with links of a given rate, to run a plan on: one process a host. Needs root.

    python tools/netlab.py run plan/ --data criteo:train.tsv --out runs/lab --rate 100mbit
    python tools/netlab.py run plan/ --data packed:train.packed --out runs/lab --rate 1gbit --sites 5,4 --between 100mbit
    python tools/netlab.py run plan/ --data criteo:train.tsv --out runs/lab --rate 100mbit --trainers-rate 2.5gbit
    python tools/netlab.py --clean

Every host has a link to the bridge of its site, which `tc tbf` limits both ways. Where there are several sites, each bridge has an uplink, limited as well, to
one that joins them. With --trainers-rate every host has a second link, to a network over which trainers reach each other: as GPUs of a host do by PCIe,
or hosts with a second card. mpiexec starts a rank in every host, the launcher in the first; ranks find each other over MPI, and values travel over ZeroMQ
across the links. A lab that ends takes its namespaces and the processes in them along,
except after SIGKILL: `--clean` removes what labs left whose process is gone.
"""

import argparse
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from netlab_ends import ENDINGS, ETC, NAMESPACES, end_with_descendants, remove_namespaces

from htrain.errors import Error, RunError, UsageError
from htrain.executor.record.measured import Measured, load_measured
from htrain.plan.plan import load_plan

BIN = Path(sys.executable).parent
_NAME = re.compile(r"netlab(\d+)x\d+(?:h\d+|sw)")
_BITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_LEAST_BURST = 68 * 1024  # one segment of 64 KiB with its headers passes whole
_BESIDE = ("10.77.", "10.78.")  # the address of a host, and its other among trainers, begin with these
_LOOK_SECONDS = 0.1
_LABS = itertools.count()
_ACROSS_LINKS = (  # MPI would take the short way, through the memory of this machine
    "MPIR_CVAR_NOLOCAL=1",
    "UCX_TLS=tcp",
    "UCX_NET_DEVICES=eth0",
    "FI_PROVIDER=tcp",
    "FI_TCP_IFACE=eth0",
)


@dataclass(frozen=True)
class Traffic:
    """Bytes that the link of a host has carried, or the uplink of a site, headers included: received and sent by the host, or by the site; and in
    how many `packets`, of both ways."""

    host: str
    received: int
    sent: int
    packets: int


@dataclass(frozen=True)
class LabRun:
    """What a run in a lab did: where `launcher` and each role was and what its link carried, as did the uplinks of sites; measured.json, of the steady part."""

    roles: dict[str, Traffic]
    uplinks: tuple[Traffic, ...]
    measured: Measured


class Lab:
    """`num_hosts` namespaces, each on a link of `rate` and one-way `delay` to the bridge of its site. The first sites[0] hosts are of the first site, and so
    on; sites reach each other over uplinks of the rate `between`. Without `sites`, all are of one. A second link of each host, of `trainers_rate` where that is
    said, goes to a bridge of its own, where trainers have their addresses. What waits for longer than `queue` before a link is dropped.

    `rate` and `delay` are as tc writes them (`100mbit`, `5ms`; a delay needs netem in the kernel). Hosts are there inside `with`, and gone
    after it. Their names carry this process's id.
    Raises UsageError for a rate, a delay or sites that cannot be, RunError, when entered, where this machine cannot make them.
    """

    def __init__(
        self,
        num_hosts: int,
        *,
        rate: str = "100mbit",
        delay: str = "0ms",
        sites: Sequence[int] = (),
        between: str = "100mbit",
        trainers_rate: str = "",
        queue: str = "400ms",
    ) -> None:
        self.name = f"netlab{os.getpid()}x{next(_LABS)}"
        self.hosts = [f"{self.name}h{k}" for k in range(num_hosts)]
        self._switch = f"{self.name}sw"
        self._rate = bits_per_second(rate)
        self._delay = _checked_delay(delay)
        self._sites = tuple(sites) or (num_hosts,)
        self._between = bits_per_second(between)
        self._queue = _checked_delay(queue)
        self._trainers_rate = bits_per_second(trainers_rate) if trainers_rate else 0
        if sum(self._sites) != num_hosts or min(self._sites) < 1:
            raise UsageError(
                f"sites of {', '.join(map(str, self._sites))} hosts: want {num_hosts} in all, and one at least in each"
            )

    def __enter__(self) -> "Lab":
        _require_tools()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build(self) -> None:
        _sh("ip", "netns", "add", self._switch)
        self._join_sites()
        site_of = [site for site, hosts in enumerate(self._sites) for _ in range(hosts)]
        addresses = {host: f"10.77.{k >> 8}.{k & 255}" for k, host in enumerate(self.hosts, 1)}
        names = "".join(f"{address} {host}\n" for host, address in addresses.items())
        for k, (host, address) in enumerate(addresses.items()):
            _sh("ip", "netns", "add", host)
            (ETC / host).mkdir(parents=True, exist_ok=True)
            (ETC / host / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
            self._link(host, "eth0", address, port=f"p{k}", bridge=f"br{site_of[k]}")
            if self._trainers_rate:
                self._link(host, "eth1", address.replace(*_BESIDE), port=f"q{k}", bridge="trainers")
                self._limit_link(k, "eth1", self._trainers_rate)
        self.limit()

    def limit(self) -> None:
        """Links carry no more than their rate, in either direction, from now on."""
        for k in range(len(self.hosts)):
            self._limit_link(k, "eth0", self._rate)

    def free(self) -> None:
        """Links to the sites carry what they can, until `limit`."""
        for k, host in enumerate(self.hosts):
            for namespace, device in ((host, "eth0"), (self._switch, f"p{k}")):
                _sh("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")

    def set_link(self, k: int, *, up: bool) -> None:
        """Pull the plug of the k-th host's link to its site, or put it in again."""
        _sh("ip", "-n", self._switch, "link", "set", f"p{k}", "up" if up else "down")

    def _limit_link(self, k: int, device: str, rate: int) -> None:
        self._limit(self.hosts[k], device, rate)
        self._limit(self._switch, f"{'p' if device == 'eth0' else 'q'}{k}", rate)

    def _join_sites(self) -> None:
        """A bridge for each site, and cables from all to one between them, limited at both ends."""
        bridges = [f"br{site}" for site in range(len(self._sites))]
        others = ["between"] * (len(bridges) > 1) + ["trainers"] * (self._trainers_rate > 0)
        for bridge in [*bridges, *others]:
            _sh("ip", "-n", self._switch, "link", "add", bridge, "type", "bridge")
            _sh("ip", "-n", self._switch, "link", "set", bridge, "up")
        for site, bridge in enumerate(bridges if len(bridges) > 1 else ()):
            _sh("ip", "-n", self._switch, "link", "add", f"up{site}", "type", "veth", "peer", "name", f"down{site}")
            for end, master in ((f"up{site}", bridge), (f"down{site}", "between")):
                _sh("ip", "-n", self._switch, "link", "set", end, "master", master, "up")
                self._limit(self._switch, end, self._between)

    def _link(self, host: str, device: str, address: str, *, port: str, bridge: str) -> None:
        """A cable from a host to a port of a bridge."""
        ends = [device, "netns", host, "type", "veth", "peer", "name", port, "netns", self._switch]
        _sh("ip", "link", "add", *ends)
        _sh("ip", "-n", self._switch, "link", "set", port, "master", bridge, "up")
        _sh("ip", "-n", host, "addr", "add", f"{address}/16", "dev", device)
        for name in (device, "lo"):
            _sh("ip", "-n", host, "link", "set", name, "up")

    def _limit(self, namespace: str, device: str, rate: int) -> None:
        """Delay, if any, and then a token bucket of 2 ms of the rate."""
        burst = str(max(_LEAST_BURST, rate // 8 // 500))
        where = ["root"]
        add = ["tc", "-n", namespace, "qdisc", "replace", "dev", device]
        if self._delay != "0ms":
            _sh(*add, "root", "handle", "1:", "netem", "delay", self._delay, "limit", "10000")
            where = ["parent", "1:1"]
        _sh(*add, *where, "tbf", "rate", f"{rate}bit", "burst", burst, "latency", self._queue)

    def traffic(self, device: str = "eth0") -> dict[str, Traffic]:
        """What each host's link has carried so far; `eth1` is that among trainers."""
        return {host: _link_traffic(host, device) for host in self.hosts}

    def uplinks(self) -> tuple[Traffic, ...]:
        """What each site's uplink has carried so far; none where there is one site."""
        sites = range(len(self._sites) if len(self._sites) > 1 else 0)
        return tuple(replace(_link_traffic(self._switch, f"up{site}"), host=f"site {site}") for site in sites)

    def run_plan(
        self,
        plan_folder: Path,
        data: str,
        out: Path,
        *,
        epochs: int = 1,
        timeout: float = 600.0,
        meanwhile: Callable[[], None] = lambda: None,
        more: Sequence[str] = (),
    ) -> LabRun:
        """Run a plan with the launcher on the first host and each process on its own, at most for `timeout` seconds; `more` are further words of the command.

        What is to be done while it goes, `meanwhile` does, ten times a second.

        Raises UsageError when there are not as many hosts as processes and one more, RunError with what htrain said when the run fails.
        """
        processes = (("launcher",), *load_plan(plan_folder).processes)
        if len(processes) != len(self.hosts):
            each = "role" if all(len(roles) == 1 for roles in processes) else "worker"
            raise UsageError(
                f"the lab has {len(self.hosts)} hosts; {plan_folder} wants {len(processes)}: one per {each} and one for the launcher"
            )
        command = [str(BIN / "htrain"), "run", str(plan_folder.resolve()), "--data", data, "--out", str(out.resolve())]
        command += ["--trainer-network", f"{_BESIDE[1]}0.0/16"] if self._trainers_rate else []
        before, up_before = self.traffic(), self.uplinks()
        _finish(self.ranks([*command, "--epochs", str(epochs), *more]), timeout, meanwhile)
        after, up_after = self.traffic(), self.uplinks()
        by_role = {
            role: since(before[host], after[host])
            for roles, host in zip(processes, self.hosts, strict=True)
            for role in roles
        }
        return LabRun(by_role, tuple(map(since, up_before, up_after)), load_measured(out))

    def ranks(self, command: list[str]) -> list[str]:
        """mpiexec's words for a rank in every host, which bears the host's name."""
        mpiexec = shutil.which("mpiexec", path=f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}")
        if mpiexec is None:
            raise UsageError("no mpiexec here: pip install mpich mpi4py")
        words = [mpiexec]
        for k, host in enumerate(self.hosts):
            inside = f"hostname {host} && exec {shlex.join(command)}"
            words += [":"] * (k > 0)
            words += [
                "-n",
                "1",
                "env",
                *_ACROSS_LINKS,
                "ip",
                "netns",
                "exec",
                host,
                "unshare",
                "--uts",
                "sh",
                "-c",
                inside,
            ]
        return words

    def close(self) -> None:
        """Remove every namespace of this lab, and the processes that were started in it."""
        remove_namespaces(*self.hosts, self._switch)


def clean_dead_labs() -> list[str]:
    """Remove the namespaces of labs whose process is gone, with what runs in them; the names of those removed."""
    left = {path.name for folder in (NAMESPACES, ETC) if folder.is_dir() for path in folder.iterdir()}
    owners = {name: int(match[1]) for name in left if (match := _NAME.fullmatch(name))}
    dead = sorted(name for name, owner in owners.items() if not psutil.pid_exists(owner))
    remove_namespaces(*dead)
    return dead


def bits_per_second(rate: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    bits = round(float(match[1]) * _BITS[match[2]]) if match else 0
    if not bits:
        raise UsageError(f"rate '{rate}': want one such as 500kbit, 20mbit or 1gbit")
    return bits


def _checked_delay(delay: str) -> str:
    if not re.fullmatch(r"\d+(us|ms|s)", delay):
        raise UsageError(f"delay '{delay}': want one such as 0ms, 500us or 20ms")
    return delay if delay.strip("0ums") else "0ms"


def _require_tools() -> None:
    missing = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    missing += ["root's rights"] if os.geteuid() else []
    if missing:
        raise UsageError(f"a lab of namespaces wants {', '.join(missing)}: see to that, or run it elsewhere")


def _sh(*words: str) -> str:
    """A command's output. Raises RunError with what it said on failure."""
    run = subprocess.run(words, capture_output=True, text=True, timeout=30)
    if run.returncode:
        hint = "; this kernel may lack netem: leave the delay at 0ms" if "netem" in words else ""
        raise RunError(f"{' '.join(words)}: {' '.join(run.stderr.split())}{hint}")
    return run.stdout


def _link_traffic(namespace: str, device: str) -> Traffic:
    (link,) = json.loads(_sh("ip", "-n", namespace, "-j", "-s", "link", "show", device))
    rx, tx = link["stats64"]["rx"], link["stats64"]["tx"]
    return Traffic(namespace, rx["bytes"], tx["bytes"], rx["packets"] + tx["packets"])


def since(before: Traffic, after: Traffic) -> Traffic:
    """What a link has carried between two moments."""
    return Traffic(
        after.host, after.received - before.received, after.sent - before.sent, after.packets - before.packets
    )


def _finish(words: list[str], timeout: float, meanwhile: Callable[[], None]) -> None:
    """Run mpiexec to its end, or end it and all that it has started."""
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(words, stdout=nowhere, stderr=subprocess.PIPE, text=True, start_new_session=True)
    end = time.monotonic() + timeout
    try:
        said = _awaited(process, meanwhile, end)
        if said is None:
            raise RunError(f"htrain run: not at its end after {timeout:g} s: give it more time, or less data")
    finally:
        end_with_descendants(process)
    if process.returncode:
        raise RunError(f"htrain run: status {process.returncode}: {_last_word(said)}")


def _awaited(process: subprocess.Popen[str], meanwhile: Callable[[], None], end: float) -> str | None:
    """What a process said, once it has ended; None where it has not by `end`."""
    while time.monotonic() < end:
        meanwhile()
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=_LOOK_SECONDS)[1]
    return None


def _last_word(said: str) -> str:
    """What htrain itself said, on one line, or the last line of what anybody said."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["nothing was said"]
    return next((line for line in lines if line.startswith("htrain: ")), lines[-1])


def unwind_when_ended() -> None:
    """Let Ctrl-C, SIGTERM and SIGHUP unwind this program's stack, so that a lab is closed on the way."""
    for number in ENDINGS:
        signal.signal(number, lambda seen, _: sys.exit(128 + seen))


def _run(asked: argparse.Namespace) -> None:
    hosts = len(load_plan(asked.plan).processes) + 1
    links = {name: getattr(asked, name) for name in ("rate", "delay", "sites", "between", "trainers_rate")}
    with Lab(hosts, **links) as lab:
        found = lab.run_plan(asked.plan, asked.data, asked.out, epochs=asked.epochs, timeout=asked.timeout)
    for role, carried in found.roles.items():
        print(f"{role:<16}{carried.host:<18}{carried.received / 1e6:>10.2f} MB in{carried.sent / 1e6:>10.2f} MB out")
    for carried in found.uplinks:
        print(f"{carried.host:<34}{carried.received / 1e6:>10.2f} MB in{carried.sent / 1e6:>10.2f} MB out")
    print(f"{found.measured.eps:,.0f} EPS over {found.measured.seconds:.1f} s")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clean", action="store_true", help="remove what labs left whose process is gone")
    run = parser.add_subparsers(dest="command").add_parser("run", help="run a plan in a lab of its own")
    run.add_argument("plan", type=Path)
    run.add_argument("--data", required=True)
    run.add_argument("--out", type=Path, required=True)
    for name, default in (
        ("rate", "100mbit"),
        ("delay", "0ms"),
        ("between", "100mbit"),
        ("trainers-rate", ""),
        ("epochs", 1),
        ("timeout", 600.0),
    ):
        run.add_argument(f"--{name}", type=type(default), default=default)
    run.add_argument(
        "--sites", type=_counts, default=(), help="hosts of each site, the launcher's first among them: 5,4"
    )
    asked = parser.parse_args()
    if not asked.clean and asked.command is None:
        parser.error("say what to do: run PLAN, or --clean")
    return asked


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def main() -> None:
    asked = _parsed()
    unwind_when_ended()
    try:
        if asked.clean:
            print(f"removed {', '.join(clean_dead_labs()) or 'nothing'}")
        if asked.command == "run":
            _run(asked)
    except Error as error:
        print(f"netlab: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
