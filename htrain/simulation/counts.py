"""The same plan with other numbers of groups, trainers, net replicas, or another batch size: nothing is placed anew."""

from dataclasses import replace

from htrain.errors import PlanError
from htrain.net.names import TRAINER, WORKERS
from htrain.ops.cache_rates import NO_RATES
from htrain.plan.plan import Plan
from htrain.spec.cluster import validated


def with_counts(
    plan: Plan,
    *,
    groups: int | None = None,
    trainers: int | None = None,
    net_replicas: int | None = None,
    batch_size: int | None = None,
) -> Plan:
    """The plan with each count that is given. Its nets are those of any number of groups and trainers; costs follow
    the batch size.

    Rates of caches are those of the trainers and batches that they were found for, and are left out where these
    change. Raises PlanError where the plan's nets do not serve so many: weights on a trainer, or no dense PS between
    several groups.
    """
    cluster, options = plan.cluster, plan.options
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
    return replace(
        plan,
        cluster=validated({name: getattr(changed, name) for name in vars(changed)}, where="the flags"),
        options=replace(
            options, net_replicas=net_replicas or options.net_replicas, batch_size=batch_size or options.batch_size
        ),
        rates=plan.rates if same else NO_RATES,
    )
