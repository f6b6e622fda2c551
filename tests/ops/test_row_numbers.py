"""Tables whose rows are those of the data's numbers are told from those whose numbers a model computes."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import htrain
from htrain.ops.row_numbers import rows_by_number, rows_computed
from htrain.spec.cluster import Cluster, this_machine
from htrain.spec.tree import with_flags

ROWS, LENGTH = 40, 5
Ids = torch.Tensor
AS_THEY_COME: dict[str, Callable[[Ids, Ids], Ids]] = {
    "as they are": lambda user, seen: seen,
    "a column": lambda user, seen: user[:, :1],
    "both, one behind the other": lambda user, seen: torch.cat([user, seen], 1),
    "moved by a place": lambda user, seen: torch.cat([torch.zeros_like(seen[:, :1]), seen[:, :-1]], 1),
    "without some": lambda user, seen: seen * (seen != user[:, :1]),
    "padding in the place of some": lambda user, seen: seen.masked_fill(seen == user[:, 1:2], 0),
    "what is unknown in the place of some": lambda user, seen: torch.where(torch.rand(seen.shape) < 0.15, 1, seen),
    "turned": lambda user, seen: seen.flip(1),
    "sorted": lambda user, seen: seen.sort(1).values,
}
COMPUTED: dict[str, Callable[[Ids, Ids], Ids]] = {
    "offsets of columns": lambda user, seen: user + torch.tensor([0, 20]),
    "one more": lambda user, seen: (seen + 1) % ROWS,
    "hashed": lambda user, seen: seen * 31 % ROWS,
    "half": lambda user, seen: seen // 2,
    "the last row in the place of some": lambda user, seen: torch.where(torch.rand(seen.shape) < 0.15, ROWS - 1, seen),
    "the last row, by a product": lambda user, seen: (m := (seen == user[:, :1]).long()) * (ROWS - 1) + (1 - m) * seen,
    "the last of what is there": lambda user, seen: seen.clamp(max=ROWS - 1),
    "places": lambda user, seen: seen.argsort(1),
    "a mask": lambda user, seen: (seen != 0).long(),
    "pairs": lambda user, seen: user[:, :1] * user[:, 1:2] % ROWS,
}


class Model(nn.Module):
    """`given` says what is looked up; `kind` how its rows are held."""

    def __init__(self, given: Callable[[Ids, Ids], Ids], kind: str) -> None:
        super().__init__()
        self.given, self.kind = given, kind
        self.rows = nn.EmbeddingBag(ROWS, 4, mode="sum") if kind == "bag" else nn.Embedding(ROWS, 4)
        self.other = nn.Embedding(ROWS, 4)

    def forward(self, user: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        ids = self.given(user, seen)
        found = self.rows(ids) if self.kind == "bag" else self.rows(ids).sum(1)
        if self.kind == "weight":  # that is read as a whole, too
            return ((found + self.other(seen).sum(1)) @ self.rows.weight.T).sum(1)
        return (found * self.other(seen).sum(1)).sum(1)


def plan_of(given: Callable[[Ids, Ids], Ids], kind: str, cluster: Cluster, **flags: str) -> htrain.Plan:
    inputs = {"user": torch.ones(4, 2, dtype=torch.long), "seen": torch.ones(4, LENGTH, dtype=torch.long)}
    return htrain.compile(
        Model(given, kind), cluster=cluster, example_inputs=inputs, self_check=False, options=with_flags(**flags)
    )


@pytest.mark.parametrize("kind", ["table", "bag", "weight"])
@pytest.mark.parametrize("what", [*AS_THEY_COME, *COMPUTED])
def test_rows_of_the_datas_numbers_are_known(what: str, kind: str) -> None:
    plan = plan_of({**AS_THEY_COME, **COMPUTED}[what], kind, this_machine())
    found = rows_by_number(plan.train, ["user", "seen"])
    assert found == {"other.weight", *(["rows.weight"] if what in AS_THEY_COME else [])}, what
    computed = rows_computed(plan.train, ["user", "seen"], of=["user", "seen"])
    assert computed == ([] if what in AS_THEY_COME else ["rows.weight"]), what


def test_other_inputs_are_numbers_of_their_own() -> None:
    plan = plan_of(lambda user, seen: torch.cat([user, seen], 1), "table", this_machine())
    assert rows_by_number(plan.train, ["seen"]) == {"other.weight"}
    assert rows_by_number(plan.train, []) == set()
    assert rows_computed(plan.train, ["seen"], of=["seen"]) == ["rows.weight"]
    assert rows_computed(plan.train, ["user", "seen"], of=["user"]) == []
    mixed = plan_of(COMPUTED["pairs"], "table", this_machine())
    assert rows_computed(mixed.train, ["user", "seen"], of=["seen"]) == []


@pytest.mark.parametrize(
    ("cluster", "flags"),
    [
        (Cluster(groups=1, trainers=2, group_ps=1, sparse_ps=3), {}),
        (Cluster(groups=2, trainers=1, group_ps=1, sparse_ps=2), {"cache": "het", "cache_capacity": "50%"}),
        (Cluster(groups=1, trainers=1, group_ps=1, sparse_ps=2), {"cache": "lookahead"}),
    ],
)  # fmt: skip
def test_however_a_plan_holds_its_tables(cluster: Cluster, flags: dict[str, str]) -> None:
    assert rows_by_number(plan_of(lambda user, seen: seen, "table", cluster, **flags).train, ["user", "seen"]) == {
        "rows.weight",
        "other.weight",
    }
    found = rows_by_number(plan_of(COMPUTED["hashed"], "table", cluster, **flags).train, ["user", "seen"])
    assert found == {"other.weight"}
