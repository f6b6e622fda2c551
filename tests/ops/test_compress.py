"""Compression: what is lost is bounded, what is not sent is not lost (HT 4.2)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from htrain.errors import DataError
from htrain.net.net import B, BatchDim, Blob
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder
from htrain.ops.codec import weight_codec

quick = settings(max_examples=60, deadline=None, derandomize=True)
floats = st.floats(-1e6, 1e6, width=32)
matrices = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=3, max_side=9), elements=floats)
shares = st.sampled_from([0.01, 0.1, 0.3, 1.0])


def kernel(type: str, *tensors: torch.Tensor, **attrs: object) -> object:
    return OPS[type].kernel(*tensors, **attrs)


@quick
@given(matrices)
def test_eight_bits_keep_every_element_to_half_a_step_of_its_example(x: np.ndarray) -> None:
    q, ranges = kernel("QuantizeRows", torch.from_numpy(x))
    back = kernel("DequantizeRows", q, ranges).numpy()
    rows = x.reshape(len(x), -1).astype(np.float64)
    step = (rows.max(1) - rows.min(1)) / 255
    rounding = 4e-7 * np.abs(rows).max(1) + 1e-30  # of fp32 itself
    assert q.dtype == torch.uint8
    assert (np.abs(back.reshape(len(x), -1) - rows).max(1) <= 0.5 * step + 255 * rounding).all()


def test_the_ends_of_an_examples_range_are_kept_and_a_constant_is_exact() -> None:
    x = torch.tensor([[0.0, 5.0, 10.0], [3.25, 3.25, 3.25]])
    q, ranges = kernel("QuantizeRows", x)
    assert q[:, ::2].tolist() == [[0, 255], [0, 0]]
    assert q[0, 1].item() in (127, 128)
    torch.testing.assert_close(kernel("DequantizeRows", q, ranges)[1], x[1], rtol=0, atol=0)
    assert kernel("DequantizeRows", q, ranges)[0, 2].item() == pytest.approx(10.0, rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_an_example_with_a_number_that_is_none_comes_out_as_nan_and_the_others_do_not(bad: float) -> None:
    x = torch.tensor([[1.0, bad, 2.0], [1.0, 2.0, 3.0]])
    back = kernel("DequantizeRows", *kernel("QuantizeRows", x))
    assert back[0].isnan().all()
    assert not back[1].isnan().any()


def test_ranges_of_other_examples_are_refused() -> None:
    q, ranges = kernel("QuantizeRows", torch.rand(4, 3))
    with pytest.raises(DataError, match=r"a quantized blob \[4, 3\] came with ranges \[3, 2\]: want \[4, 2\]"):
        kernel("DequantizeRows", q, ranges[:3])


@quick
@given(matrices, shares)
def test_top_k_keeps_the_elements_that_a_sort_by_magnitude_puts_first(x: np.ndarray, share: float) -> None:
    values, places = kernel("TopK", torch.from_numpy(x), share=share)
    flat = x.reshape(-1)
    count = min(flat.size, int(np.ceil(flat.size * share)))
    order = np.lexsort((np.arange(flat.size), -np.abs(flat)))[:count]  # of equal ones the first
    assert sorted(order.tolist()) == places.tolist()
    np.testing.assert_array_equal(values.numpy(), flat[places.numpy()])


@quick
@given(matrices, shares)
def test_sparsified_gradient_is_itself_at_its_places_and_zero_elsewhere(x: np.ndarray, share: float) -> None:
    values, places = kernel("TopK", torch.from_numpy(x), share=share)
    back = kernel("SpreadTopK", values, places, shape=x.shape[1:], batch=len(x)).numpy()
    kept = np.zeros(x.size, bool)
    kept[places.numpy()] = True
    np.testing.assert_array_equal(back.reshape(-1), np.where(kept, x.reshape(-1), 0))


@quick
@given(st.lists(hnp.arrays(np.float32, (4, 5), elements=st.integers(-1000, 1000)), min_size=1, max_size=6), shares)
def test_with_feedback_what_was_sent_and_what_is_left_add_up_to_all_gradients(
    steps: list[np.ndarray], share: float
) -> None:
    residual, sent = torch.zeros(4, 5), torch.zeros(4, 5)
    for dy in steps:
        values, places = kernel("TopKWithFeedback", torch.from_numpy(dy), residual, share=share)
        sent += kernel("SpreadTopK", values, places, shape=(5,), batch=4)
    np.testing.assert_array_equal((sent + residual).numpy(), np.sum(steps, 0))  # integers: exact


def test_a_short_last_batch_uses_the_first_examples_of_the_residual() -> None:
    residual = torch.arange(12.0).view(4, 3)
    values, places = kernel("TopKWithFeedback", torch.zeros(2, 3), residual, share=0.1)
    assert (values.tolist(), places.tolist()) == ([5.0], [5])
    assert residual.tolist() == [[0, 1, 2], [3, 4, 0], [6, 7, 8], [9, 10, 11]]


def test_gradient_larger_than_its_residual_is_refused() -> None:
    with pytest.raises(DataError, match="a gradient of 12 elements does not fit a residual of 6"):
        kernel("TopKWithFeedback", torch.zeros(4, 3), torch.zeros(2, 3), share=0.5)


@pytest.mark.parametrize("place", [-1, 6, 2**31 - 1])
def test_place_outside_the_gradient_is_refused(place: int) -> None:
    with pytest.raises(DataError, match=r"places outside \[2, 3\]"):
        kernel("SpreadTopK", torch.ones(1), torch.tensor([place], dtype=torch.int32), shape=(3,), batch=2)


@quick
@given(matrices, shares)
def test_a_sparsified_weight_is_itself_at_its_places_and_zero_elsewhere(x: np.ndarray, share: float) -> None:
    values, places = kernel("TopK", torch.from_numpy(x), share=share)
    back = kernel("SpreadWhole", values, places, shape=x.shape).numpy()
    np.testing.assert_array_equal(back, kernel("SpreadTopK", values, places, shape=x.shape[1:], batch=len(x)).numpy())


@pytest.mark.parametrize("place", [-1, 6])
def test_place_outside_a_weight_is_refused(place: int) -> None:
    with pytest.raises(DataError, match=r"places outside \[2, 3\]"):
        kernel("SpreadWhole", torch.ones(1), torch.tensor([place], dtype=torch.int32), shape=(2, 3))


@pytest.mark.parametrize(
    ("shape", "dtype", "share", "parts"),
    [
        ((30, 20), "float32", 1.0, None), ((30, 20), "bfloat16", 1.0, ["bfloat16[30,20]"]), ((30, 20), "int8", 1.0, ["uint8[30,20]", "float32[30,2]"]),
        ((30,), "int8", 1.0, ["bfloat16[30]"]), ((30, 3), "int8", 1.0, ["bfloat16[30,3]"]), ((30, 20), "float32", 0.01, ["float32[6]", "int32[6]"]),
        ((3,), "float32", 0.5, None),
    ],
)  # fmt: skip
def test_differences_of_weights_travel_as_short_as_pays(
    shape: tuple[int, ...], dtype: str, share: float, parts: list[str] | None
) -> None:
    codec = weight_codec("w", shape, dtype, share)
    assert (codec and [str(part).partition(": ")[2] for part in codec.parts]) == parts


def test_nets_declare_the_shapes_that_travel() -> None:
    builder = NetBuilder("compressed")
    x = builder.input(Blob("x", (B, 3, 5), "float32"))
    q, ranges = builder.add("QuantizeRows", (x,))
    assert (builder.blob(q), builder.blob(ranges)) == (Blob(q, (B, 3, 5), "uint8"), Blob(ranges, (B, 2), "float32"))
    assert builder.blob(*builder.add("DequantizeRows", (q, ranges))).shape == (B, 3, 5)
    values, places = builder.add("TopK", (x,), attrs={"share": 0.1})
    assert builder.blob(values).shape == builder.blob(places).shape == (BatchDim(2, bound=True),)
    assert builder.blob(*builder.add("SpreadTopK", (values, places), attrs={"shape": (3, 5)})).shape == (B, 3, 5)


@quick
@given(hnp.arrays(np.float32, st.tuples(st.integers(0, 5), st.integers(1, 9)), elements=floats))
def test_a_row_of_eight_bits_is_within_a_254th_of_its_largest_magnitude(rows: np.ndarray) -> None:
    back = kernel("DequantizeRows", *kernel("QuantizeRows", torch.from_numpy(rows))).numpy()
    largest = np.abs(rows).max(1, keepdims=True, initial=0.0).astype(np.float64)
    assert (np.abs(back - rows.astype(np.float64)) <= largest / 254 + 1e-37).all()


@pytest.mark.parametrize(
    ("dtype", "relative", "absolute", "most"),
    [("bfloat16", 2**-8, 2**-133, 2.0**126), ("float16", 2**-11, 2**-25, 65504.0)],
)
@quick
@given(data=st.data())
def test_a_row_of_sixteen_bits_is_within_half_of_its_last_place(
    dtype: str, relative: float, absolute: float, most: float, data: st.DataObject
) -> None:
    rows = data.draw(hnp.arrays(np.float32, (3, 4), elements=st.floats(-most, most, width=32)))
    back = kernel("Cast", kernel("Cast", torch.from_numpy(rows), to=dtype), to="float32").numpy()
    exact = rows.astype(np.float64)
    assert (np.abs(back - exact) <= np.maximum(relative * np.abs(exact), absolute)).all()
