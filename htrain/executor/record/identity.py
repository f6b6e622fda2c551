"""What a checkpoint belongs to: a plan with its cluster and options, and data. Its parameters and its readers' positions mean something there alone."""

from typing import Any

import msgspec

from htrain.data.identity import READER, DataIdentity, identity_of
from htrain.errors import UsageError
from htrain.plan.plan import Plan
from htrain.spec.migrations import NEWEST, migrated
from htrain.spec.tree import document_of, flat, options_of

_UNSAID = 14  # the version of the plan's words where a manifest does not say it, as older ones do not
# What flags begin with that say how a cluster trains a model, not what is trained.
_OF_CLUSTER = (
    "net_replicas", "prefetch", "bounded_staleness", "compress", "fuse_", "fast_products", "dense_sync", "sync_", "sparse_sync", "table_store", "cache",
)  # fmt: skip
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
        for mine, its in ((self.counts, other.counts), (self._flags(), other._flags())):
            for name in dict.fromkeys((*mine, *its)):
                before, now = mine.get(name, "not there"), its.get(name, "not there")
                if before != now:
                    return f"{name.replace('_', ' ')}: {now} now, {before} then"
        if self.digest != other.digest:
            return f"its nets have the digest {other.digest[:12]}, they had {self.digest[:12]}"
        return ""

    def difference_of_model(self, other: "PlanIdentity") -> str:
        """What tells `other` from this one beside its cluster, and what is done because of that; "" where nothing does that flags say. Nets differ with the
        cluster: only where that is the same, they say that what is trained is another."""
        if self.version > NEWEST or (self.counts, self._flags()) == (other.counts, other._flags()):
            return self.difference(other)
        before, now = (
            {n: v for n, v in each._flags().items() if not n.startswith(_OF_CLUSTER)} for each in (self, other)
        )
        for name in dict.fromkeys((*before, *now)):
            if before.get(name) != now.get(name):
                return (
                    f"{name.replace('_', ' ')}: {now.get(name, 'not there')} now, {before.get(name, 'not there')} then"
                )
        return ""

    def _flags(self) -> dict[str, Any]:
        """What the options say, flag by flag, in the newest words; as they stand where no htrain wrote them."""
        try:
            return flat(options_of(migrated({"options": self.options}, self.version)["options"], "options"))
        except (ValueError, UsageError):
            return self.options


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
