"""The table of tools/library_models.py, and how it counts what models are refused for; no library is needed."""

from library_models.case import Ids, Numbers, drawn
from library_models.result import Result, reason, reasons, row, totals

CONVOLUTION = "aten.convolution.default in module 'model.cin.conv.{}' cannot be compiled: htrain has no such op"
RESULTS = [
    Result("one", "A", "yes", equal="yes", trains={"sgd": 2e-6, "adam": 3e-4}, ulp={"adam": 2e-4}, seconds=3.21),
    Result("one", "B", "no", CONVOLUTION.format(0)),
    Result("two", "C", "no", CONVOLUTION.format(7)),
    Result("two", "D", "crash", "ZeroDivisionError: modulo by zero"),
    Result("two", "E", "yes", equal="yes", trains={"sgd": 0.02}),
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
    assert row(RESULTS[0]).split() == [
        "one",
        "A",
        "3.2",
        "s",
        "yes",
        "yes",
        "sgd",
        "2e-06",
        "adam",
        "3e-04",
        "(an",
        "ulp",
        "2e-04)",
    ]
    assert row(RESULTS[4]).split() == ["two", "E", "0.0", "s", "yes", "yes", "sgd", "DIFFERS", "2e-02"]
    assert "no: aten.convolution.default in module" in row(RESULTS[1])


def test_totals_leave_out_what_the_library_itself_cannot_run() -> None:
    assert list(totals(RESULTS, {"three": "ModuleNotFoundError: No module named 'three'"})) == [
        "one              1 of 2 compile, 1 equal PyTorch, 1 of 1 train as PyTorch does",
        "two              1 of 3 compile, 1 equal PyTorch, 0 of 1 train as PyTorch does; 1 do not run in PyTorch",
        "all              2 of 5 compile, 2 equal PyTorch, 1 of 2 train as PyTorch does; 1 do not run in PyTorch",
        "three            skipped: ModuleNotFoundError: No module named 'three'",
    ]


def test_inputs_are_drawn_within_their_tables() -> None:
    values = drawn({"ids": Ids(3, 5), "numbers": Numbers(2)}, 40)
    assert values["ids"].shape == (40, 3)
    assert (int(values["ids"].min()), int(values["ids"].max())) == (0, 4)
    assert values["numbers"].shape == (40, 2)
