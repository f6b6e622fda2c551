"""Tables that are read and stepped in place: only those of SGD, on the device of the stack."""

import pytest
from fused import SGD, train_net, types

from htrain.spec.tree import with_flags


@pytest.mark.parametrize("sparse_optimizer", ["adagrad", "rowwise_adagrad"])
def test_tables_whose_step_needs_the_sum_of_an_ids_gradients_are_looked_up_id_by_distinct_id(
    sparse_optimizer: str,
) -> None:
    found = types(train_net("dlrm.py", with_flags(SGD, sparse_optimizer=sparse_optimizer)))  # type: ignore[arg-type]
    assert (found["StackRows"], found["StackRowsGradient"], found["Lookup"]) == (1, 1, 26)
    assert not {"StackTables", "StepTables"} & found.keys()


def test_tables_elsewhere_or_behind_a_cache_are_stacked_from_rows() -> None:
    for options, counts in ((SGD, {"sparse_ps": 2}), (with_flags(SGD, cache="lookahead"), {})):
        found = types(train_net("dlrm.py", options, **counts))
        assert (found["StackRows"], found["StackTables"]) == (1, 0)
