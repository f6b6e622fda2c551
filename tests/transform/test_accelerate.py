"""A trainer's net on an accelerator: every op finds its tensors on one side, on fake CUDA tensors, which know where they are and nothing else."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from small_wide_deep import BATCH, model_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from htrain.compiler.pipeline import compile_net
from htrain.executor.strategies.lookahead.joint_tables import join_tables
from htrain.net.net import Net, Op
from htrain.ops import OPS
from htrain.ops.base import dtype_of, tensor_of
from htrain.ops.lookahead import apart
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.transform.accelerate import accelerate, accelerated_parameters

CUDA = torch.device("cuda", 0)
MOVES = ("ToAccelerator", "ToHost")


def accelerated(name: str, options: Options, **counts: int) -> Net:
    """The step of a model's trainer, as it runs on an accelerator."""
    _, captured = model_of(name)
    cluster = this_machine(**{"trainers": 1, "group_ps": 0, "sparse_ps": 1, **counts})
    return accelerate(
        join_tables(apart(compile_net(captured, cluster, options, name="m").net_of("trainer"))[0]), str(CUDA)
    )


def empty(shape: tuple, dtype: str, device: torch.device | str) -> torch.Tensor:
    return torch.empty([d if isinstance(d, int) else d.at(BATCH) for d in shape], dtype=dtype_of(dtype), device=device)


def kernel_of(net: Net, op: Op, values: dict[str, torch.Tensor]) -> Callable[..., Any]:
    """The kernel of an op, and what it is given beside its attributes: with its parameters and constants where it is bound to them."""
    definition = OPS[op.type]
    if not definition.bind:
        return partial(definition.kernel, *(values[name] for name in op.inputs), **op.attrs)
    constants = {o.outputs[0] for o in net.ops if o.type == "Constant"}
    known = [values[name] if name in net.parameters or name in constants else None for name in op.inputs]
    bound = definition.bind(*known, **op.attrs)
    return lambda: bound(*(values[name] for name, value in zip(op.inputs, known, strict=True) if value is None))


def run(net: Net, op: Op, values: dict[str, torch.Tensor], kernels: dict[int, Callable[..., Any]]) -> tuple[Any, ...]:
    """What an op gives; one on the host that needs numbers gives whatever its blobs say."""
    if op.type == "UnpackBatch":
        (packed,) = (o.inputs for o in net.ops if o.outputs == op.inputs)
        return tuple(values[name].to(CUDA) for name in packed)
    if op.type == "JointSlots":  # of every row, and of the row of padding
        return (torch.empty(sum(values[n].numel() for n in op.inputs[-int(str(op.attrs["tables"])) :]) + 1, dtype=torch.int32),)  # fmt: skip
    if OPS[op.type].on_host:
        return tuple(empty(net.blobs[name].shape, net.blobs[name].dtype, "cpu") for name in op.outputs)
    if op.type == "Constant":
        return (tensor_of(op.attrs["value"]),)  # type: ignore[arg-type]
    if "num_inputs" in op.attrs:  # by autograd, which wants a real device: its forward op
        forward = [values[name] for name in op.inputs[: int(op.attrs["num_inputs"])]]  # type: ignore[call-overload]
        attrs = {key: value for key, value in op.attrs.items() if key not in ("num_inputs", "wrt", "given")}
        OPS[op.type.removesuffix("Gradient")].kernel(*forward, **attrs)
        return tuple(
            empty(net.blobs[name].shape, net.blobs[name].dtype, values[op.inputs[-1]].device) for name in op.outputs
        )
    extra = {"batch": BATCH} if OPS[op.type].needs_batch else {}
    if id(op) not in kernels or not OPS[op.type].bind:
        kernels[id(op)] = kernel_of(net, op, values)
    made = kernels[id(op)](**extra)
    return made if isinstance(made, tuple) else () if made is None else (made,)


CASES = {
    "sgd": with_flags(sparse_optimizer="sgd", dense_optimizer="sgd"),
    "adagrad": Options(),
    "row-wise adagrad and allreduce": with_flags(sparse_optimizer="rowwise_adagrad", dense_sync="allreduce"),
    "some tables without a cache": with_flags(cache="lookahead", cache_table=(("*C1*", "none"),)),
    "bfloat16": with_flags(fc_dtype="bfloat16"),
}


@pytest.mark.parametrize("model", ["wide_deep.py", "dlrm.py", "deepfm.py", "dcn.py"])
@pytest.mark.parametrize("case", CASES)
def test_ops_find_their_tensors_on_the_accelerator_or_on_the_host(case: str, model: str) -> None:
    net = accelerated(model, with_flags(CASES[case], batch_size=BATCH, cache="lookahead"))
    check(net)
    there = accelerated_parameters(net)
    assert {p.kind for n, p in net.parameters.items() if n not in there and p.dtype == "float32"} <= {"table"}


def test_layers_on_group_pss_are_sent_from_the_accelerator() -> None:
    net = accelerated("dlrm.py", with_flags(batch_size=BATCH, cache="lookahead"), group_ps=2)
    check(net)
    assert any(op.type == "Recv" for op in net.ops)


@pytest.mark.parametrize(("optimizer", "most"), [("sgd", 60), ("rowwise_adagrad", 80), ("adagrad", 80)])
def test_a_step_asks_the_device_for_little(optimizer: str, most: int) -> None:
    """A DLRM of 26 tables: kernels, one copy to the device, none back."""
    net = accelerated("dlrm.py", with_flags(batch_size=BATCH, cache="lookahead", sparse_optimizer=optimizer, dense_optimizer="sgd"))  # fmt: skip
    assert len([op for op in net.ops if op.type == "JointSlots"]) == 1
    counted = check(net)
    assert [op.type for op in net.ops if op.type in (*MOVES, "PackBatch")].count("PackBatch") == 1
    moved = [op.inputs[0] for op in net.ops if op.type in MOVES]
    assert moved == [op.outputs[0] for op in net.ops if op.type == "Constant"]  # which are there from the start
    assert sum(counted.values()) <= most, counted


class Calls(TorchDispatchMode):
    """Counts what a device is asked for: no views of what is there, no memory."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        tensors = [x for x in (*args, made) if isinstance(x, torch.Tensor)]
        is_asked = any(x.device == CUDA for x in tensors) and not func.is_view
        if is_asked and func.overloadpacket.__name__ not in ("empty", "new_empty", "empty_like", "device"):
            self.calls[func.overloadpacket.__name__] += 1
        return made


def check(net: Net) -> Counter[str]:
    """Every op finds its tensors on one side; what a second step asks the device for."""
    there = accelerated_parameters(net)
    kernels: dict[int, Callable[..., Any]] = {}
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        values = {b.name: empty(b.shape, b.dtype, "cpu") for b in (net.blobs[name] for name in net.inputs)}
        values |= {n: empty(p.shape, p.dtype, CUDA if n in there else "cpu") for n, p in net.parameters.items()}
        for _ in range(2):
            calls = Calls()
            for op in net.ops:
                if OPS[op.type].on_host and op.type != "Send":
                    assert all(values[n].device.type == "cpu" for n in op.inputs if n not in net.parameters), op
                with calls if not OPS[op.type].on_host and op.type != "UnpackBatch" else nullcontext():
                    made = run(net, op, values, kernels)
                values.update(zip(op.outputs, made, strict=True))
                if not OPS[op.type].on_host and op.type not in MOVES and any(on_device(values[n]) for n in op.inputs):
                    assert all(on_device(values[n]) for n in op.outputs), op
    assert on_device(values[net.outputs[0]])
    copied = [op.inputs[0] for op in net.ops if op.type in MOVES]
    assert len(copied) == len(set(copied))
    return calls.calls


def on_device(tensor: torch.Tensor) -> bool:
    return tensor.device == CUDA
