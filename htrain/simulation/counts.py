"""The same plan with other numbers of groups, trainers, net replicas, or another batch size: nothing is placed anew."""

from dataclasses import replace

from htrain.errors import PlanError
from htrain.net.names import TRAINER, WORKERS
from htrain.ops.cache_rates import NO_RATES
from htrain.plan.plan import Plan
from htrain.spec.cluster import validated
from htrain.spec.compatibility import compatible
from htrain.spec.sparse_sync import OTHER_BATCHES


def with_counts(
    plan: Plan,
    *,
    groups: int | None = None,
    trainers: int | None = None,
    net_replicas: int | None = None,
    batch_size: int | None = None,
    is_played: bool = False,
) -> Plan:
    """The plan with each count that is given. Its nets are those of any number of groups and trainers; costs follow
    the batch size.

    Rates of caches are those of the trainers and batches that they were found for, and are left out where these
    change; with `is_played`, they are going to be found anew. Raises PlanError where the plan's nets do not serve so
    many: weights on a trainer, no dense PS between several groups, or rows that a partition gives to so many workers;
    and where no run has so many: net replicas of a trainer in lockstep or behind a cache. Raises ClusterError for
    counts that the plan's options do not go with.
    """
    cluster, options = plan.cluster, plan.options
    _require_partition(plan, groups, None if is_played else batch_size)
    holds = [p.name for p in plan.net_of(TRAINER).parameters.values() if p.kind == "weight" and p.trained]
    if trainers and trainers > 1 and holds:
        raise PlanError(
            f"the trainer of this plan holds weights ('{holds[0]}'), so that a group has one trainer: compile with --trainers {trainers} --group-ps 1 or more"
        )
    if groups and groups > 1 and not plan.step_net(WORKERS) and not plan.nets_of_rounds():
        raise PlanError("this plan is for one group and has no sync nets: compile it with --groups 2 or more")
    same = (groups or cluster.groups) * (trainers or cluster.trainers) == cluster.groups * cluster.trainers
    same = same and batch_size in (None, options.batch_size)
    changed = replace(cluster, groups=groups or cluster.groups, trainers=trainers or cluster.trainers)
    wanted = net_replicas or options.net_replicas
    found, settled = compatible(
        validated({name: getattr(changed, name) for name in vars(changed)}, where="the flags"),
        replace(options, net_replicas=wanted, batch_size=batch_size or options.batch_size),
    )
    if settled.net_replicas != wanted:
        who = "behind a cache" if options.holder.holds_rows else "in lockstep with others"
        raise PlanError(f"--net-replicas {wanted}: a trainer {who} has one net replica: leave it out")
    return replace(plan, cluster=found, options=settled, rates=plan.rates if same else NO_RATES)


def notes_on_counts(plan: Plan) -> list[str]:
    """What a plan notes of the batches that its figures are of, where these are not its own."""
    return [note for note in plan.notes if note.startswith(OTHER_BATCHES)]


def _require_partition(plan: Plan, groups: int | None, batch_size: int | None) -> None:
    """Raises PlanError for other workers, or batches, than those whose rows a partition has told."""
    if not plan.options.holder.by_partition:
        return
    if groups not in (None, plan.cluster.groups):
        raise PlanError(
            f"the rows of this plan are where a partition among {plan.cluster.groups} workers has them: for {groups}, make one with htrain partition "
            f"--workers {groups}, and compile with it"
        )
    if batch_size not in (None, plan.options.batch_size):
        raise PlanError(
            f"the partition tells what rows a batch of {plan.options.batch_size} asks for, not one of {batch_size}: count them in its data, --trace "
            f"packed:FILE, or partition for such batches (--batch {batch_size}) and compile with it"
        )
