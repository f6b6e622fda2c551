"""The plan folder: round trips, plans that check themselves, and headers that nobody should trust."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_dlrm import small_dlrm, small_plan

from htrain.compiler.pipeline import compile_net
from htrain.errors import PlanError
from htrain.frontend.captured import Captured
from htrain.net.names import NetName, role_of
from htrain.net.net import Net, Op
from htrain.net.placement import Shard
from htrain.ops import OPS
from htrain.ops.base import RowChange
from htrain.plan.check import check_plan
from htrain.plan.folder import header_digest
from htrain.plan.plan import Plan, load_part, load_plan
from htrain.plan.text import net_text, plan_diff, plan_text
from htrain.spec.cluster import Cluster
from htrain.spec.migrations import NEWEST, OLDEST
from htrain.spec.tree import with_flags

SUPPORT = Path(__file__).parents[1] / "support"


# -- the folder ------------------------------------------------------------------------------------------------------


def test_a_plan_comes_back_as_it_was_saved(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan")
    loaded = load_plan(tmp_path / "plan")
    assert loaded == plan
    assert check_plan(loaded) is loaded


def test_a_plan_is_shown_in_a_line(plan: Plan) -> None:
    assert re.fullmatch(r"<Plan of \w+: \d+ nets, \d+ tables, \d+ roles, predicted [\d,]+ EPS>", repr(plan))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_another_process_makes_the_same_plan_byte_for_byte(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "here")
    script = "import sys; from pathlib import Path; from small_dlrm import small_dlrm, small_plan; small_plan().save(Path(sys.argv[1]))"
    settings = {**os.environ, "PYTHONPATH": str(SUPPORT), "PYTHONHASHSEED": "12345"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "there")], env=settings, check=True, timeout=60)
    assert files_of(tmp_path / "there") == files_of(tmp_path / "here")


def test_every_net_is_reached_by_its_device_and_what_it_is_for(plan: Plan) -> None:
    devices = [device for device in plan.cluster.devices if role_of(device) != "dense_ps"]
    holders = [device for device in devices if plan.sync_net(device)]
    assert holders == ["group_ps:0", "group_ps:1"]
    found = [plan.train, *map(plan.net_of, devices), *map(plan.init_net, devices), *map(plan.sync_net, holders)]
    found += [plan.centre_net("dense_ps:0", holder) for holder in holders]
    found += plan.init_nets("dense_ps:0").values()
    assert sorted(net.name for net in found if net) == sorted(net.name for net in plan.nets.values())
    assert len(found) == len(plan.nets)


def test_nets_of_rounds_are_those_of_holders_and_of_hosts(plan: Plan) -> None:
    wanted = {NetName.centre("dense_ps:0", holder) for holder in ("group_ps:0", "group_ps:1")}
    assert plan.centre_nets().keys() == wanted
    assert plan.nets_of_rounds().keys() == wanted | {NetName.sync("group_ps:0"), NetName.sync("group_ps:1")}
    assert all(plan.nets[str(name)] is net for name, net in plan.nets_of_rounds().items())


def test_a_net_that_is_not_there_is_none_or_told(plan: Plan) -> None:
    assert plan.step_net("all_reduce") is plan.sync_net("trainer") is plan.flush_net() is None
    assert plan.centre_net("group:0", "trainer") is None
    with pytest.raises(PlanError) as error:
        plan.net_of("group_ps:7")
    assert str(error.value) == "plan.yaml: the net 'group_ps_7' is missing"


def test_a_role_loads_its_own_nets_alone(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan")
    assert set(load_part(tmp_path / "plan", "group_ps:1").nets) == {"group_ps_1", "init_group_ps_1", "sync_group_ps_1"}
    assert set(load_part(tmp_path / "plan", "dense_ps:0").nets) == {
        f"{kind}center_dense_ps_0_group_ps_{k}" for kind in ("", "init_") for k in (0, 1)
    }


def test_a_role_refuses_another_plan_than_the_one_that_its_launcher_has_read(plan: Plan, tmp_path: Path) -> None:
    """One whose nets are the same, but not what steps them."""
    plan.save(tmp_path / "plan")
    header = header_digest(tmp_path / "plan")
    assert load_part(tmp_path / "plan", "group_ps:1", header) == load_part(tmp_path / "plan", "group_ps:1")
    replace(plan, notes=("another",)).save(tmp_path / "plan")
    with pytest.raises(PlanError, match="plan: is another plan than the one that the run began with"):
        load_part(tmp_path / "plan", "group_ps:1", header)


def test_saving_replaces_an_older_plan_whole(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan")
    small = small_plan(groups=1, group_ps=1)
    small.save(tmp_path / "plan")
    assert load_plan(tmp_path / "plan") == small
    assert not (tmp_path / "plan" / "nets" / "group_ps_1.onnx").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["plan"]


@pytest.mark.parametrize("spoil", ["a file", "a folder of something else"])
def test_saving_never_replaces_what_is_not_a_plan(spoil: str, plan: Plan, tmp_path: Path) -> None:
    target = tmp_path / "plan"
    if spoil == "a file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "thesis.tex").write_text("mine")
    before = target.read_text() if target.is_file() else files_of(target)
    with pytest.raises(PlanError, match=r"plan: exists and is not a plan folder: choose another --out, or remove it$"):
        plan.save(target)
    assert (target.read_text() if target.is_file() else files_of(target)) == before
    assert [p.name for p in tmp_path.iterdir()] == ["plan"]


# -- a plan checks itself --------------------------------------------------------------------------------------------


def with_net(plan: Plan, name: str, edit: Callable[[Net], Net]) -> Plan:
    return replace(plan, nets={**plan.nets, name: edit(plan.nets[name])})


def without(*outputs_or_inputs: str, type: str = "") -> Callable[[Net], Net]:
    """The net less the ops that write, or (effects) first read, one of the names."""

    def edit(net: Net) -> Net:
        return replace(net, ops=tuple(op for op in net.ops if not named(op)))

    def named(op: Op) -> bool:
        return (op.outputs or op.inputs)[0] in outputs_or_inputs and type in ("", op.type)

    return edit


def changed(output: str, **changes: Any) -> Callable[[Net], Net]:
    """The net with the op that writes `output` changed."""
    return lambda net: replace(net, ops=tuple(replace(op, **changes) if output in op.outputs else op for op in net.ops))


def twice(output: str) -> Callable[[Net], Net]:
    return lambda net: replace(net, ops=(*net.ops, *(op for op in net.ops if output in op.outputs)))


def drop_op(plan: Plan) -> Plan:
    return with_net(plan, "group_ps_1", without("x"))


def place_twice(plan: Plan) -> Plan:
    return with_net(plan, "trainer", twice("joined"))


def place_elsewhere(plan: Plan) -> Plan:
    return with_net(plan, "trainer", changed("joined", node_name="group_ps:0"))


def add_op(plan: Plan) -> Plan:
    return with_net(
        plan, "trainer", lambda net: replace(net, ops=(*net.ops, Op("Relu", ("x",), ("new",), {}, "trainer", "m")))
    )


def drop_net(plan: Plan) -> Plan:
    return replace(plan, nets={name: net for name, net in plan.nets.items() if name != "group_ps_0"})


def drop_train(plan: Plan) -> Plan:
    return replace(plan, nets={name: net for name, net in plan.nets.items() if name != "train"})


def drop_recv(plan: Plan) -> Plan:
    return with_net(plan, "trainer", without("x", type="Recv"))


def drop_send(plan: Plan) -> Plan:
    return with_net(plan, "trainer", without("joined", type="Send"))


def other_message(plan: Plan) -> Plan:
    return with_net(plan, "trainer", changed("joined_grad", attrs={"peer": "group_ps:0", "message": 999}))


def two_owners(plan: Plan) -> Plan:
    weight = plan.nets["group_ps_0"].parameters["hidden.bias"]
    return with_net(plan, "group_ps_1", lambda net: replace(net, parameters={**net.parameters, "hidden.bias": weight}))


def drop_step(plan: Plan) -> Plan:
    for name in ("train", "group_ps_1"):
        plan = with_net(plan, name, without("top.weight", type="Adagrad"))
    return plan


def freeze_with_step(plan: Plan) -> Plan:
    def frozen(net: Net) -> Net:
        weight = replace(net.parameters["top.bias"], trained=False)
        return replace(net, parameters={**net.parameters, "top.bias": weight})

    return with_net(plan, "train", frozen)


def step_twice(plan: Plan) -> Plan:
    def again(net: Net) -> Net:
        return replace(
            net, ops=(*net.ops, *(op for op in net.ops if op.inputs[:1] == ("user.weight",) and not op.outputs))
        )

    return with_net(with_net(plan, "train", again), "sparse_ps_0", again)


def drop_first_value(plan: Plan) -> Plan:
    return with_net(plan, "init_sparse_ps_1", without("item.weight/1"))


def drop_init_net(plan: Plan) -> Plan:
    return replace(plan, nets={name: net for name, net in plan.nets.items() if name != "init_group_ps_0"})


def leave_gap(plan: Plan) -> Plan:
    first, second = plan.tables["item.weight"]
    return replace(plan, tables={**plan.tables, "item.weight": (first, replace(second, first_row=26, num_rows=24))})


def lose_shard(plan: Plan) -> Plan:
    return replace(plan, tables={**plan.tables, "item.weight": plan.tables["item.weight"][:1]})


def other_rows(plan: Plan) -> Plan:
    return replace(plan, tables={**plan.tables, "user.weight": (Shard("user.weight", 0, 41, "sparse_ps:0"),)})


def too_little_memory(plan: Plan) -> Plan:
    return replace(plan, cluster=replace(plan.cluster, sparse_ps_memory=1000))


def wait_for_itself(plan: Plan) -> Plan:
    """x comes from the logit, which comes from x by way of both other devices."""
    for name in ("train", "group_ps_1"):
        plan = with_net(plan, name, changed("x", inputs=("logit",)))
    return plan


def forget_centre(plan: Plan) -> Plan:
    return replace(plan, centers={name: d for name, d in plan.centers.items() if name != "top.bias"})


def no_relax(plan: Plan) -> Plan:
    return with_net(plan, "sync_group_ps_1", without("top.bias", type="Relax"))


def change_rate(plan: Plan) -> Plan:
    def faster(net: Net) -> Net:
        return replace(
            net, ops=tuple(replace(op, attrs={**op.attrs, "lr": 9.0}) if "lr" in op.attrs else op for op in net.ops)
        )

    for name in ("train", "group_ps_0", "group_ps_1", "sparse_ps_0", "sparse_ps_1"):
        plan = with_net(plan, name, faster)
    return plan


BROKEN: Mapping[Callable[[Plan], Plan], str] = {
    drop_op: "FCRelu 'x' of module 'bottom' is placed 0 times, want 1 (on 'group_ps:1')",
    place_twice: "Concat 'joined' of module 'joined' is placed 2 times, want 1 (on 'trainer')",
    place_elsewhere: "nets/trainer.onnx: Concat 'joined' of module 'joined' is tagged 'group_ps:0', this is the net of 'trainer'",
    add_op: "a device runs an op that the train net does not have: trainer | m | new = Relu(x)",
    drop_net: "FastFC 'hidden_fc' of module 'hidden' is placed 0 times, want 1 (on 'group_ps:0')",
    drop_train: "plan.yaml: the net 'train' is missing",
    drop_recv: "blob 'x' from 'group_ps:1' to 'trainer' has 1 Send and 0 Recv, want one of each",
    drop_send: "blob 'joined' from 'trainer' to 'group_ps:0' has 0 Send and 1 Recv, want one of each",
    two_owners: "weight 'hidden.bias' is on 'group_ps:0' and on 'group_ps:1': it must have one owner",
    drop_step: "weight 'top.weight' has 0 optimizer steps, want 1: it would silently never train",
    freeze_with_step: "weight 'top.bias' has 1 optimizer steps, want 0: it would change",
    drop_first_value: "parameter 'item.weight/1' of 'sparse_ps:1' has no op in its init net",
    drop_init_net: "plan.yaml: the net 'init_group_ps_0' is missing",
    leave_gap: "plan.yaml: shard 1 of table 'item.weight' does not continue at row 25, or the nets hold another one",
    lose_shard: "plan.yaml: shard 0 of table 'item.weight' does not continue at row 0, or the nets hold another one",
    other_rows: "plan.yaml: shard 0 of table 'user.weight' does not continue at row 0, or the nets hold another one",
    too_little_memory: "'sparse_ps:0' needs 320.0 MiB of memory (320.0 MiB the process itself, 1.8 KiB messages, 1.2 KiB values of the steps under way, "
    "1.0 KiB weights and rows, 1.0 KiB optimizer state), sparse_ps_memory is 1,000 B: raise sparse_ps_memory",
    wait_for_itself: "'trainer' would wait for ever: Recv 'x' of module 'recv' never gets 'x'",
    forget_centre: "weight 'top.bias' is not synchronised with one centre on a dense PS",
    no_relax: "weight 'top.bias' is not synchronised with one centre on a dense PS",
    change_rate: "plan.yaml: the digest is not that of the nets: a net was changed after the plan was made; compile again",
}


@pytest.mark.parametrize("spoil", BROKEN, ids=lambda spoil: spoil.__name__)
def test_a_plan_that_does_not_hold_together_is_refused(spoil: Callable[[Plan], Plan], plan: Plan) -> None:
    with pytest.raises(PlanError, match=f"^{re.escape(BROKEN[spoil])}$"):
        check_plan(spoil(plan))


@pytest.mark.parametrize("told", [RowChange(("user.weight",), "nothing"), RowChange(("top.bias",), "ids")])
def test_an_op_that_tells_of_changes_which_are_not_its_own_is_refused(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, told: RowChange
) -> None:
    (type,) = {op.type for op in plan.train.ops if OPS[op.type].steps_rows}
    monkeypatch.setitem(
        OPS, type, replace(OPS[type], changes=lambda op: (replace(told, ids=told.ids.replace("ids", op.inputs[-2])),))
    )
    with pytest.raises(
        PlanError, match=f"tells of changes of {told.tensors[0]} by '.*', which are not what it writes to and takes"
    ):
        check_plan(plan)


@pytest.mark.parametrize("spoil", [other_message, step_twice])
def test_these_are_refused_too(spoil: Callable[[Plan], Plan], plan: Plan) -> None:
    wanted = {
        other_message: r"^blob 'joined_grad' from 'group_ps:0' to 'trainer' has (1 Send and 0 Recv|0 Send and 1 Recv), want one of each$",
        step_twice: r"^table 'user.weight' has 2 optimizer steps, want 1: it would silently never train$",
    }
    with pytest.raises(PlanError, match=wanted[spoil]):
        check_plan(spoil(plan))


def test_a_plan_whose_weights_would_be_read_before_a_step_has_begun_is_refused() -> None:
    plan = compile_net(
        Captured(small_dlrm(), {}), Cluster(), with_flags(batch_size=8, dense_sync="ps"), name="small_dlrm"
    )

    def unsaid(net: Net) -> Net:
        return replace(net, ops=tuple(op for op in net.ops if "begin_group_ps_0" not in (*op.inputs, *op.outputs)))

    broken = with_net(with_net(plan, "trainer", unsaid), "group_ps_0", unsaid)
    said = r"^'group_ps:0' would not wait for the beginning of a step: Snapshot '.*' of module '.*' reads '.*' for the next one, too: compile again$"
    with pytest.raises(PlanError, match=said):
        check_plan(broken)


def test_a_plan_without_group_ps_or_with_one_group_holds_together() -> None:
    for changes in ({"groups": 1}, {"group_ps": 0}, {"groups": 1, "group_ps": 0, "sparse_ps": 0}):
        plan = small_plan(**changes)
        assert check_plan(plan) is plan


# -- a header that nobody should trust -------------------------------------------------------------------------------


def entry(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda header: header.update({name: value})


def inside(section: str, **values: object) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[section].update(values)


HEADERS: Mapping[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another version": (
        entry("version", NEWEST + 1),
        rf"version {NEWEST + 1}, this htrain reads the versions {OLDEST} to {NEWEST}: compile the model again$",
    ),
    "a version that is no number": (
        entry("version", "one"),
        r"Expected `int`, got `str` - at `\$.version`; compile the model again$",
    ),
    "an entry that is missing": (lambda h: h.pop("tables"), r"missing required field `tables`; compile"),
    "an entry that is unknown": (entry("colour", "red"), r"unknown field `colour`; compile"),
    "an entry that is unknown, further in": (
        inside("search", colour="red"),
        r"'search\.colour' is no entry that this htrain knows: compile",
    ),
    "an entry that is unknown, among many": (
        lambda h: h["loads"]["trainer"]["holds"].update(red=1),
        r"'loads\.trainer\.holds\.red' is no entry",
    ),
    "a file that is a path": (
        inside("files", **{"../../etc/passwd": "0"}),
        r"'\.\./\.\./etc/passwd' is not a file of a plan$",
    ),
    "a file that climbs": (inside("files", **{"nets/../x.onnx": "0"}), r"'nets/\.\./x\.onnx' is not a file of a plan$"),
    "a file without a name": (inside("files", **{"nets/.onnx": "0"}), r"'nets/\.onnx' is not a file of a plan$"),
    "a file that is not there": (inside("files", **{"nets/group_ps_9.onnx": "0"}), r"group_ps_9.onnx: is missing: "),
    "a file of another plan": (
        inside("files", **{"nets/trainer.onnx": "0"}),
        r"trainer.onnx: is not the file that plan.yaml names: ",
    ),
    "an unknown cluster field": (
        inside("cluster", racks=3),
        r"cluster: unknown field 'racks'; the fields are groups, trainers",
    ),
    "a cluster field that is missing": (lambda h: h["cluster"].pop("groups"), r"cluster: 'groups' is missing$"),
    "a cluster that contradicts itself": (
        inside("cluster", dense_ps=0),
        r"2 groups are synchronised through dense PSs: dense_ps must be at least 1$",
    ),
    "an unknown option": (inside("options", momentum=0.9), r"options\.momentum: unknown entry; options are batch_size"),
    "an option that is missing": (lambda h: h["options"].pop("seed"), r"options: 'seed' is missing$"),
    "an option that is missing, further in": (
        lambda h: h["options"]["dense_optimizer"].pop("lr"),
        r"options\.dense_optimizer: 'lr' is missing$",
    ),
    "a section without its kind": (lambda h: h["options"]["cache"].pop("kind"), r"options\.cache: 'kind' is missing$"),
    "a section that is a text": (
        inside("options", cache="none"),
        r"options\.cache: want entries such as {kind: none}$",
    ),
    "an option of another strategy": (
        lambda h: h["options"]["dense_sync"].update(bucket_bytes=3),
        r"options\.dense_sync\.bucket_bytes: belongs to kind allreduce",
    ),
    "an option of another type": (
        inside("options", batch_size="many"),
        r"options\.batch_size: 'many' is not a whole number of 1 to 16,777,216$",
    ),
    "an option that is out of range": (
        inside("options", batch_size=0),
        r"options\.batch_size: 0 is not a whole number of 1 to 16,777,216$",
    ),
    "an option that is no choice": (
        inside("options", loss="hinge"),
        r"options\.loss: 'hinge' is not bce, bce_probability, mse or own$",
    ),
    "a rate that is no number": (
        lambda h: h["options"]["dense_optimizer"].update(lr=float("nan")),
        r"dense_optimizer\.lr: nan is not a finite number above 0$",
    ),
    "a shard that is no triple": (inside("tables", t=[[0, 5]]), r"Expected `array` of length 3"),
    "a decision in other words": (
        inside("decisions", x="because"),
        r"decision of 'x' is not 'DEVICE by rule 'NAME': REASON'$",
    ),
}


@pytest.mark.parametrize("spoil", HEADERS)
def test_a_header_that_is_not_as_htrain_writes_it_is_refused_by_name(spoil: str, plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan")
    path = tmp_path / "plan" / "plan.yaml"
    header = yaml.safe_load(path.read_text())
    change, match = HEADERS[spoil]
    change(header)
    path.write_text(yaml.safe_dump(header))
    with pytest.raises(PlanError, match=match) as refusal:
        load_plan(tmp_path / "plan")
    assert str(tmp_path / "plan") in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"", r"plan.yaml: is not as htrain wrote it: Expected `object`, got `null`; compile the model again$"),
        (b"[1, 2]", r"plan.yaml: is not as htrain wrote it: Expected `object`, got `array`; compile the model again$"),
        (f"version: {NEWEST + 1}\nother: 1".encode(), rf"version {NEWEST + 1}, this htrain reads the versions {OLDEST} to"),
        (b"a: [1", r"plan.yaml: not YAML: .*line 1"),
        (b"\xff\xfe\x00", r"plan.yaml: not YAML: byte 0 is not UTF-8 text"),
        (b"a: !!python/object:os.system {}", r"plan.yaml:1: the tag tag:yaml.org,2002:python/object:os.system is not read"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_header_is_refused(text: bytes, match: str, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_bytes(text)
    with pytest.raises(PlanError, match=match):
        load_plan(tmp_path)


def test_a_folder_that_is_not_there_is_named_with_what_makes_one(tmp_path: Path) -> None:
    want = r"nowhere: not a plan folder \(plan.yaml: No such file or directory\); make one with 'htrain compile \.\.\. --out .*nowhere'$"
    with pytest.raises(PlanError, match=want):
        load_plan(tmp_path / "nowhere")


# -- a plan in words -------------------------------------------------------------------------------------------------


def test_the_whole_plan_as_text(plan: Plan, golden) -> None:
    golden("plan_text", plan_text(plan))


def test_a_net_as_text_or_the_names_of_all(plan: Plan) -> None:
    assert net_text(plan, "sparse_ps_0") == plan.nets["sparse_ps_0"].text()
    with pytest.raises(PlanError, match=r"^the plan has no net 'gpu'; it has train, trainer, group_ps_0, "):
        net_text(plan, "gpu")


def test_the_difference_of_two_plans_says_what_moved(plan: Plan) -> None:
    assert plan_diff(plan, plan) == []
    lines = plan_diff(plan, small_plan(group_ps=1))
    assert "cluster group_ps: 2 -> 1" in lines
    assert "bottom: group_ps:1 -> group_ps:0" in lines
    assert "net group_ps_1: gone" in lines
    assert not any(line.startswith("hidden:") for line in lines)


def test_the_plan_knows_its_devices(plan: Plan) -> None:
    assert plan.net_of("group_ps:1") is plan.nets["group_ps_1"]
    assert isinstance(plan.cluster, Cluster)
