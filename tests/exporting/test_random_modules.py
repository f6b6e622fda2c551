"""Random modules, compiled one way or another, give in ONNX Runtime what they give in PyTorch: their forward nets, with the modules' own values."""

import random
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch
from random_modules import STEPS, Tensors, drawn_module, example

from htrain.compiler.pipeline import compile_net
from htrain.executor.launch.forward import forward_net
from htrain.exporting.lowering import lower
from htrain.exporting.onnx_file import model_of
from htrain.frontend.torch_model import capture
from htrain.net.net import B, Blob
from htrain.net.rewriting import only_needed
from htrain.onnx_format.values import write_tensor
from htrain.ops.base import constant_of
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags


def drawn_batch(draw: random.Random, count: int) -> Tensors:
    """Sequences of any length, and bags of any size, empty ones too."""
    sizes = [draw.randrange(4) for _ in range(count)]
    starts = [sum(sizes[:k]) for k in range(count)]
    return {
        "numbers": torch.randn(count, 3),
        "ids": torch.randint(7, (count, 3)),
        "history": torch.randint(7, (count, STEPS)),
        "history_length": torch.randint(1, STEPS + 1, (count,)),
        "tags": torch.randint(30, (sum(sizes),)),
        "tags_offsets": torch.tensor(starts),
    }


@pytest.mark.parametrize("seed", range(5))
def test_a_random_module_gives_what_it_gives_in_pytorch(seed: int) -> None:
    draw = random.Random(seed)
    module = drawn_module(seed)
    captured = capture(module, example())
    plan = compile_net(
        captured,
        this_machine(group_ps=draw.randrange(3), sparse_ps=draw.randrange(3)),
        with_flags(batch_size=8, loss="mse", fuse_relu=draw.random() < 0.5, fuse_fields=draw.random() < 0.5),
        name="drawn",
        solver="rules",
    )
    forward = forward_net(plan.train)
    net = only_needed(replace(forward, outputs=forward.outputs[-1:]))
    graph = lower(net, lambda table, row: row)
    output = graph.add("Reshape", graph.value(net.outputs[0], net.ops[-1]), graph.ints(-1), output=graph.fresh("score"))
    model = model_of(graph, [Blob(output, (B,), "float32")], "drawn")
    state = {name: value.detach() for name, value in module.state_dict().items()}
    for name in sorted(graph.read.difference(net.inputs)):
        model.graph.initializer.append(write_tensor(constant_of(state[name]), name))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    for count in (1, 5):
        batch = drawn_batch(draw, count)
        (seen,) = session.run(None, {each.name: batch[each.name].numpy() for each in session.get_inputs()})
        with torch.no_grad():
            wanted = module(**batch).reshape(-1).numpy()
        np.testing.assert_allclose(seen, wanted, rtol=1e-4, atol=1e-5)
