"""The batch dimension of an ONNX file: symbolic, or a number that every input agrees on and that is made symbolic here."""

from collections.abc import Collection, Mapping

import onnx_ir as ir
import torch

from htrain.errors import ModelError
from htrain.frontend.onnx_graph import concrete
from htrain.net.net import Net, Shape
from htrain.ops import OPS
from htrain.ops.base import dtype_of

_EXAMPLES = 3  # of a batch, that are run by themselves too
_CHECKED_BYTES = 1 << 32  # a net that takes more for a batch is not run here
_TABLE_ROWS = 1000  # as many of a table's rows stand for all of them in a check


def open_batch(inputs: Collection[ir.Value]) -> int:
    """Make the first dimension of every input symbolic; the size that the file fixed there, or 0.

    Raises ModelError when the inputs disagree, or another dimension is not fixed.
    """
    sizes: dict[str, int] = {}
    for value in inputs:
        if value.shape is None or not len(value.shape):
            raise ModelError(f"input '{value.name}' has no batch dimension")
        for axis, dim in enumerate(value.shape):
            if axis and not isinstance(dim, int):
                raise ModelError(
                    f"input '{value.name}' has the size '{dim}' in dimension {axis}: export it with a fixed size; only the first may vary"
                )
        sizes[str(value.name)] = value.shape[0] if isinstance(value.shape[0], int) else 0
    if len(set(sizes.values())) > 1:
        seen = ", ".join(f"{name}: {size or 'symbolic'}" for name, size in sizes.items())
        raise ModelError(f"the inputs disagree on the batch size, their first dimension ({seen})")
    for value in inputs:
        assert value.shape is not None
        value.shape = ir.Shape(["B", *value.shape[1:]])
    return next(iter(sizes.values()))


def check_examples_apart(net: Net, fixed_batch: int) -> None:
    """Raises ModelError when an example's logit depends on its neighbours.

    A file with a fixed batch size leaves open which numbers in it stand for the batch. A wrong guess computes what the file
    does for a batch of that size, but mixes examples: so a random batch, with random weights, is compared with its examples
    one by one.
    """
    if sum(blob.num_bytes(max(fixed_batch, 2)) for blob in net.blobs.values()) > _CHECKED_BYTES:
        raise ModelError("is too large to find out which of its numbers stand for the batch")
    num_ids = min((p.shape[0] for p in net.parameters.values() if p.kind == "table"), default=2)
    try:
        try:
            _compare(net, fixed_batch, num_ids=min(num_ids, _TABLE_ROWS))
        except (IndexError, RuntimeError):  # ids that the model computes from others may leave their table
            _compare(net, fixed_batch, num_ids=2)
    except (AssertionError, RuntimeError, IndexError, ValueError) as error:
        raise ModelError("cannot tell which of its numbers stand for the batch") from error


def _compare(net: Net, fixed_batch: int, *, num_ids: int) -> None:
    """Run a random batch, and its examples one by one. Raises AssertionError where they disagree, and what a kernel
    raises when it refuses them.
    """
    batch_size = max(fixed_batch, 2)
    generator = torch.Generator().manual_seed(0)

    def draw(shape: Shape, dtype: str) -> torch.Tensor:
        sizes = concrete(shape, batch_size)
        if "float" in dtype:
            return torch.randn(sizes, generator=generator).to(dtype_of(dtype))
        return torch.randint(0, 2 if dtype == "bool" else num_ids, sizes, generator=generator).to(dtype_of(dtype))

    parameters = {}
    for name, p in net.parameters.items():
        rows = (min(p.shape[0], _TABLE_ROWS),) if p.kind == "table" else p.shape[:1]
        parameters[name] = draw((*rows, *p.shape[1:]), p.dtype)
    inputs = {name: draw(net.blobs[name].shape, net.blobs[name].dtype) for name in net.inputs}
    together = _run(net, {**parameters, **inputs}, batch_size)
    for i in range(min(batch_size, _EXAMPLES)):
        alone = _run(net, {**parameters, **{name: x[i : i + 1] for name, x in inputs.items()}}, 1)
        torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-4, atol=1e-5, equal_nan=True)


def _run(net: Net, values: Mapping[str, torch.Tensor], batch_size: int) -> torch.Tensor:
    known = dict(values)
    for op in net.ops:
        results = OPS[op.type].run(op, [known[name] for name in op.inputs], batch_size)
        known.update(zip(op.outputs, results, strict=True))
    return known[net.outputs[0]]
