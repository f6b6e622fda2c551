"""Names of devices, roles and nets: what is written is read again, and nothing else is."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htrain.errors import PlanError
from htrain.net.names import (
    GROUP,
    IN_GROUP,
    NUMBERED,
    TRAINER,
    WORKERS,
    Device,
    NetName,
    Role,
    device_at,
    device_of,
    net_name,
    number_of,
    role_at,
    role_of,
    shard_name,
)

NUMBERS = st.integers(0, 10**6)
PLACED = st.one_of(
    st.sampled_from([TRAINER, WORKERS]).map(Device),
    st.builds(Device, st.sampled_from([kind for kind in NUMBERED if kind != GROUP]), NUMBERS),
)
HOSTS = st.builds(Device, st.sampled_from(["dense_ps", GROUP]), NUMBERS)
ROLES = st.one_of(
    st.builds(Role, st.sampled_from(IN_GROUP), NUMBERS, NUMBERS),
    st.builds(Role, st.sampled_from(["sparse_ps", "dense_ps"]), NUMBERS),
)
NETS = st.one_of(
    st.just(NetName("train")),
    st.builds(NetName, st.sampled_from(["step", "sync", "flush"]), PLACED, is_init=st.booleans()),
    st.builds(NetName, st.just("centre"), PLACED, HOSTS, is_init=st.booleans()),
    st.sampled_from(["mine", "sync", "init_", "center_group_ps_0", "sync_init_trainer"]).map(
        lambda text: NetName("own", text=text)
    ),
)


@given(st.one_of(PLACED, HOSTS))
def test_a_device_is_read_as_it_is_written(device: Device) -> None:
    assert Device.parse(str(device)) == device
    assert role_of(str(device)) == device.kind
    assert number_of(str(device)) == (device.number or 0)


@given(ROLES)
def test_a_role_is_read_as_it_is_written_and_plays_a_device(role: Role) -> None:
    assert Role.parse(str(role)) == role
    assert device_of(str(role)) == str(role.device)
    assert role_of(str(role)) == role.kind == role.device.kind
    assert role_at(f"{role}/sync") == role_at(str(role)) == str(role)


@given(NETS)
def test_a_net_is_read_as_it_is_written(name: NetName) -> None:
    assert NetName.parse(str(name)) == name
    assert name.kind == "own" or NetName.parse(str(name)).is_init == name.is_init


@given(st.text(alphabet="abcegilmnoprsty_:/0123456789", max_size=20))
def test_only_what_is_written_so_is_read(text: str) -> None:
    for parse in (Device.parse, Role.parse):
        with suppress(PlanError):
            assert str(parse(text)) == text
    assert str(NetName.parse(text)) == text


@pytest.mark.parametrize("text", ["", "trainer:0", "group_ps", "group_ps:", "group_ps:01", "group_ps:-1", "ps:1"])
def test_what_is_no_device_is_told_with_what_one_is(text: str) -> None:
    with pytest.raises(PlanError) as error:
        Device.parse(text)
    assert str(error.value) == f"'{text}' is no device: want trainer, group_ps:K, sparse_ps:K or dense_ps:K"


@pytest.mark.parametrize("text", ["", "trainer", "trainer:0", "group_ps:1", "sparse_ps:0:1", "trainer:0:1/sync"])
def test_what_is_no_role_is_told_with_what_one_is(text: str) -> None:
    with pytest.raises(PlanError) as error:
        Role.parse(text)
    assert str(error.value) == f"'{text}' is no role: want trainer:G:I, group_ps:G:K, sparse_ps:K or dense_ps:K"


@pytest.mark.parametrize(
    ("name", "text", "run_by"),
    [
        (NetName("train"), "train", None),
        (NetName.step("trainer"), "trainer", "trainer"),
        (NetName.step("all_reduce"), "all_reduce", "trainer"),
        (NetName.step("group_ps:1").init, "init_group_ps_1", "group_ps:1"),
        (NetName.sync("group_ps:1"), "sync_group_ps_1", "group_ps:1"),
        (NetName.sync("trainer").init, "init_sync_trainer", "trainer"),
        (NetName.centre("dense_ps:0", "group_ps:1"), "center_dense_ps_0_group_ps_1", "dense_ps:0"),
        (NetName.centre("group:2", "group_ps:1").init, "init_center_group_2_group_ps_1", "group_ps:1"),
        (NetName.flush("trainer"), "flush_trainer", "trainer"),
        (NetName("own", text="of_mine"), "of_mine", None),
    ],
)
def test_nets_are_called_as_their_files_and_run_by_a_device(name: NetName, text: str, run_by: str | None) -> None:
    assert str(name) == text
    assert name.run_by == (Device.parse(run_by) if run_by else None)
    assert name.is_of_rounds == (text.startswith(("sync_", "center_")))


def test_a_role_is_a_host_of_centres_by_itself_or_as_its_group() -> None:
    assert str(Role.parse("dense_ps:1").host) == "dense_ps:1"
    assert str(Role.parse("group_ps:3:1").host) == str(Role.parse("trainer:3:0").host) == "group:3"
    assert str(Role.parse("group_ps:3:1").at(0)) == "group_ps:0:1"
    assert Role.parse("group_ps:3:1").place == (3, 1)


@pytest.mark.parametrize(
    ("host", "device"), [("dense_ps:1", "dense_ps:1"), ("group:0", "group_ps:2"), ("group:11", "group_ps:2")]
)
def test_a_group_is_played_by_the_device_that_holds_the_weights_there(host: str, device: str) -> None:
    assert device_at(host, "group_ps:2") == device


def test_a_whole_table_has_its_own_name_and_a_shard_its_number() -> None:
    assert (shard_name("t", 0, 1), shard_name("t", 1, 2)) == ("t", "t/1")
    assert net_name("sparse_ps:4") == "sparse_ps_4"
