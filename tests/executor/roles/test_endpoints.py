"""Names of endpoints, which are joined as text, against the types of `htrain.net.names`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htrain.executor.engine.context import Context
from htrain.executor.roles.endpoints import endpoint_of, holder_number
from htrain.net.names import DENSE_PS, GROUP_PS, SPARSE_PS, TRAINER, WORKERS, Device, Role

NUMBERS = st.integers(0, 10**6)
CONTEXTS = st.builds(Context, NUMBERS, NUMBERS, NUMBERS, NUMBERS)


@given(CONTEXTS)
def test_a_trainer_and_its_collectives_are_those_of_the_context(context: Context) -> None:
    trainer = Role(TRAINER, context.trainer, context.group)
    assert endpoint_of(TRAINER, context) == f"{trainer}/{context.replica}"
    assert endpoint_of(WORKERS, context) == f"{trainer}/{WORKERS}"


@given(CONTEXTS, NUMBERS)
def test_a_server_is_that_of_the_group_or_serves_all_groups(context: Context, number: int) -> None:
    assert endpoint_of(str(Device(GROUP_PS, number)), context) == str(Role(GROUP_PS, number, context.group))
    for kind in (SPARSE_PS, DENSE_PS):
        assert endpoint_of(str(Device(kind, number)), context) == str(Role(kind, number))


@pytest.mark.parametrize(("device", "number"), [("trainer", -1), ("group_ps:0", 0), ("group_ps:11", 11)])
def test_rounds_of_a_trainer_have_a_number_that_no_server_has(device: str, number: int) -> None:
    assert holder_number(device) == number
