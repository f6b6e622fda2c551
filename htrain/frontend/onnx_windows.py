"""ONNX's convolutions and pools as PyTorch's: windows that move over the dimensions behind [B,C], with what is padded around these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch

from htrain.frontend.onnx_graph import Graph
from htrain.frontend.onnx_operator import Operator
from htrain.net.net import Attr, Shape

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class _Windows:
    """How windows of `kernel` move over `sizes`, one number each for every dimension behind [B,C]; `before` and `after` are the places that are padded."""

    sizes: Sizes
    kernel: Sizes
    stride: Sizes
    dilation: Sizes
    before: Sizes
    after: Sizes

    @property
    def is_even(self) -> bool:
        """Whether as much is padded after as before, as PyTorch does."""
        return self.before == self.after


def _windows(graph: Graph, node: Operator, x: str, kernel: Sequence[int]) -> _Windows:
    """Raises ModelError where the windows move over the batch, or cannot be known."""
    sizes = _sizes(graph, node, x)
    ones = (1,) * len(sizes)
    stride = tuple(node.attributes.get_ints("strides", ones))
    dilation = tuple(node.attributes.get_ints("dilations", ones))
    pads = tuple(node.attributes.get_ints("pads", (0,) * 2 * len(sizes)))
    if node.attributes.get_ints("kernel_shape", kernel) != tuple(kernel):
        raise graph.refusal(node, f"has a kernel_shape that is not that of its weight, {list(kernel)}")
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        wide = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        totals = [max((-(-n // s) - 1) * s + w - n, 0) for n, s, w in zip(sizes, stride, wide, strict=True)]
        small, large = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
        pads = (*small, *large) if auto == "SAME_UPPER" else (*large, *small)
    elif auto == "VALID":
        pads = (0,) * 2 * len(sizes)
    elif auto != "NOTSET":
        raise graph.refusal(node, f"has auto_pad = {auto}, which htrain does not know")
    before, after = pads[: len(sizes)], pads[len(sizes) :]
    return _Windows(sizes, tuple(kernel), stride=stride, dilation=dilation, before=before, after=after)


def _sizes(graph: Graph, node: Operator, x: str) -> Sizes:
    shape = graph.shape(x)
    sizes = tuple(dim for dim in shape[2:] if isinstance(dim, int))
    if len(sizes) < len(shape) - 2 or not sizes:
        raise graph.refusal(node, f"moves over the batch, in [{', '.join(map(str, shape))}]")
    return sizes


def _padded(graph: Graph, node: Operator, x: str, windows: _Windows, value: float) -> str:
    """`x` with what its windows need around it, where PyTorch's op cannot pad so itself."""
    pairs = tuple(chain(*zip(windows.before, windows.after, strict=True)))
    backwards = tuple(size for i in reversed(range(len(windows.before))) for size in pairs[2 * i : 2 * i + 2])
    return graph.step(node, "Pad", (x,), {"pads": backwards, "value": value})


# -- convolutions ----------------------------------------------------------------------------------------------------


def _convolution(graph: Graph, node: Operator) -> None:
    x, *weights = graph.blobs(node)
    windows = _windows(graph, node, x, _kernel(graph.shape(weights[0])))
    if not windows.is_even:
        x = _padded(graph, node, x, windows, 0.0)
    padding = windows.before if windows.is_even else (0,) * len(windows.before)
    graph.emit(node, "Convolution", (x, *weights), _settings(node, windows, padding=padding))


def _kernel(weight: Shape) -> Sizes:
    return tuple(dim for dim in weight[2:] if isinstance(dim, int))


def _settings(
    node: Operator, windows: _Windows, *, padding: Sizes, output_padding: Sizes = (), transposed: bool = False
) -> Mapping[str, Attr]:
    return {
        "stride": windows.stride,
        "padding": padding,
        "dilation": windows.dilation,
        "transposed": transposed,
        "output_padding": output_padding or (0,) * len(windows.sizes),
        "groups": node.attributes.get_int("group", 1),
    }


def _transposed_convolution(graph: Graph, node: Operator) -> None:
    """What a convolution would pad is cut off: of other numbers before and after by slices, as PyTorch has one number for both."""
    x, *weights = graph.blobs(node)
    windows, output_padding = _cut(graph, node, x, _kernel(graph.shape(weights[0])))
    padding = windows.before if windows.is_even else (0,) * len(windows.sizes)
    settings = _settings(node, windows, padding=padding, output_padding=output_padding, transposed=True)
    if windows.is_even:
        graph.emit(node, "Convolution", (x, *weights), settings)
        return
    y = graph.step(node, "Convolution", (x, *weights), settings)
    for axis, (size, before, after) in enumerate(
        zip(_sizes(graph, node, y), windows.before, windows.after, strict=True), 2
    ):
        attrs = {"axis": axis, "start": before, "end": size - after, "step": 1}
        y = graph.step(node, "Slice", (y,), attrs) if before or after else y
    graph.alias(node, y)


def _cut(graph: Graph, node: Operator, x: str, kernel: Sizes) -> tuple[_Windows, Sizes]:
    """The windows of a transposed convolution, with what is cut off before and after, and the places that it adds at the end; a file may say these by the sizes
    of the result."""
    added = tuple(node.attributes.get_ints("output_padding", (0,) * len(kernel)))
    shape, auto = node.attributes.get_ints("output_shape", ()), node.attributes.get_string("auto_pad", "NOTSET")
    windows = _windows(graph, node, x, kernel)
    if not shape and auto not in ("SAME_UPPER", "SAME_LOWER"):
        return windows, added
    sizes, strides = windows.sizes, windows.stride
    wanted = tuple(shape)[-len(kernel) :] if shape else tuple(n * s for n, s in zip(sizes, strides, strict=True))
    numbers = zip(sizes, strides, kernel, windows.dilation, added, wanted, strict=True)
    totals = [(n - 1) * s + more + (k - 1) * d + 1 - w for n, s, k, d, more, w in numbers]
    added = tuple(more + max(-total, 0) for more, total in zip(added, totals, strict=True))
    small, large = (tuple((max(total, 0) + up) // 2 for total in totals) for up in (0, 1))
    before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
    return replace(windows, before=before, after=after), added


# -- pools -----------------------------------------------------------------------------------------------------------


def _max_pool(graph: Graph, node: Operator) -> None:
    x = graph.blob(node, 0)
    node.attributes.without_effect("storage_order")  # says how the places are counted, which nobody reads
    windows = _windows(graph, node, x, node.attributes["kernel_shape"].as_ints())
    ceil = bool(node.attributes.get_int("ceil_mode", 0))
    padding = windows.before
    if not windows.is_even or any(2 * p > k for p, k in zip(padding, windows.kernel, strict=True)):
        x, padding = _padded(graph, node, x, windows, float("-inf")), (0,) * len(padding)
    _max_pooled(graph, node, x, windows, padding=padding, ceil=ceil)


def _max_pooled(graph: Graph, node: Operator, x: str, windows: _Windows, *, padding: Sizes, ceil: bool) -> None:
    """PyTorch pools two dimensions: of one, the other has size 1."""
    given = (windows.kernel, windows.stride, padding, windows.dilation)
    kernel, stride, padding, dilation = (
        _of_two(graph, node, sizes, fill) for sizes, fill in zip(given, (1, 1, 0, 1), strict=True)
    )
    attrs: Mapping[str, Attr] = {
        "kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil
    }  # fmt: skip
    shape = graph.shape(x)
    flat = graph.reshape(node, x, (*shape[:2], 1, *shape[2:])) if len(shape) == 3 else x
    y = graph.builder.add("MaxPool2d", (flat,), attrs=attrs, module=graph.module_of(node))[0]
    made = graph.shape(y)
    graph.alias(node, graph.reshape(node, y, (*made[:2], *made[3:])) if len(shape) == 3 else y)


def _of_two(graph: Graph, node: Operator, sizes: Sizes, fill: int) -> Sizes:
    if len(sizes) > 2:
        raise graph.refusal(node, "moves over more than two dimensions")
    return sizes if len(sizes) == 2 else (fill, *sizes)


def _average_pool(graph: Graph, node: Operator) -> None:
    """The mean of a window, of its places within x alone unless `count_include_pad`."""
    x = graph.blob(node, 0)
    windows = _windows(graph, node, x, node.attributes["kernel_shape"].as_ints())
    if any(step != 1 for step in windows.dilation):
        raise graph.refusal(node, "has windows with gaps (dilations)")
    counts_all, ceil = (bool(node.attributes.get_int(name, 0)) for name in ("count_include_pad", "ceil_mode"))
    type = "AvgPool1d" if len(_of_two(graph, node, windows.kernel, 1)) > len(windows.kernel) else "AvgPool2d"
    attrs: dict[str, Attr] = {"kernel_size": windows.kernel, "stride": windows.stride, "ceil_mode": ceil}
    if windows.is_even and all(2 * p <= k for p, k in zip(windows.before, windows.kernel, strict=True)):
        graph.emit(node, type, (x,), {**attrs, "padding": windows.before, "count_include_pad": counts_all})
        return
    y = graph.step(node, type, (_padded(graph, node, x, windows, 0.0),), attrs)
    if not counts_all:
        y = graph.step(node, "Div", (y, graph.constant(node, _share_within(windows, ceil=ceil))))
    graph.alias(node, y)


def _share_within(windows: _Windows, *, ceil: bool) -> np.ndarray:
    """Of each window the share of its places that are within x."""
    ones = torch.ones(1, 1, *windows.sizes)
    pads = [size for pair in reversed(list(zip(windows.before, windows.after, strict=True))) for size in pair]
    pool = torch.nn.functional.avg_pool1d if len(windows.sizes) == 1 else torch.nn.functional.avg_pool2d
    return np.asarray(pool(torch.nn.functional.pad(ones, pads), windows.kernel, windows.stride, ceil_mode=ceil).numpy())


def _global_average_pool(graph: Graph, node: Operator) -> None:
    x = graph.blob(node, 0)
    axes = tuple(range(2, 2 + len(_sizes(graph, node, x))))
    graph.emit(node, "ReduceMean", (x,), {"axes": axes, "keepdims": True})


def _global_max_pool(graph: Graph, node: Operator) -> None:
    x = graph.blob(node, 0)
    sizes, ones = _sizes(graph, node, x), (1,) * (graph.rank(x) - 2)
    nothing = (0,) * len(ones)
    windows = _Windows(sizes, sizes, stride=ones, dilation=ones, before=nothing, after=nothing)
    _max_pooled(graph, node, x, windows, padding=windows.before, ceil=False)


HANDLERS: Mapping[str, Callable[[Graph, Operator], None]] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
}
