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
    "the last one, by a mask": lambda user, seen: seen.gather(1, ((seen != 0).sum(1) - 1).unsqueeze(1)),
    "indexed": lambda user, seen: torch.where(seen < 0, seen + ROWS, seen),
}
COMPUTED: dict[str, Callable[[Ids, Ids], Ids]] = {
    "offsets of columns": lambda user, seen: user + torch.tensor([0, 20]),
    "one more": lambda user, seen: (seen + 1) % ROWS,
    "hashed": lambda user, seen: seen * 31 % ROWS,
    "half": lambda user, seen: seen // 2,
    "half, by floats": lambda user, seen: (seen.float() * 0.5).long(),
    "the last row in the place of some": lambda user, seen: torch.where(torch.rand(seen.shape) < 0.15, ROWS - 1, seen),
    "the last row, by a product": lambda user, seen: (m := (seen == user[:, :1]).long()) * (ROWS - 1) + (1 - m) * seen,
    "the last of what is there": lambda user, seen: seen.clamp(max=ROWS - 1),
    "places": lambda user, seen: seen.argsort(1),
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
        return (found * self.other(seen).sum(1)).sum(1)


def plan_of(given: Callable[[Ids, Ids], Ids], kind: str, cluster: Cluster, **flags: str) -> htrain.Plan:
    inputs = {"user": torch.ones(4, 2, dtype=torch.long), "seen": torch.ones(4, LENGTH, dtype=torch.long)}
    return htrain.compile(
        Model(given, kind), cluster=cluster, example_inputs=inputs, self_check=False, options=with_flags(**flags)
    )


@pytest.mark.parametrize("kind", ["table", "bag"])
@pytest.mark.parametrize("what", [*AS_THEY_COME, *COMPUTED])
def test_rows_of_the_datas_numbers_are_known(what: str, kind: str) -> None:
    plan = plan_of({**AS_THEY_COME, **COMPUTED}[what], kind, this_machine())
    found = rows_by_number(plan.train, ["user", "seen"])
    assert found == {"other.weight", *(["rows.weight"] if what in AS_THEY_COME else [])}, what
    assert rows_computed(plan.train, ["user", "seen"]) == ([] if what in AS_THEY_COME else ["rows.weight"]), what


def test_other_inputs_are_numbers_of_their_own() -> None:
    plan = plan_of(lambda user, seen: torch.cat([user, seen], 1), "table", this_machine())
    assert rows_by_number(plan.train, ["seen"]) == {"other.weight"}
    assert rows_by_number(plan.train, []) == set()
    assert rows_computed(plan.train, ["seen"]) == ["rows.weight"]
    assert rows_computed(plan.train, []) == []


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


class Reads(nn.Module):
    """A weight that is looked up by ids as they come, and read in another way besides."""

    def __init__(self, how: Callable[[nn.Embedding, Ids, Ids], torch.Tensor], rows: int = ROWS) -> None:
        super().__init__()
        self.rows, self.how = nn.Embedding(rows, 4), how

    def forward(self, user: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return (self.rows(seen).sum(1) * self.how(self.rows, user, seen)).sum(1)


OTHERWISE: dict[str, Callable[[nn.Embedding, Ids, Ids], torch.Tensor]] = {
    "the last row": lambda rows, user, seen: rows.weight[-1],
    "the last row in the place of some": lambda rows, user, seen: torch.where(
        (seen == 1)[..., None], rows.weight[-1], rows(seen)
    ).sum(1),
    "a half": lambda rows, user, seen: rows.weight[20:].sum(0),
    "rows behind others": lambda rows, user, seen: nn.functional.embedding(user, rows.weight[20:]).sum(1),
    "all": lambda rows, user, seen: (rows(user).sum(1) @ rows.weight.T).sum(1, keepdim=True),
    "a row that does not come": lambda rows, user, seen: rows(torch.full_like(user, 30)).sum(1),
    "a row behind each": lambda rows, user, seen: rows(user + 20).sum(1),
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_what_is_read_in_another_way_besides_is_not_known(what: str) -> None:
    inputs = {"user": torch.ones(4, 2, dtype=torch.long), "seen": torch.ones(4, LENGTH, dtype=torch.long)}
    plan = htrain.compile(Reads(OTHERWISE[what]), cluster=this_machine(), example_inputs=inputs, self_check=False)
    assert rows_by_number(plan.train, ["user", "seen"]) == set()
    assert rows_computed(plan.train, ["user", "seen"]) == ["rows.weight"]


class Places(nn.Module):
    """Tables by places, by a dense number and by a mask, and of a list the last id, the last vector and the two that score best."""

    def __init__(self) -> None:
        super().__init__()
        self.item, self.place, self.bias = (
            nn.Embedding(ROWS, 4),
            nn.Embedding(LENGTH, 4),
            nn.Parameter(torch.zeros(ROWS)),
        )
        self.price, self.there = nn.Embedding(4, 4), nn.Embedding(2, 4)

    def forward(self, dense: torch.Tensor, seen: torch.Tensor, seen_length: torch.Tensor) -> torch.Tensor:
        last = seen.gather(1, (seen_length - 1).clamp(min=0).unsqueeze(1))
        price = self.price(torch.bucketize(dense[:, 0].contiguous(), torch.tensor([0.1, 0.5, 0.9])))
        of_list = (self.item(seen) + self.place(torch.arange(LENGTH))).sum(1)
        hidden = self.item(seen)
        scores = (hidden * of_list.unsqueeze(1)).sum(2).masked_fill(seen == 0, -9.0)
        best = hidden.gather(1, scores.topk(2, 1).indices.unsqueeze(2).expand(-1, -1, 4)).sum(1)
        at_end = hidden[torch.arange(len(seen)), (seen != 0).sum(1) - 1]
        there = self.there((seen != 0).long()).sum(1)
        return (of_list * self.item(last).squeeze(1) * price * best * at_end * there).sum(1) + self.bias[last[:, 0]]


def test_places_prices_and_the_last_of_a_list_are_no_other_numbers() -> None:
    inputs = {
        "dense": torch.rand(4, 1), "seen": torch.ones(4, LENGTH, dtype=torch.long), "seen_length": torch.full((4,), 2)
    }  # fmt: skip
    plan = htrain.compile(Places(), cluster=this_machine(), example_inputs=inputs, self_check=False)
    assert rows_computed(plan.train, ["seen"]) == []
    assert rows_by_number(plan.train, ["seen"]) >= {"item.weight"}
    assert "there.weight" not in rows_by_number(plan.train, ["seen"])
