"""A trainer's net on an accelerator: every op finds its tensors on one side, on fake CUDA tensors, which know where they are and nothing else."""

import pytest
import torch
from small_wide_deep import BATCH, model_of
from torch._subclasses.fake_tensor import FakeTensorMode

from htrain.compiler.pipeline import compile_net
from htrain.net.net import Net, Op
from htrain.ops import OPS
from htrain.ops.accelerated import use
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
    return accelerate(apart(compile_net(captured, cluster, options, name="m").net_of("trainer"))[0])


def empty(shape: tuple, dtype: str, device: torch.device | str) -> torch.Tensor:
    return torch.empty([d if isinstance(d, int) else d.at(BATCH) for d in shape], dtype=dtype_of(dtype), device=device)


def run(net: Net, op: Op, values: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What an op gives; one on the host that needs numbers gives whatever its blobs say."""
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
    made = OPS[op.type].kernel(*(values[name] for name in op.inputs), **op.attrs, **extra)
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


def check(net: Net) -> None:
    there = accelerated_parameters(net)
    use(CUDA)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            values = {b.name: empty(b.shape, b.dtype, "cpu") for b in (net.blobs[name] for name in net.inputs)}
            values |= {n: empty(p.shape, p.dtype, CUDA if n in there else "cpu") for n, p in net.parameters.items()}
            for op in net.ops:
                if OPS[op.type].on_host and op.type != "Send":
                    assert all(values[n].device.type == "cpu" for n in op.inputs if n not in net.parameters), op
                values.update(zip(op.outputs, run(net, op, values), strict=True))
                if (
                    not OPS[op.type].on_host
                    and op.type not in MOVES
                    and any(values[n].device == CUDA for n in op.inputs)
                ):
                    assert all(values[n].device == CUDA for n in op.outputs), op
    finally:
        use(torch.device("cpu"))
    assert values[net.outputs[0]].device == CUDA
    copied = [op.inputs[0] for op in net.ops if op.type in MOVES]
    assert len(copied) == len(set(copied))
