"""The table of tools/library_models.py, how it counts what models are refused for, and its trainings; no library is needed."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from library_models.case import Case, Ids, Numbers, drawn
from library_models.checking import checked
from library_models.pairs import DENSE, TABLES, Pair, pairs_of, placements_of
from library_models.result import Result, reason, reasons, row, totals
from library_models.training import Training
from torch import nn

from htrain.data import CRITEO
from htrain.self_check.capture import capture_model

CONVOLUTION = "aten.convolution.default in module 'model.cin.conv.{}' cannot be compiled: htrain has no such op"
RESULTS = [
    Result(
        "one",
        "A",
        "yes",
        equal="yes",
        seconds=3.21,
        ulp={"b+b roles": 2e-4},
        calmer={"b+b roles": 0.1},
        trains={"a+a alone": 2e-6, "a+a roles": 1e-6, "b+b alone": 0.0, "b+b roles": 3e-4, "b+b het": 1e-5},
    ),
    Result("one", "B", "no", CONVOLUTION.format(0)),
    Result("two", "C", "no", CONVOLUTION.format(7)),
    Result("two", "D", "crash", "ZeroDivisionError: modulo by zero"),
    Result(
        "two", "E", "yes", equal="yes", trains={"a+a alone": 0.02, "a+a het": "ValueError: no"}, ulp={"a+a alone": 0.0}
    ),
    Result("two", "F", "skipped", "TypeError: of the library"),
]


def test_refusals_are_counted_by_op_whatever_module_it_is_in_the_most_frequent_first() -> None:
    assert reasons(RESULTS) == [
        ("aten.convolution.default: htrain has no such op", 2, "one B"),
        ("ZeroDivisionError: modulo by zero", 1, "two D"),
    ]


def test_what_export_says_is_a_reason_without_the_models_own_names_and_sizes() -> None:
    said = (
        "torch.export cannot capture Pair: TypeError: zeros(): argument 'size' at pos 2 (in module 'gru', /lib/a.py:3)"
    )
    assert reason(Result("one", "A", "no", said)) == "torch.export: TypeError: zeros(): argument '..' at pos N"


def test_a_row_says_whether_it_compiles_is_equal_and_trains_as_pytorch_does() -> None:
    assert row(RESULTS[0]).split(maxsplit=6) == [
        "one", "A", "3.2", "s", "yes", "yes",
        "4 of 5 trainings equal, within 1e-05; b+b roles chaotic by 3e-04 (an ulp 2e-04; equal at 0.1 of the rates)",
    ]  # fmt: skip
    assert row(RESULTS[4]).endswith(
        "0 of 2 trainings equal, within 0e+00; a+a alone differs by 2e-02 (an ulp 0e+00); a+a het: ValueError: no"
    )
    assert "no: aten.convolution.default in module" in row(RESULTS[1])


def test_totals_leave_out_what_the_library_itself_cannot_run() -> None:
    assert list(totals(RESULTS, {"three": "ModuleNotFoundError: No module named 'three'"})) == [
        "one              1 of 2 compile, 1 equal PyTorch; one trainer: 1 of 1; 1+1+1: 0 of 1 (1 chaotic); two groups: 1 of 1; "
        "5 trainings, 1 chaotic of 1 models, 1 of these equal at smaller rates",
        "two              1 of 3 compile, 1 equal PyTorch; one trainer: 0 of 1; two groups: 0 of 1; 2 trainings; "
        "1 do not run in PyTorch",
        "all              2 of 5 compile, 2 equal PyTorch; one trainer: 1 of 2; 1+1+1: 0 of 1 (1 chaotic); two groups: 1 of 2; "
        "7 trainings, 1 chaotic of 1 models, 1 of these equal at smaller rates; 1 do not run in PyTorch",
        "three            skipped: ModuleNotFoundError: No module named 'three'",
    ]


def test_pairs_take_turns_until_all_have_been_and_both_forms_of_two_groups_do() -> None:
    turns = [pair for number in range(10) for pair in pairs_of(number, 3)]
    assert len(set(turns)) == len(DENSE) * len(TABLES) == 30
    assert set(Counter(pair.dense for pair in turns).values()) == {5}
    for number in range(10):
        assert len({pair.tables for pair in pairs_of(number, 3)}) == 3
    assert len(set(pairs_of(4, 99))) == 30
    forms = Counter(placements_of(k, pair, has_tables=True)[2] for k, pair in enumerate(turns))
    assert forms == {"het": 12, "allgather": 18}  # a het cache does not count updates, as sparse_adam wants


def test_inputs_are_drawn_within_their_tables() -> None:
    values = drawn({"ids": Ids(3, 5), "numbers": Numbers(2)}, 40)
    assert values["ids"].shape == (40, 3)
    assert (int(values["ids"].min()), int(values["ids"].max())) == (0, 4)
    assert values["numbers"].shape == (40, 2)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As the tool has it: many small steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class TwoTasks(nn.Module):
    """Two towers over one table, of which the first has the probability, with norms and dropouts; what the second drops is not in the net."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 4, padding_idx=0)
        self.norm = nn.BatchNorm1d(14)
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(14, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1)) for _ in range(2)
        )

    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """ids[B,3], dense[B,2] -> probability[B]."""
        seen = self.norm(torch.cat([self.table(ids).flatten(1), dense], 1))
        self.table(ids.flip(0)).sum()  # of rows that are none of this example's, and moves none
        late, first = (torch.sigmoid(tower(seen)) for tower in reversed(self.towers))
        return torch.cat([first, late], 1)[:, 0]


CASE = Case("own", "two tasks", TwoTasks, {"ids": Ids(3, 40), "dense": Numbers(2)})


@pytest.mark.usefixtures("one_thread")
def test_a_model_with_dropouts_that_its_net_leaves_out_is_trained_as_by_pytorch_in_all_placements() -> None:
    result = checked(CASE, pairs=[Pair("adam", "rowwise_adagrad"), Pair("ftrl", "sparse_adam")])
    assert result.text == ""
    assert len(result.trains) == 6
    assert {result.training(name) for name in result.trains} == {"equal"}


@pytest.mark.usefixtures("one_thread")
def test_a_weight_that_differs_is_seen_in_every_placement_and_is_no_rounding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = TwoTasks()
    inputs = drawn(CASE.inputs, 6)
    captured = capture_model(model, schema=CRITEO, example_inputs=inputs, logit="", label="").captured
    first = model.towers[0][0]
    first.weight = nn.Parameter(first.weight + 0.05)
    training, pair = Training(model, CASE, captured, tmp_path, loss="bce"), Pair("sgd", "sgd")
    for placement in ("alone", "roles", "het", "allgather"):
        seen = training.difference(pair, placement)
        assert seen > 1e-3
        assert training.difference_of_ulp(pair, placement, seen / 2) < 1e-4


def test_a_cache_is_not_asked_for_where_no_table_is_trained() -> None:
    pair = next(pair for pair in pairs_of(0, 30) if pair.tables == "sgd")
    assert [placements_of(0, pair, has_tables=some)[2] for some in (True, False)] == ["het", "allgather"]
