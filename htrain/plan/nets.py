"""The nets of a plan, by the device that runs them and what they are for: nobody else reads or writes their names."""

from collections.abc import Iterator, Mapping

from htrain.errors import PlanError
from htrain.net.names import TRAINER, Device, NetName
from htrain.net.net import Net
from htrain.plan.folder import HEADER


class NetsOfPlan:
    """A plan as far as its nets go. `nets` has them by name; see `NetName`."""

    nets: Mapping[str, Net]

    @property
    def train(self) -> Net:
        """The whole train net. Raises PlanError where the plan has none, as a role's part of one."""
        return self._net(NetName("train"))

    @property
    def heads(self) -> Net | None:
        """The net that makes the model's heads of what the train net makes, if there are any."""
        return self.nets.get(str(NetName("heads")))

    @property
    def evaluation(self) -> Net | None:
        """The net of evaluation, where that is something else than what the train net and its heads are: its outputs are the loss, the logit, and heads."""
        return self.nets.get(str(NetName("evaluation")))

    def net_of(self, device: str) -> Net:
        """The net that `device` runs in a step. Raises PlanError where it runs none."""
        return self._net(NetName.step(device))

    def step_net(self, device: str) -> Net | None:
        """The net that `device`, or all workers together, run in a step, if there is one."""
        return self.nets.get(str(NetName.step(device)))

    def sync_net(self, holder: str) -> Net | None:
        """The net that `holder` runs in a round of the sync of its dense weights, if it has rounds."""
        return self.nets.get(str(NetName.sync(holder)))

    def flush_net(self) -> Net | None:
        """The net that empties a trainer's cache, if it has one."""
        return self.nets.get(str(NetName.flush(TRAINER)))

    def centre_nets(self) -> dict[NetName, Net]:
        """The nets by which hosts of centres answer holders of weights; each name has its host and its holder, `device`."""
        return {name: net for name, net in self._named() if name.kind == "centre" and not name.is_init}

    def centre_net(self, host: str, holder: str) -> Net | None:
        """The net by which `host` answers `holder`, if it has centres of its weights."""
        return self.nets.get(str(NetName.centre(host, holder)))

    def nets_of_rounds(self) -> dict[NetName, Net]:
        """The nets of both sides of rounds: those of `sync_net` and of `centre_nets`."""
        return {name: net for name, net in self._named() if name.is_of_rounds}

    def init_net(self, device: str) -> Net:
        """The net with first values for what `device` has in a step. Raises PlanError where there is none."""
        return self._net(NetName.step(device).init)

    def init_nets(self, device: str) -> dict[NetName, Net]:
        """The nets with first values for what `device` runs: a step, its rounds, and the centres that it hosts."""
        return {name: net for name, net in self._named() if name.is_init and name.run_by == Device.parse(device)}

    def _named(self) -> Iterator[tuple[NetName, Net]]:
        return ((NetName.parse(text), net) for text, net in self.nets.items())

    def _net(self, name: NetName) -> Net:
        if str(name) not in self.nets:
            raise PlanError(f"{HEADER}: the net '{name}' is missing")
        return self.nets[str(name)]
