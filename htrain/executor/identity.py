"""What a checkpoint belongs to: a plan with its cluster and options, and data. Its parameters and its readers' positions mean something there alone."""

from typing import Any

import msgspec

from htrain.data.identity import DataIdentity, identity_of
from htrain.plan import Plan

_COUNTS = ("groups", "trainers", "group_ps", "sparse_ps", "dense_ps")


class PlanIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan as far as a run depends on it. What hosts are like, such as their memory, may change between two parts of a run."""

    digest: str
    counts: dict[str, int]
    options: dict[str, Any]

    @classmethod
    def of(cls, plan: Plan) -> "PlanIdentity":
        counts = {name: int(getattr(plan.cluster, name)) for name in _COUNTS}
        return cls(plan.digest, counts, msgspec.to_builtins(plan.options, builtin_types=()))

    def difference(self, other: "PlanIdentity") -> str:
        """What tells `other`, the plan that is to go on, from this one; "" where nothing does."""
        for mine, its in ((self.counts, other.counts), (self.options, other.options)):
            for name in sorted(mine.keys() | its.keys()):
                before, now = _plain(mine.get(name, "not there")), _plain(its.get(name, "not there"))
                if before != now:
                    return f"{name.replace('_', ' ')}: {now} now, {before} then"
        if self.digest != other.digest:
            return f"its nets have the digest {other.digest[:12]}, they had {self.digest[:12]}"
        return ""


def _plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run's checkpoints belong to."""

    plan: PlanIdentity
    data: DataIdentity


def identify(plan: Plan, data: str) -> Identity:
    """What the checkpoints of a run of `plan` on `data` belong to. Raises DataError for data that cannot be read."""
    return Identity(PlanIdentity.of(plan), identity_of(data))
