"""The section `hosts` of a cluster file: on which hosts the roles of a plan are started, and how.

hosts:
  ssh: ssh -o BatchMode=yes               # the words before a host's name
  command: cd /srv/ads && .venv/bin/htrain    # what htrain is there, in the words of the host's shell
  roles:                                  # or a list of hosts alone, over which they are shared out
    ads-1: [trainer:0:*, group_ps:0:*]
    ads-2: [trainer:1:*, group_ps:1:*]
    ads-3: [sparse_ps:*, dense_ps:*]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import ValidationError

from htrain.decoding import converted
from htrain.errors import ClusterError
from htrain.net.names import Role
from htrain.spec.cluster import HOSTS
from htrain.spec.yaml_file import read_yaml

SSH = "ssh -o BatchMode=yes"  # which asks nobody for a password


@dataclass(frozen=True)
class Hosts:
    """`roles` are the patterns of roles for each host, or hosts alone; `command` is "" for what runs here, in the same folder."""

    roles: dict[str, list[str]] | list[str]
    ssh: str = SSH
    command: str = ""
    where: str = field(default=HOSTS)

    def assigned(self, processes: Sequence[Sequence[str]]) -> Mapping[str, tuple[str, ...]]:
        """The roles of each host, whole processes; hosts without one are left out. Raises ClusterError for a process without a host, or with several, and for
        a pattern of no role."""
        found = _shared_out(self.roles, processes) if isinstance(self.roles, list) else self._matched(processes)
        return {host: tuple(roles) for host, roles in found.items() if roles}

    def _matched(self, processes: Sequence[Sequence[str]]) -> Mapping[str, list[str]]:
        assert isinstance(self.roles, dict)
        found: dict[str, list[str]] = {host: [] for host in self.roles}
        known = [role for process in processes for role in process]
        for host, patterns in self.roles.items():
            for pattern in patterns:
                if not any(fnmatchcase(role, pattern) for role in known):
                    raise ClusterError(
                        f"{self.where}: {host}: '{pattern}' is no role of the plan, which has {', '.join(known)}"
                    )
        for process in processes:
            of = [
                host
                for host, patterns in self.roles.items()
                if any(fnmatchcase(role, pattern) for role in process for pattern in patterns)
            ]
            if len(of) != 1:
                which = f"is on {' and on '.join(of)}" if of else "is on no host"
                raise ClusterError(f"{self.where}: {process[0]} {which}: name it, or a pattern of it, on one")
            found[of[0]] += process
        return found


def _shared_out(hosts: Sequence[str], processes: Sequence[Sequence[str]]) -> Mapping[str, list[str]]:
    """A group on one host, with its group PSs; whatever belongs to no group where there are the fewest processes."""
    found: dict[str, list[str]] = {host: [] for host in hosts}
    counts = dict.fromkeys(hosts, 0)
    groups: dict[int, str] = {}
    for process in sorted(processes, key=lambda process: Role.parse(process[0]).group is None):  # these fill up
        group = Role.parse(process[0]).group
        least = min(hosts, key=counts.__getitem__)
        host = least if group is None else groups.setdefault(group, least)
        found[host] += process
        counts[host] += 1
    return found


def load_hosts(path: Path) -> Hosts:
    """The hosts of a file. Raises ClusterError naming file and line."""
    document = read_yaml(path, ClusterError, missing=f"; give a cluster file with a section '{HOSTS}'")
    entry = document.mapping().get(HOSTS)
    if entry is None:
        raise ClusterError(
            f"{path}: has no section '{HOSTS}', such as hosts: {{roles: {{ads-1: ['trainer:*'], ads-2: ['*_ps:*']}}}}"
        )
    where = f"{path}:{entry.line}: {HOSTS}"
    known = ("roles", "ssh", "command")
    if other := [name for name in entry.mapping() if name not in known]:
        raise ClusterError(
            f"{path}:{entry.mapping()[other[0]].line}: {HOSTS}: {other[0]}: unknown entry; hosts takes {', '.join(known)}"
        )
    try:
        found = converted({**entry.plain(), "where": where} if entry.mapping() else {}, Hosts)
    except ValidationError as error:
        raise ClusterError(f"{where}: {error}") from error
    names = list(found.roles)
    if not names or len(set(names)) < len(names) or any(name.startswith("-") or not name.strip() for name in names):
        raise ClusterError(f"{where}: roles: want the names of hosts, each once, and none that begins with '-'")
    return found
