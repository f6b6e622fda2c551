"""Whose addresses each role of a plan is told: of those that it exchanges messages with, by its nets. A thousand roles that knew of each other would be told
of a million."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from htrain.net.names import GROUP, IN_GROUP, TRAINER, WORKERS, Device, NetName, Role, device_of, role_at, role_of
from htrain.net.net import Net
from htrain.ops import OPS
from htrain.plan.plan import Plan

_OF_LAUNCHER = ("/control", "/pulse")  # endpoints that it alone sends to


class AddressBooks:
    """What roles of a plan are told of all endpoints of a run."""

    def __init__(self, plan: Plan) -> None:
        self._of_device: dict[str, list[str]] = defaultdict(list)
        for role in plan.cluster.roles:
            self._of_device[device_of(role)].append(role)
        self._meet = _meetings(plan)
        self._hosts_of: dict[str, list[int]] = defaultdict(list)  # the groups that host centres of what a device holds
        for name in plan.centre_nets():
            if name.host and name.host.kind == GROUP:
                self._hosts_of[str(name.device)].append(name.host.number or 0)
        self._trainers_meet = plan.step_net(WORKERS) is not None
        # Nobody knows here which device runs a net that a user's own strategy has named.
        self._all_meet = any(_sends(net) for name, net in plan.nets.items() if NetName.parse(name).kind == "own")

    def peers_of(self, role: str) -> Collection[str]:
        """The roles that this one sends to, or that send to it; itself among them."""
        if self._all_meet:
            return {each for roles in self._of_device.values() for each in roles}
        return {role, *self._in_steps(role), *self._in_rounds(role)}

    def of(self, roles: Collection[str], book: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
        """Each of `roles`, and those endpoints of a book of all, name -> address, that it needs."""
        own: dict[str, dict[str, str]] = defaultdict(dict)
        for endpoint, address in book.items():
            if not endpoint.endswith(_OF_LAUNCHER):
                own[role_at(endpoint)][endpoint] = address
        for role in roles:
            yield role, {name: address for peer in self.peers_of(role) for name, address in own[peer].items()}

    def _in_steps(self, role: str) -> Iterator[str]:
        group = Role.parse(role).group
        for device in self._meet[device_of(role)]:
            is_inner = group is not None and role_of(device) in IN_GROUP
            yield from (each for each in self._of_device[device] if not is_inner or Role.parse(each).group == group)
        if self._trainers_meet and role_of(role) == TRAINER:
            yield from self._of_device[TRAINER]

    def _in_rounds(self, role: str) -> Iterator[str]:
        """Roles of other groups that hold what this one does, where one of them, or this one, has the centres."""
        own = Role.parse(role)
        hosts = self._hosts_of[device_of(role)]
        for each in self._of_device[device_of(role)] if hosts else ():
            other = Role.parse(each)
            if own.group in hosts or other.group in hosts:
                yield each


def _meetings(plan: Plan) -> dict[str, set[str]]:
    """For each device those that it exchanges messages with in steps, and in rounds through dense PSs. Those through groups are between roles of one device."""
    meet: dict[str, set[str]] = defaultdict(set)
    for name, net in plan.nets.items():
        runner = NetName.parse(name).run_by
        for op in net.ops if runner else ():
            if OPS[op.type].transfer not in ("send", "receive"):
                continue
            peer = Device.parse(str(op.attrs["peer"]))
            if peer.kind not in (WORKERS, GROUP):
                meet[str(runner)].add(str(peer))
                meet[str(peer)].add(str(runner))
    return meet


def _sends(net: Net) -> bool:
    return any(OPS[op.type].transfer for op in net.ops)
