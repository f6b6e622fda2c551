"""ATen ops of complex numbers: a complex tensor[...] is a blob[...,2] of its real and imaginary parts; a Fourier transform is a product with a constant matrix.

No blob is complex: `Translation.complex` has the nodes that are. What has no handler here refuses complex operands, for it would give another shape or
dtype than torch.
"""

from math import pi

import torch
from torch import fx

from htrain.frontend.aten_forms import Call, Handler, refuse
from htrain.frontend.aten_matrix import MATRIX
from htrain.frontend.aten_shapes import SHAPES
from htrain.frontend.translation import Translation

_LARGEST = 1 << 11  # of n points, the matrix has n^2 entries
_NORMS = {0: 0.0, 1: -0.5, 2: -1.0}  # as ATen numbers them: the exponent of n that scales


def _transform(t: Translation, call: Call) -> None:
    """_fft_r2c(x, dim, norm, onesided), _fft_c2c(x, dim, norm, forward) and _fft_c2r(x, dim, norm, size) over one dimension."""
    source, dims, norm, last = call.args
    assert isinstance(source, fx.Node)
    x, kind, rank = source.meta["val"], str(call.target), len(source.meta["val"].shape)
    axis = int(dims[0]) % rank
    taken, given = x.shape[axis], call.meta["val"].shape[axis]
    if len(dims) != 1 or not isinstance(taken, int) or not isinstance(given, int) or taken > _LARGEST:
        raise refuse(t, call, f"a transform over one dimension other than the batch, of at most {_LARGEST} points")
    points = given if "c2r" in kind else taken
    matrix = _matrix(points, taken, given, forward="r2c" in kind or ("c2c" in kind and bool(last)))
    if "r2c" in kind:
        matrix = matrix[:, 0]
    elif "c2r" in kind:
        matrix = _of_half(matrix, points)[..., 0]
    scaled = (matrix * points ** _NORMS[int(norm)]).to(_part(x.dtype))
    _product(t, call, source, axis, scaled)


def _matrix(points: int, taken: int, given: int, *, forward: bool) -> torch.Tensor:
    """w[taken,2,given,2]: what each part of each number that is taken adds to each part of those that are given."""
    angle = torch.outer(torch.arange(taken, dtype=torch.float64), torch.arange(given, dtype=torch.float64)) * 2 * pi
    angle = angle / points * (-1 if forward else 1)
    real = torch.stack([angle.cos(), angle.sin()], -1)
    imaginary = torch.stack([-angle.sin(), angle.cos()], -1)
    return torch.stack([real, imaginary], 1)


def _of_half(matrix: torch.Tensor, points: int) -> torch.Tensor:
    """Of a spectrum whose other half is its conjugate: but the first and, of an even number, the last, each number counts twice."""
    weights = torch.full((matrix.shape[0],), 2.0, dtype=torch.float64)
    weights[0] = 1.0
    if points % 2 == 0:
        weights[points // 2 :] = 1.0
    return matrix * weights.view(-1, 1, 1, 1)


def _product(t: Translation, call: Call, source: fx.Node, axis: int, matrix: torch.Tensor) -> None:
    """The source, with its axis last and its parts beside it, times the matrix; and back."""
    rank, was, becomes = len(source.meta["val"].shape), source in t.complex, call.meta["val"].is_complex()
    order = (*(d for d in range(rank) if d != axis), axis)
    name = _transposed(t, call, t.blob(source), (*order, rank) if was else order)
    taken = matrix.shape[0] * (2 if was else 1)
    outer = tuple(d if isinstance(d, int) else -1 for d in (t.shape(source)[d] for d in order[:-1]))
    if was:
        name = t.step(call.node, "Reshape", (name,), {"shape": (*outer, taken)})
    constant = t.constant(matrix.reshape(taken, -1), module=t.module_of(call.node))
    name = t.step(call.node, "MatMul", (name, constant))
    if becomes:
        name = t.step(call.node, "Reshape", (name,), {"shape": (*outer, call.meta["val"].shape[axis], 2)})
        t.complex.add(call.node)
    back = tuple(order.index(d) for d in range(rank))
    t.names[call.node] = _transposed(t, call, name, (*back, rank) if becomes else back)


def _transposed(t: Translation, call: Call, name: str, order: tuple[int, ...]) -> str:
    return name if order == tuple(range(len(order))) else t.step(call.node, "Transpose", (name,), {"perm": order})


def _part(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32


def _as_real(t: Translation, call: Call) -> None:
    t.alias(call.node, call.args[0])


def _as_complex(t: Translation, call: Call) -> None:
    t.alias(call.node, call.args[0])
    t.complex.add(call.node)


def _operands(t: Translation, call: Call) -> list[object]:
    """The first two, of which constants are blobs, too: `Translation.complex` knows then what they are."""
    found = [call.args[0], call.args[1]]
    for each in found:
        if each in t.static:
            t.blob(each)
    return found


def _multiply(t: Translation, call: Call) -> None:
    """(a + bi)(c + di); or of a complex and a real tensor, or a number."""
    x, y = _operands(t, call)
    if x not in t.complex:
        x, y = y, x
    if y not in t.complex:
        _scale(t, call, x, y)
        return
    axis = len(t.builder.blob(t.blob(x)).shape) - 1, len(t.builder.blob(t.blob(y)).shape) - 1
    (a, b), (c, d) = (
        [t.step(call.node, "Select", (t.blob(each),), {"axis": at, "index": part}) for part in (0, 1)]
        for each, at in zip((x, y), axis, strict=True)
    )
    products = [t.step(call.node, "Mul", pair) for pair in ((a, c), (b, d), (a, d), (b, c))]
    real = t.step(call.node, "Sub", products[:2])
    imaginary = t.step(call.node, "Add", products[2:])
    t.add(call.node, "Stack", (real, imaginary), {"axis": len(call.meta["val"].shape)})
    t.complex.add(call.node)


def _divide(t: Translation, call: Call) -> None:
    x, y = _operands(t, call)
    if y in t.complex:
        raise refuse(t, call, "a quotient by complex numbers: multiply by y.conj(), and divide by y.abs() ** 2")
    _scale(t, call, x, y, type="Div")


def _scale(t: Translation, call: Call, x: object, y: object, *, type: str = "Mul") -> None:
    name = t.blob(y, like=torch.empty((), dtype=_part(call.meta["val"].dtype)))
    shape = t.builder.blob(name).shape
    if shape:
        behind = (*(d if isinstance(d, int) else -1 for d in shape), 1)
        name = t.step(call.node, "Reshape", (name,), {"shape": behind})
    t.add(call.node, type, (t.blob(x), name))
    t.complex.add(call.node)


def _sum(type: str) -> Handler:
    """Of two complex tensors of one shape, part by part."""

    def handle(t: Translation, call: Call) -> None:
        x, y = _operands(t, call)
        if x not in t.complex or y not in t.complex or t.shape(x) != t.shape(y):
            raise refuse(t, call, "a sum of complex numbers with others")
        t.add(call.node, type, (t.blob(x), t.blob(y)))
        t.complex.add(call.node)

    return handle


def _conjugate(t: Translation, call: Call) -> None:
    x = t.blob(call.args[0])
    signs = t.constant(torch.tensor([1.0, -1.0], dtype=_part(call.meta["val"].dtype)), module=t.module_of(call.node))
    t.add(call.node, "Mul", (x, signs))
    t.complex.add(call.node)


def _of_parts(t: Translation, call: Call) -> None:
    """complex(real, imaginary), and polar(size, angle)."""
    parts = [t.blob(part) for part in (call.args[0], call.args[1])]
    if "polar" in str(call.target):
        size, angle = parts
        parts = [t.step(call.node, "Mul", (size, t.step(call.node, of, (angle,)))) for of in ("Cos", "Sin")]
    if len({t.builder.blob(part).shape for part in parts}) > 1:
        shape = t.batch_shape(t.shape(call.node))
        parts = [t.step(call.node, "BroadcastTo", (part,), {"shape": shape}) for part in parts]
    t.add(call.node, "Stack", parts, {"axis": len(call.meta["val"].shape)})
    t.complex.add(call.node)


def _size(t: Translation, call: Call) -> None:
    """abs(), of real numbers, too."""
    name, source = t.blob(call.args[0]), call.args[0]
    if source not in t.complex:
        t.add(call.node, "Abs", (name,))
    else:
        t.add(call.node, "ReduceL2", (name,), {"axes": (len(call.meta["val"].shape),), "keepdims": False})


def _angle(t: Translation, call: Call) -> None:
    name, last = t.blob(call.args[0]), len(call.meta["val"].shape)
    if call.args[0] not in t.complex:
        raise refuse(t, call, "the angle of a real number: it is 0 or pi")
    parts = [t.step(call.node, "Select", (name,), {"axis": last, "index": part}) for part in (1, 0)]
    t.add(call.node, "Atan2", parts)


def _view(t: Translation, call: Call) -> None:
    call.told_by_shape()
    t.add(call.node, "Reshape", (t.blob(call.args[0]),), {"shape": (*t.open_shape(call.node), 2)})
    t.complex.add(call.node)


def _expanded(t: Translation, call: Call) -> None:
    call.told_by_shape()
    shape = (*t.batch_shape(t.shape(call.node)), 2)
    name, source = t.blob(call.args[0]), call.args[0].meta["val"]
    ahead = len(call.meta["val"].shape) - source.dim()
    if ahead:
        given = tuple(d if isinstance(d, int) else -1 for d in t.builder.blob(name).shape)
        name = t.step(call.node, "Reshape", (name,), {"shape": (*[1] * ahead, *given)})
    t.add(call.node, "BroadcastTo", (name,), {"shape": shape})
    t.complex.add(call.node)


def _arranged(t: Translation, call: Call) -> None:
    """permute and transpose."""
    rank = len(call.meta["val"].shape)
    order = list(range(rank))
    if "permute" in str(call.target):
        order = [int(d) % rank for d in call.args[1]]
    else:
        a, b = (int(d) % rank for d in (call.args[1:3] or (0, 1)))
        order[a], order[b] = b, a
    t.names[call.node] = _transposed(t, call, t.blob(call.args[0]), (*order, rank))
    t.complex.add(call.node)


def _part_by_part(handler: Handler) -> Handler:
    """What does the same with both parts: its axes count from the front."""

    def handle(t: Translation, call: Call) -> None:
        handler(t, call)
        t.complex.add(call.node)

    return handle


def _negated(t: Translation, call: Call) -> None:
    t.add(call.node, "Neg", (t.blob(call.args[0]),))


_PARTS: dict[str, Handler] = {
    **{name: SHAPES[name] for name in ("slice.Tensor", "select.int", "cat.default", "stack.default", "clone.default", "alias.default")},
    **{name: MATRIX[name] for name in ("sum.default", "sum.dim_IntList", "mean.default", "mean.dim")},
    "neg.default": _negated,
}  # fmt: skip
FOURIER: dict[str, Handler] = {
    **dict.fromkeys(("_fft_r2c.default", "_fft_c2c.default", "_fft_c2r.default"), _transform),
    "view_as_real.default": _as_real,
    "view_as_complex.default": _as_complex,
    "abs.default": _size,
    "angle.default": _angle,
}
OF_COMPLEX: dict[str, Handler] = {
    "aten.mul.Tensor": _multiply,
    "aten.div.Tensor": _divide,
    "aten.add.Tensor": _sum("Add"),
    "aten.sub.Tensor": _sum("Sub"),
    "aten.complex.default": _of_parts,
    "aten.polar.default": _of_parts,
    **dict.fromkeys(("aten._conj.default", "aten.conj_physical.default", "aten._conj_physical.default"), _conjugate),
    "aten.resolve_conj.default": _as_complex,
    **{f"aten.{name}.default": _view for name in ("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze")},
    **{f"aten.{name}": _view for name in ("flatten.using_ints", "unflatten.int", "squeeze.dim", "squeeze.dims")},
    "aten.expand.default": _expanded,
    **{f"aten.{name}": _arranged for name in ("permute.default", "transpose.int", "t.default")},
    **{f"aten.{name}": _part_by_part(handler) for name, handler in _PARTS.items()},
    **{f"aten.{name}": handler for name, handler in FOURIER.items()},
}  # what may give a complex tensor
