"""What a checkpoint belongs to: a plan with its cluster and options, and data. Its parameters and its readers' positions mean something there alone."""

from collections.abc import Mapping
from typing import Any

import msgspec

from htrain.data.identity import READER, DataIdentity, identity_of
from htrain.errors import UsageError
from htrain.plan.plan import Plan
from htrain.spec.migrations import NEWEST, migrated
from htrain.spec.tree import document_of, flags, flat, options_of

_UNSAID = 14  # the version of the plan's words where a manifest does not say it, as older ones do not
# The sections of options, and their own fields, that say how a cluster trains a model, not what is trained.
_OF_CLUSTER = {
    "net_replicas", "prefetch", "bounded_staleness", "compression", "fusions", "dense_sync", "sparse_sync", "cache",
}  # fmt: skip
_MOST_OTHERS = 4
_COUNTS = ("groups", "trainers", "group_ps", "sparse_ps", "dense_ps")


class PlanIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A plan as far as a run depends on it. What hosts are like, such as their memory, may change between two parts of a run."""

    digest: str
    counts: dict[str, int]
    options: dict[str, Any]
    version: int = _UNSAID

    @classmethod
    def of(cls, plan: Plan) -> "PlanIdentity":
        counts = {name: int(getattr(plan.cluster, name)) for name in _COUNTS}
        return cls(plan.digest, counts, document_of(plan.options), NEWEST)

    def difference(self, other: "PlanIdentity") -> str:
        """What tells `other`, the plan that is to go on, from this one; "" where nothing does."""
        if self.version > NEWEST:
            return f"it was begun by a newer htrain (version {self.version} of plans; this one knows {NEWEST})"
        if found := _others({**self.counts, **self._flags()}, {**other.counts, **other._flags()}):
            return found
        if self.digest != other.digest:
            return f"its nets have the digest {other.digest[:12]}, they had {self.digest[:12]}"
        return ""

    def difference_of_model(self, other: "PlanIdentity") -> str:
        """What tells `other` from this one beside its cluster, and what is done because of that; "" where nothing does that flags say. Nets differ with the
        cluster: only where that is the same, they say that what is trained is another."""
        if self.version > NEWEST or (self.counts, self._flags()) == (other.counts, other._flags()):
            return self.difference(other)
        return _others(*({n: v for n, v in each._flags().items() if not _is_of_cluster(n)} for each in (self, other)))

    def _flags(self) -> dict[str, Any]:
        """What the options say, flag by flag, in the newest words; as they stand where no htrain wrote them. Where a partition lies is left out: nets have its
        digest."""
        try:
            found = flat(options_of(migrated({"options": self.options}, self.version)["options"], "options"))
        except (ValueError, UsageError):
            return self.options
        return {name: value for name, value in found.items() if name != "partition"}


def _is_of_cluster(name: str) -> bool:
    """Whether a flag, or a section where flags are not to be had, is about the cluster."""
    flag = flags().get(name)
    return (flag.section if flag and flag.section else name) in _OF_CLUSTER


def _others(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first values that are others now, in words, and how many more there are; "" where none is."""
    pairs = {name: (then.get(name, "not there"), now.get(name, "not there")) for name in dict.fromkeys((*then, *now))}
    found = [
        f"{n.replace('_', ' ')}: {after} now, {before} then" for n, (before, after) in pairs.items() if before != after
    ]
    return "; ".join(
        found[:_MOST_OTHERS] + ([f"{len(found) - _MOST_OTHERS} more"] if len(found) > _MOST_OTHERS else [])
    )


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run's checkpoints belong to."""

    plan: PlanIdentity
    data: DataIdentity


def identify_served(plan: Plan) -> Identity:
    """What the checkpoints of servers belong to whose workers have data of their own."""
    return Identity(PlanIdentity.of(plan), DataIdentity(READER, "that of workers from outside", {}, ()))


def identify(plan: Plan, data: str) -> Identity:
    """What the checkpoints of a run of `plan` on `data` belong to. Raises DataError for data that cannot be read."""
    return Identity(PlanIdentity.of(plan), identity_of(data))
