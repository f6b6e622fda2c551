"""The small passes: loss, modules, optimizer steps, first values."""

from pathlib import Path

import pytest
import torch
from small_dlrm import small_dlrm

from htrain.errors import ModelError
from htrain.executor.engine.store import allocate, fill
from htrain.net.net import B, Blob, Init, Net, Parameter
from htrain.ops.builder import NetBuilder
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.transform.gradient import add_gradients
from htrain.transform.init_nets import init_net
from htrain.transform.lookups import lower_lookups
from htrain.transform.loss import add_loss
from htrain.transform.modules import name_modules
from htrain.transform.optimizer import add_optimizers

NORMAL = Init("normal", (0.0, 0.3), zero_rows=(0, 7))


def weight(name: str, *shape: int, trained: bool = True) -> Parameter:
    return Parameter(name, shape, "float32", "weight", Init("uniform", (-1.0, 1.0)), trained=trained)


def net_of(*parameters: Parameter) -> Net:
    return Net("net", (), (), (), {}, {p.name: p for p in parameters})


def one_output(blob: Blob) -> Net:
    builder = NetBuilder("net")
    builder.input(blob)
    return builder.build((blob.name,))


@pytest.mark.parametrize("shape", [(B, 2), (), (3,)])
def test_a_logit_of_another_shape_is_refused(shape: tuple) -> None:
    cure = "name another output" if shape else "is it the loss?"
    with pytest.raises(ModelError, match=rf"^the logit y: .* must be float32\[B\] or float32\[B,1\]: {cure}"):
        add_loss(one_output(Blob("y", shape, "float32")), "bce")


def test_an_input_called_label_is_refused() -> None:
    with pytest.raises(
        ModelError,
        match=r"^the model has an input called 'label'; htrain gives that name .*: rename it, or return the loss and train with --loss own$",
    ):
        add_loss(one_output(Blob("label", (B,), "float32")), "mse")


def test_ops_with_parameters_keep_the_users_module_and_others_get_their_own() -> None:
    modules = {op.outputs[0]: op.module for op in name_modules(small_dlrm()).ops}
    assert modules["bottom_fc"] == "bottom"
    assert modules["x"] == "x"
    assert modules["features"] == "dots/features"
    assert len({modules[name] for name in ("features", "across", "products", "dots")}) == 4


@pytest.mark.parametrize(
    ("dense", "sparse", "state"),
    [
        ("sgd", "sgd", {}),
        ("adagrad", "adagrad", {"top.bias:accumulator": (1,), "item.weight:accumulator": (50, 4)}),
        (
            "adam",
            "rowwise_adagrad",
            {"top.bias:mean": (1,), "top.bias:square": (1,), "top.bias:step": (1,), "item.weight:accumulator": (50,)},
        ),
    ],
)  # fmt: skip
def test_every_trained_parameter_has_one_step_and_its_state(dense, sparse, state) -> None:
    net, gradients = add_gradients(add_loss(lower_lookups(small_dlrm()), "bce"))
    trained = add_optimizers(net, gradients, with_flags(dense_optimizer=dense, sparse_optimizer=sparse))
    assert [op.inputs[0] for op in trained.ops[len(net.ops) :]] == list(net.parameters)
    added = {n: p.shape for n, p in trained.parameters.items() if p.of in ("top.bias", "item.weight")}
    assert added == state


def test_a_frozen_weight_has_no_step() -> None:
    builder = NetBuilder("net")
    builder.input(Blob("x", (B, 2), "float32"))
    for parameter in (weight("w", 2, 2, trained=False), weight("v", 1, 2)):
        builder.parameter(parameter)
    (h,) = builder.add("FC", ("x", "w"), module="frozen")
    builder.add("FC", (h, "v"), module="top", outputs=("logit",))
    net, gradients = add_gradients(add_loss(builder.build(("logit",)), "bce"))
    assert [op.inputs[0] for op in add_optimizers(net, gradients, Options()).ops if op.type == "Adagrad"] == ["v"]


@pytest.mark.parametrize(
    ("dropped", "message"),
    [
        ("top.bias", r"^weight 'top.bias' would never train: the loss does not depend on it; freeze it \(requires_grad=False\) or drop it$"),
        ("item.weight_rows", "^table 'item.weight' would never train: the loss does not depend on its rows; freeze it or drop it$"),
    ],
)  # fmt: skip
def test_a_parameter_that_would_silently_never_train_is_refused(dropped: str, message: str) -> None:
    net, gradients = add_gradients(add_loss(lower_lookups(small_dlrm()), "bce"))
    with pytest.raises(ModelError, match=message):
        add_optimizers(net, {name: g for name, g in gradients.items() if name != dropped}, Options())


def filled(parameter: Parameter, *, seed: int = 3, device: str = "sparse_ps:0") -> torch.Tensor:
    net = net_of(parameter)
    store = allocate(net)
    fill(store, init_net(device, net, seed), Path())
    return store[parameter.name]


@pytest.mark.parametrize("init", [NORMAL, Init("uniform", (-0.2, 0.1), zero_rows=(7,)), Init("constant", (0.5,))])
def test_a_shard_starts_with_the_rows_of_the_whole_table(init: Init) -> None:
    whole = filled(Parameter("t", (20, 3), "float32", "table", init))
    shard = filled(Parameter("t/1", (8, 3), "float32", "table", init, of="t", first_row=6), device="sparse_ps:5")
    assert torch.equal(shard, whole[6:14])
    assert not shard[1].any() or not init.zero_rows


def test_first_values_depend_on_the_seed_and_the_name() -> None:
    w = weight("w", 30, 30)
    assert torch.equal(filled(w), filled(w, device="group_ps:1"))
    assert not torch.equal(filled(w), filled(w, seed=4))
    assert not torch.equal(filled(w), filled(weight("v", 30, 30)))


def test_first_values_have_the_distribution_that_was_asked_for() -> None:
    uniform = filled(Parameter("u", (500, 40), "float32", "table", Init("uniform", (-0.2, 0.6))))
    assert -0.2 <= uniform.min() < -0.19
    assert 0.59 < uniform.max() <= 0.6
    assert abs(uniform.mean() - 0.2) < 0.01
    normal = filled(Parameter("n", (500, 40), "float32", "table", Init("normal", (1.0, 0.5))))
    assert abs(normal.mean() - 1) < 0.02
    assert abs(normal.std() - 0.5) < 0.02
    columns = torch.corrcoef(normal.T) - torch.eye(40)
    assert columns.abs().max() < 0.25
