"""HET-GMP's systems on a cluster of network namespaces: what the tools of its figures share. Needs root.

Every worker has a host with a link of its own; hosts of a site share an uplink to the other site. Cores are shared by all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from netlab import Lab, LabRun, since

import htrain
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

MODELS = Path(__file__).parents[1] / "models"
NOTHING: Mapping[str, object] = MappingProxyType({})
LINK_COST = 10.0  # of a row of another site, where a partition knows of sites: 1 Gbit/s beside 100 Mbit/s


@dataclass(frozen=True)
class Where:
    """How samples and rows are divided: `way` is by a search that knows the sites ("by hosts"), by one that does not ("flat"), or "random"; each worker holds
    replicas of the share `replicas` of all rows."""

    way: str
    replicas: float = 0.01

    def divided(
        self, data: str, folder: Path, *, workers: int, batch: int, sites: Sequence[int] = ()
    ) -> tuple[Path, str]:
        """The partition, and the data packed by it. F_B between sites is told of every partition, whether it was searched for or not."""
        out, packed = folder / "train.partition", folder / "train.packed"
        cost = LINK_COST if self.way == "by hosts" else 1.0
        htrain.partition(
            data, out=out, num_workers=workers, batch_size=batch, hosts=sites, link_cost=cost, replicas=self.replicas, at_random=self.way == "random",
        )  # fmt: skip
        htrain.pack(data, out=packed, partition=out)
        return out, f"packed:{packed}"


@dataclass(frozen=True)
class System:
    """One line of a figure: HET-GMP by a partition, or, without one, groups of one trainer and a sparse PS, with options of their own."""

    name: str
    where: Where | None = None
    flags: dict[str, object] = field(default_factory=dict)

    def planned(
        self,
        model: str,
        data: str,
        folder: Path,
        *,
        workers: int,
        options: Options,
        sites: Sequence[int] = (),
        changes: Mapping[str, object] = NOTHING,
    ) -> tuple[Plan, str]:
        """Its plan, saved in `folder`, and the data to run it with; `changes` are of the cluster, which is this machine with them."""
        flags: dict[str, object] = {"dense_sync": "allreduce", **self.flags}
        if self.where:
            batch = options.batch_size
            file, data = self.where.divided(data, folder, workers=workers, batch=batch, sites=sites)
            flags |= {"sparse_sync": "gmp", "partition": str(file)}
        options = with_flags(options, **flags)
        cluster = replace(this_machine(groups=workers, trainers=1, group_ps=0, sparse_ps=1), **changes)
        plan = htrain.compile(model, data=data, cluster=cluster, options=options)
        plan.save(folder / "plan")
        return plan, data


@dataclass(frozen=True)
class Links:
    """How fast each host's link is, and the uplinks between sites, where there are several; sites[s] workers stand on each."""

    rate: str
    sites: tuple[int, ...] = ()
    between: str = "100mbit"

    def run(
        self, plan: Plan, data: str, folder: Path, *, epochs: int, name: str = "run", timeout: float = 3000
    ) -> LabRun:
        """Run a plan that is in `folder`; the launcher, and a sparse PS of its own, are on the first site."""
        hosts = len(plan.processes) + 1
        sites = (hosts - sum(self.sites[1:]), *self.sites[1:]) if len(self.sites) > 1 else ()
        with Lab(hosts, rate=self.rate, sites=sites, between=self.between) as lab:
            return lab.run_plan(folder / "plan", data, folder / name, epochs=epochs, timeout=timeout)


def grown(one: LabRun, other: LabRun) -> LabRun:
    """What the longer run's links have carried beyond the shorter one's: no start of a run is in it, and no end."""
    roles = {role: since(carried, other.roles[role]) for role, carried in one.roles.items()}
    return replace(other, roles=roles, uplinks=tuple(map(since, one.uplinks, other.uplinks)))
