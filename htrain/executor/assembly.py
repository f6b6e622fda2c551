"""A role put together from its plan: what it holds, and the machines that decide what it does. Threads and sockets come to it elsewhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.costs.roles import staleness_bound
from htrain.executor.engine.engine import Engine
from htrain.executor.engine.marks import Marks
from htrain.executor.engine.program import build_program
from htrain.executor.engine.store import Store, allocate, fill
from htrain.executor.host.accelerator import Host, accelerator_of
from htrain.executor.host.parameter_memory import ParameterMemory
from htrain.executor.record.checkpoint import ROWS
from htrain.executor.roles.endpoints import holder_number, sync_endpoint
from htrain.executor.roles.server import Centre, ServerMachine
from htrain.executor.roles.sync import SyncMachine
from htrain.executor.strategies.strategy import cache_of, sync_of
from htrain.net.names import DENSE_PS, NetName, Role, device_of
from htrain.net.net import Net, Parameter
from htrain.plan.plan import Plan
from htrain.spec.centres import EACH, is_centre


def _room_for(plan: Plan, role: Role) -> tuple[int, int]:
    """How many bytes at most the parameters of a role have that its nets ask for, and how many there are: one may be asked for by several nets."""
    step = plan.net_of(str(role.device))
    nets = [step, step, plan.sync_net(str(role.device))]  # a step may be cut in two
    found = [p for net in nets if net for p in net.parameters.values() if p.kind != "cache"]
    return sum(p.num_bytes for p in found), len(found)


class Earlier(Protocol):
    """The parameters of another run."""

    def copy_into(self, net: Net, parameter: Parameter, target: torch.Tensor, rows: NDArray[np.int64] | None) -> None:
        """Give a parameter of an init net its values. Raises CheckpointError."""


NOTHING = Net("", (), (), outputs=(), blobs={}, parameters={})


class Assembly:
    """One role of a plan: its parameters by name in `store`, its `caches`, and the engines over them.

    `replicas` are the net replicas of a trainer; `mapped` is the folder of tables that lie in files, None for memory, which is `shared` with the processes
    that this one forks, or `kept` for the next process of the role.
    """

    def __init__(
        self,
        plan: Plan,
        name: str,
        *,
        replicas: int,
        mapped: Path | None = None,
        shared: bool = False,
        kept: ParameterMemory | None = None,
    ) -> None:
        self.plan, self.name, self.role = plan, name, Role.parse(name)
        self._shared, self.kept = shared, kept
        if kept:
            kept.open(*_room_for(plan, self.role))
        self.device = str(self.role.device)
        self.replicas = replicas
        self.store: Store = {}
        self.marks = None if shared else Marks()  # those of processes that share tables would not be seen
        self.caches: dict[str, Any] = {}
        self.sync_half, self.cache_half = sync_of(plan, name), cache_of(plan, name)
        self._accelerator: Host = accelerator_of(name, self.cache_half.device)
        self._mapped = mapped
        step_net, apart_net = self.cache_half.split(plan.net_of(self.device) if self.has_steps else NOTHING)
        self.engine = self.engine_of(self._accelerator.net_of(step_net))
        self.apart = self.engine_of(apart_net)

    @property
    def has_steps(self) -> bool:
        """Whether the role has a part in steps: dense PSs only have one in rounds."""
        return self.role.kind != DENSE_PS

    @property
    def is_private(self) -> bool:
        """Whether its parameters lie in memory of this process alone, of which a fork has its own. It has none of an accelerator's."""
        on_host = all(tensor.device.type == "cpu" for tensor in self.store.values())
        return on_host and not self._shared and self._mapped is None and not self.kept

    @property
    def bound(self) -> int:
        """The bound on the staleness of dense weights, 0 for none."""
        return staleness_bound(self.plan.cluster, self.plan.options, self.replicas)

    @property
    def host(self) -> str:
        """What this role is to others that have weights with centres: itself, or its group."""
        return str(self.role.host)

    @property
    def hosts_centres(self) -> bool:
        """Whether it answers the rounds of other groups beside what else it does."""
        return self.has_steps and self.host in self.plan.centers.values()

    def engine_of(self, net: Net) -> Engine:
        """An engine over parameters of this role, which are made uninitialised where they are not there yet."""
        there = self._accelerator.places_of(net)
        for name, tensor in allocate(
            net, self._mapped, there, self.cache_half.joined(net), shared=self._shared, kept=self.kept
        ).items():
            self.store.setdefault(name, tensor)
        self.caches |= self.cache_half.caches(net, self.store, there)
        if self.marks:
            for name, tables, states in self.cache_half.stepped(net):
                self.caches[name].before_step = self.marks.stepping(tables, states, self.store)
        return Engine(build_program(net, {**self.store, **self.caches}, gated=self.bound > 0, marks=self.marks))

    def server(self) -> ServerMachine:
        """The machine of a PS."""
        trainers = self.plan.cluster.groups * self.plan.cluster.trainers
        centers = {} if self.has_steps else self._centres()
        bound = self.bound if self.has_steps else 0
        return ServerMachine(self.engine, centers=centers, apart=self.apart, bound=bound, trainers=trainers)

    def centres(self) -> ServerMachine:
        """The machine that answers the rounds of other groups, beside what else the role does. Requires: `hosts_centres`."""
        nothing = Engine(build_program(NOTHING, {}))
        return ServerMachine(nothing, centers=self._centres(), apart=nothing, bound=0, trainers=1)

    def sync(self) -> SyncMachine | None:
        """The machine of its rounds, where it holds dense weights that have centres."""
        net = self.plan.sync_net(self.device)
        if net is None:
            return None
        half = self.sync_half
        rounds = half.rounds()
        if self.kept:
            rounds.go_on_from(self.kept.next_round)
        return SyncMachine(self.name, self.engine_of(net), rounds, holds_writes=half.holds_writes, kept=self.kept)

    def fill(self, folder: Path) -> None:
        """First values for every parameter; files come from the plan's `folder`. Raises PlanError."""
        for net in self.init_nets().values():
            for store in self._stores_of(net):
                fill(store, net, folder, self.cache_half.originals)

    def copy_from(self, earlier: Earlier) -> None:
        """The values of another run in the place of first values. What is kept for rounds beside a centre begins anew: it is of the groups that there are.
        Raises CheckpointError for what is not there."""
        for net in self.init_nets().values():
            for store in self._stores_of(net):
                for name in dict.fromkeys(op.inputs[0] for op in net.ops):
                    parameter = net.parameters[name]
                    if parameter.kind != "state" or not self._is_centre(parameter.of):
                        earlier.copy_into(net, parameter, store[name], self.cache_half.originals(parameter))

    def _is_centre(self, weight: str) -> bool:
        """Whether what this role has under this name is the centre of a weight, which has no optimizer."""
        return self.role.kind == DENSE_PS or is_centre(weight)

    @property
    def wholes(self) -> set[str]:
        """The names, in the model, of what it has parts of, or states."""
        parameters = [p for net in self.init_nets().values() for p in net.parameters.items()]
        by_name = dict(parameters)
        return {by_name.get(p.of, p).whole if p.kind == "state" else p.whole for _, p in parameters}

    def row_numbers(self) -> dict[str, torch.Tensor]:
        """The numbers that rows have in the model, of tables whose rows are no range of it, as checkpoints keep them."""
        found: dict[str, torch.Tensor] = {}
        for name, parameter in self.engine.program.net.parameters.items():
            rows = self.cache_half.originals(parameter) if parameter.kind == "table" else None
            if rows is not None:
                found[f"{name}{ROWS}"] = torch.from_numpy(rows)
        return found

    def init_nets(self) -> dict[NetName, Net]:
        """The nets with first values for what this role has. Its device hosts centres in every group, the role those of its own."""
        nets = self.plan.init_nets(self.device)
        return {name: net for name, net in nets.items() if name.host in (None, self.role.host)}

    def _centres(self) -> dict[int, Centre]:
        found = {}
        for holder in self.plan.cluster.devices:
            net = self.plan.centre_net(self.host, holder)
            if net and NetName.centre(self.host, holder).run_by == self.role.device:
                members = [sync_endpoint(role) for role in self.plan.cluster.roles if device_of(role) == holder]
                found[holder_number(holder)] = Centre(self._engines_of(net), members)
        return found

    def _engines_of(self, net: Net) -> list[Engine]:
        """One engine for all groups; one for each where it has parameters of its own."""
        if not any(name.endswith(EACH) for name in net.parameters):
            return [self.engine_of(net)]
        common = {name: tensor for name, tensor in allocate(net).items() if not name.endswith(EACH)}
        self.store.update(common)
        engines = []
        for group in range(self.plan.cluster.groups):
            own = {name: tensor for name, tensor in allocate(net).items() if name.endswith(EACH)}
            self.store.update({f"{name}:{group}": tensor for name, tensor in own.items()})
            engines.append(Engine(build_program(net, common | own)))
        return engines

    def _stores_of(self, net: Net) -> Iterator[Store]:
        """The store with the names of a net; where groups have parameters of their own, the store as each has it."""
        each = [name for name in net.parameters if name.endswith(EACH)]
        for group in range(self.plan.cluster.groups if each else bool(net.ops)):
            yield {**self.store, **{name: self.store[f"{name}:{group}"] for name in each}}
