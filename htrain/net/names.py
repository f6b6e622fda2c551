"""What devices, roles, shards and nets are called: a type and one parser for each kind of name.

    device   trainer, group_ps:K, sparse_ps:K, dense_ps:K     what an op is tagged with; the same in every group
             all_reduce                                       what all trainers do together
             group:G                                          a group as a host of centres
    role     trainer:G:I, group_ps:G:K, sparse_ps:K, ..       a process of a run: a device of group G, or one that serves all groups
    net      train, trainer, group_ps_0, init_group_ps_0, ..  see `NetName`

Names are text in nets, files and messages; what they say is asked of these types alone.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from htrain.errors import PlanError

TRAINER, GROUP_PS, SPARSE_PS, DENSE_PS = "trainer", "group_ps", "sparse_ps", "dense_ps"
WORKERS = "all_reduce"  # the device of ops whose place is `workers`
GROUP = "group"
IN_GROUP = (TRAINER, GROUP_PS)  # the kinds of devices that every group has of its own
NUMBERED = (GROUP_PS, SPARSE_PS, DENSE_PS, GROUP)  # those of which there may be several
_MOST_NAMES = 1 << 16  # that are remembered

_NUMBER = "(?:0|[1-9][0-9]{0,8})"
_DEVICE = re.compile(rf"({TRAINER}|{WORKERS})|({'|'.join(NUMBERED)}):({_NUMBER})")
_ROLE = re.compile(rf"({'|'.join(IN_GROUP)}):({_NUMBER}):({_NUMBER})|({SPARSE_PS}|{DENSE_PS}):({_NUMBER})")


@dataclass(frozen=True)
class Device:
    """What a net is placed on. `number` tells several of a kind apart, and is None of a trainer and of all workers."""

    kind: str
    number: int | None = None

    def __str__(self) -> str:
        return self.kind if self.number is None else f"{self.kind}:{self.number}"

    @staticmethod
    @lru_cache(_MOST_NAMES)
    def parse(text: str) -> "Device":
        """The device of that name. Raises PlanError where it is none."""
        match = _DEVICE.fullmatch(text)
        if match is None:
            raise PlanError(f"'{text}' is no device: want {TRAINER}, {GROUP_PS}:K, {SPARSE_PS}:K or {DENSE_PS}:K")
        alone, kind, number = match.groups()
        return Device(alone) if alone else Device(kind, int(number))

    @property
    def plain(self) -> str:
        """The name as a part of other names, such as those of files: `group_ps_1`."""
        return self.kind if self.number is None else f"{self.kind}_{self.number}"

    def played_for(self, holder: "Device") -> "Device":
        """The device that is this host of centres to the weights of `holder`: in a group, the one that holds them there."""
        return holder if self.kind == GROUP else self


@dataclass(frozen=True)
class Role:
    """A process of a run: the device of `kind` and `number` in `group`; of a trainer, the one of that number. `group` is None of what serves all groups."""

    kind: str
    number: int
    group: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}" if self.group is None else f"{self.kind}:{self.group}:{self.number}"

    @staticmethod
    @lru_cache(_MOST_NAMES)
    def parse(text: str) -> "Role":
        """The role of that name. Raises PlanError where it is none."""
        match = _ROLE.fullmatch(text)
        if match is None:
            raise PlanError(f"'{text}' is no role: want {TRAINER}:G:I, {GROUP_PS}:G:K, {SPARSE_PS}:K or {DENSE_PS}:K")
        inner, group, number, outer, alone = match.groups()
        return Role(inner, int(number), int(group)) if inner else Role(outer, int(alone))

    @property
    def device(self) -> Device:
        """The device that this role runs, which is the same in every group."""
        return Device(TRAINER) if self.kind == TRAINER else Device(self.kind, self.number)

    @property
    def host(self) -> Device:
        """What this role is to others whose weights have centres with it: its group, or itself."""
        return self.device if self.group is None else Device(GROUP, self.group)

    @property
    def place(self) -> tuple[int, int]:
        """The group, and the number in it. Requires: this one is of a group."""
        assert self.group is not None
        return self.group, self.number

    def at(self, group: int) -> "Role":
        """The role of another group that plays the same part there. Requires: this one is of a group."""
        assert self.group is not None
        return replace(self, group=group)


def role_of(name: str) -> str:
    """The kind of a device or a role: `group_ps` of `group_ps:0:1`."""
    return name.partition(":")[0]


def device_of(role: str) -> str:
    """The device that a role runs: `group_ps:1` of `group_ps:0:1` (group 0), `trainer` of `trainer:0:1`. Raises PlanError where it is none."""
    return str(Role.parse(role).device)


def number_of(device: str) -> int:
    """Which of its kind a device is: 3 of `sparse_ps:3`, 0 of the trainer. Raises PlanError where it is none."""
    return Device.parse(device).number or 0


def device_at(host: str, holder: str) -> str:
    """The device that plays a host of centres to the weights of `holder`, see `Device.played_for`. Raises PlanError where one is no device."""
    return str(Device.parse(host).played_for(Device.parse(holder)))


def role_at(endpoint: str) -> str:
    """The role that an endpoint belongs to: `trainer:0:1` of `trainer:0:1/sync`."""
    return endpoint.partition("/")[0]


def shard_name(table: str, index: int, count: int) -> str:
    """The parameter that holds shard `index` of `count` of `table`: the table itself when it is whole."""
    return table if count == 1 else f"{table}/{index}"


NetKind = Literal["train", "heads", "evaluation", "step", "sync", "centre", "flush", "own"]
_NET = re.compile(
    rf"(?P<init>init_)?(?:(?P<of>sync_|flush_|center_(?P<host>{DENSE_PS}|{GROUP})_(?P<host_number>{_NUMBER})_)?"
    rf"(?:(?P<alone>{TRAINER}|{WORKERS})|(?P<kind>{GROUP_PS}|{SPARSE_PS}|{DENSE_PS})_(?P<number>{_NUMBER})))"
)
_OF: dict[str | None, NetKind] = {None: "step", "sync_": "sync", "flush_": "flush"}


@dataclass(frozen=True)
class NetName:
    """What a net of a plan is for, which is what it is called, and its file.

        train                            the whole train net
        heads                            what evaluation makes of it beside the score, where the model returns more
        evaluation                       what evaluation does, heads included, where that is something else than the train net
        trainer, group_ps_0, ..          a device's part of a step; `all_reduce` is that of all workers together
        sync_group_ps_0                  a round of the sync of the dense weights that a device holds
        center_dense_ps_0_group_ps_1     how a host of centres answers a holder of weights in a round
        flush_trainer                    what empties a trainer's cache
        init_..                          first values for what any of these needs

    `kind` says which, `device` whose step it is a part of, or who holds the weights, and `host` where a centre is. A net that a user's strategy has given
    another name is of the kind `own`, and `text` is that name.
    """

    kind: NetKind
    device: Device | None = None
    host: Device | None = None
    is_init: bool = False
    text: str = ""

    def __str__(self) -> str:
        if self.device is None:
            return self.text if self.kind == "own" else self.kind
        centre = f"center_{self.host.plain}_" if self.host else ""
        of = {"step": "", "centre": centre}.get(self.kind, f"{self.kind}_")
        return f"{'init_' if self.is_init else ''}{of}{self.device.plain}"

    @staticmethod
    @lru_cache(_MOST_NAMES)
    def parse(text: str) -> "NetName":
        """The name that a text stands for; a text of no known form is that of a user's own net."""
        match = _NET.fullmatch(text)
        if match is None:
            return _ALONE.get(text) or NetName("own", text=text)
        init, of, host, host_number, alone, kind, number = match.groups()
        device = Device(alone) if alone else Device(kind, int(number))
        centre = Device(host, int(host_number)) if host else None
        return NetName("centre" if centre else _OF[of], device, centre, is_init=bool(init))

    @staticmethod
    def step(device: str) -> "NetName":
        """The name of a device's net for its part of a step."""
        return NetName("step", Device.parse(device))

    @staticmethod
    def sync(holder: str) -> "NetName":
        """The name of the net for a round of the weights that a device holds."""
        return NetName("sync", Device.parse(holder))

    @staticmethod
    def centre(host: str, holder: str) -> "NetName":
        """The name of the net by which a host of centres answers a holder of weights."""
        return NetName("centre", Device.parse(holder), Device.parse(host))

    @staticmethod
    def flush(device: str) -> "NetName":
        """The name of the net that empties a device's cache."""
        return NetName("flush", Device.parse(device))

    @property
    def init(self) -> "NetName":
        """The name of the net which makes first values for this one."""
        return replace(self, is_init=True)

    @property
    def run_by(self) -> Device | None:
        """The device that runs the net: all workers are trainers. None of the train net, heads and evaluation, which no role runs, and of a user's own."""
        if self.device is None:
            return None
        if self.device.kind == WORKERS:
            return Device(TRAINER)
        return self.host.played_for(self.device) if self.host else self.device

    @property
    def is_of_rounds(self) -> bool:
        """Whether it is run in rounds of the background sync, and not for first values."""
        return self.kind in ("sync", "centre") and not self.is_init


def net_name(device: str) -> str:
    """The name of a device's net, and of its file: `group_ps_0` for `group_ps:0`."""
    return str(NetName.step(device))


def head_blob(head: str) -> str:
    """The output of the net of heads that is a head of the model."""
    return _HEADS + head


def head_name(output: str) -> str:
    """The reverse of `head_blob`."""
    return output.removeprefix(_HEADS)


_HEADS = "heads/"
_ALONE = {"train": NetName("train"), "heads": NetName("heads"), "evaluation": NetName("evaluation")}
