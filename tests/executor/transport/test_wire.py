"""Messages: what is encoded is decoded, and what is damaged is refused in one line."""

import random
import tracemalloc
import warnings
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.errors import RunError
from htrain.executor.engine.context import Context
from htrain.executor.transport.wire import (
    Addresses,
    Beat,
    Failed,
    Hello,
    Message,
    Order,
    Ready,
    State,
    Values,
    bundle_of,
    decode,
    encode,
)
from htrain.ops.bundle import DTYPES, LARGE_BYTES, Bundle, Kinds

CONTEXT = Context(1, 2, 3, 40)
COUNTS = st.integers(0, 2**40)
DETAILS = st.dictionaries(
    st.text(max_size=8),
    st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=8) | st.lists(COUNTS, max_size=3),
    max_size=3,
)
NAMES = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)
CONTROL = st.one_of(
    st.builds(Hello, st.text(), NAMES, st.text(), COUNTS),
    st.builds(Addresses, NAMES),
    st.builds(Ready, st.text(), DETAILS),
    st.builds(Order, st.sampled_from(["start", "pause", "save"]), st.text()),
    st.builds(Beat, st.text(), DETAILS),
    st.builds(State, st.text(), st.text(), DETAILS),
    st.builds(Failed, st.text(), st.text(), st.text()),
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any dtype, 0 to 4 dimensions, sizes from 0; contiguous or not."""
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    tensor = torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype)
    layout = draw(st.sampled_from(["whole", "transposed", "strided"])) if shape else "whole"
    if layout == "transposed":
        return tensor.transpose(0, -1)
    return tensor[::2] if layout == "strided" else tensor


VALUES = Values("trainer:1:2/3", CONTEXT, 7)


def frames_of(tensors: dict[str, torch.Tensor]) -> list[Any]:
    return encode(VALUES, bundle_of(tuple(tensors), list(tensors.values())))


def writable(frames: list[Any]) -> list[bytearray]:
    return [bytearray(frame) for frame in frames]


def header_of(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """The header of a message of one tensor."""
    dims = b"".join(size.to_bytes(8, "little", signed=True) for size in shape)
    return msgspec.msgpack.encode(["values", "trainer:1:2/3", [0, 0, 0, 0], 7, [["x", dtype, len(shape)]], dims])


def assert_is_one_line(frames: list[Any], match: str) -> None:
    with pytest.raises(RunError, match=match) as caught:
        decode(frames)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def received_bytes(frames: list[Any]) -> int:
    """How many bytes of tensors a message brings; -1 when it is refused."""
    try:
        _, tensors = decode(frames)
    except RunError:
        return -1
    return sum(tensor.nbytes for tensor in tensors.values())


@given(CONTROL)
def test_every_control_message_comes_back_as_it_was(message: Message) -> None:
    assert decode(encode(message)) == (message, {})


@given(st.dictionaries(st.text(max_size=8), tensors(), max_size=4))
def test_tensors_of_any_dtype_and_layout_come_back_bit_for_bit(sent: dict[str, torch.Tensor]) -> None:
    message, received = decode(writable(frames_of(sent)))
    assert isinstance(message, Values)
    assert (message.source, message.context, message.batch_size) == ("trainer:1:2/3", CONTEXT, 7)
    assert list(received) == list(sent)
    for name, tensor in sent.items():
        assert received[name].dtype == tensor.dtype
        assert received[name].shape == tensor.shape
        assert torch.equal(received[name], tensor)


@pytest.mark.parametrize("bits", ["nan", "inf", "-inf", "-0.0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_special_floats_keep_their_bits(dtype: torch.dtype, bits: str) -> None:
    tensor = torch.tensor([float(bits)], dtype=dtype)
    _, received = decode(frames_of({"x": tensor}))
    assert received["x"].view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_parameter_that_wants_gradients_is_sent_without_them(dtype: torch.dtype) -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 3, dtype=dtype))
    _, received = decode(frames_of({"x": parameter}))
    assert not received["x"].requires_grad
    assert torch.equal(received["x"], torch.ones(2, 3, dtype=dtype))


def test_context_is_a_key_that_survives_the_wire() -> None:
    message, _ = decode(encode(Values("trainer:1:2/3", CONTEXT, 7)))
    assert isinstance(message, Values)
    assert {CONTEXT: "pass"}[message.context] == "pass"
    with pytest.raises(AttributeError):
        message.context.step = 41  # type: ignore[misc]


@pytest.mark.parametrize("dtype", DTYPES)
def test_neither_end_copies_a_large_contiguous_tensor(dtype: str) -> None:
    tensor = torch.zeros(1 << 16, 3, dtype=DTYPES[dtype])
    header, frame = frames_of({"x": tensor})
    tensor.fill_(1)
    buffer = bytearray(frame)
    assert any(buffer), "the frame shows what the tensor holds now"
    _, received = decode([header, buffer])
    before = received["x"].clone()
    buffer[:] = bytes(len(buffer))
    assert dtype == "bool" or not torch.equal(received["x"], before), "the tensor shows what the frame holds now"


@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), st.sampled_from([0, 1, 7, 8191, 70_000])), max_size=6))
def test_small_tensors_travel_in_one_frame_and_come_in_memory_of_their_own(kinds: list[tuple[str, int]]) -> None:
    sent = {f"t{k}": torch.arange(size).to(DTYPES[dtype]) for k, (dtype, size) in enumerate(kinds)}
    header, *frames = map(bytearray, frames_of(sent))
    large = [tensor for tensor in sent.values() if tensor.nbytes >= LARGE_BYTES]
    small = [tensor for tensor in sent.values() if 0 < tensor.nbytes < LARGE_BYTES]
    assert len(frames) == len(large) + bool(small)
    assert not small or len(frames[0]) <= sum(tensor.nbytes + 15 for tensor in small)
    _, received = decode([header, *frames])
    for frame in frames if small and len(frames[0]) < LARGE_BYTES else ():
        frame[:] = bytes(len(frame)) if frame is frames[0] else frame
    assert all(torch.equal(received[name], value) for name, value in sent.items())


def test_many_small_tensors_together_are_not_copied_where_they_come_in() -> None:
    sent = {f"t{k}": torch.full((8000,), k) for k in range(3)}
    header, together = map(bytearray, frames_of(sent))
    _, received = decode([header, together])
    together[:] = bytes(len(together))
    assert all(not tensor.any() for tensor in received.values())


@given(st.dictionaries(st.text(max_size=8), tensors(), min_size=1, max_size=6), st.randoms())
def test_a_pick_has_the_tensors_that_it_names_in_its_order(sent: dict[str, torch.Tensor], rng: random.Random) -> None:
    names = rng.sample(sorted(sent), rng.randint(1, len(sent)))
    for whole in (bundle_of(tuple(sent), list(sent.values())), Bundle.of(tuple(sent), list(sent.values()))):
        part = whole.pick(tuple(names))
        assert list(part) == names
        assert part.sizes.tolist() == [sent[name].nbytes for name in names]
        assert [part.shape(k) for k in range(len(names))] == [tuple(sent[name].shape) for name in names]
        for name, pointer in zip(names, part.pointers.tolist(), strict=True):
            assert torch.equal(part[name], sent[name])
            assert part[name].nbytes == 0 or part[name].dtype == torch.bool or part[name].data_ptr() == pointer


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 16, 4096])), max_size=5))
def test_a_room_that_is_filled_travels_as_tensors_do(shapes: list[tuple[int, int]]) -> None:
    names = tuple(f"rows_{k}" for k in range(len(shapes)))
    kinds = Kinds.of(names, ("float32",) * len(names), (2,) * len(names))
    room = Bundle.room(kinds, np.array(shapes, np.int64).reshape(-1))
    for name, shape in zip(names, shapes, strict=True):
        room[name].copy_(torch.rand(shape))
    _, received = decode(writable(encode(VALUES, room)))
    assert received.kinds is kinds
    assert all(torch.equal(received[name], room[name]) for name in names)


def test_tensor_at_an_odd_address_is_copied_to_an_aligned_one() -> None:
    sent = torch.arange(6, dtype=torch.float64)
    header, frame = frames_of({"x": sent})
    shifted = memoryview(bytearray(b"?" + bytes(frame)))[1:]
    _, received = decode([header, shifted])
    assert received["x"].data_ptr() % 8 == 0
    assert torch.equal(received["x"], sent)


def test_read_only_frame_gives_a_tensor_without_a_warning() -> None:
    sent = torch.arange(6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, received = decode([bytes(frame) for frame in frames_of({"x": sent})])
    assert torch.equal(received["x"], sent)


def test_a_byte_that_is_no_bool_becomes_true() -> None:
    _, received = decode([header_of((3,), "bool"), bytearray([0, 1, 77, *bytes(13)])])
    assert received["x"].view(torch.uint8).tolist() == [0, 1, 1]


def test_dtype_that_messages_do_not_carry_is_refused_by_name() -> None:
    with pytest.raises(RunError, match=r"^blob 'phase' is torch.complex64, a message carries float32, .*: cast it"):
        bundle_of(["x", "phase"], [torch.zeros(2), torch.zeros(2, dtype=torch.complex64)])


@pytest.mark.parametrize(
    ("shape", "dtype", "frame_bytes", "match"),
    [
        ((2, 3), "float32", 20, r"from trainer:1:2/3 brings 20 bytes of small blobs: 32 bytes are wanted$"),
        ((2, 3), "float32", 48, "48 bytes of small blobs: 32"),
        ((), "int64", 0, r"0 bytes of small blobs: 16"),
        ((3,), "int64", 0, "0 bytes of small blobs: 32"),
        ((100, 300), "float32", 119_996, r"brings blob x: 119996 bytes are not float32\[100,300\]$"),
        ((0, 3), "int64", 8, "announces 0 frames and brings 1"),
        ((-1,), "float32", 4, r"brings blob x: no tensor is float32\[-1\]$"),
        ((-1, -1), "float32", 4, "no tensor is"),
        ((-2, -3), "float32", 24, "no tensor is"),
        ((2**40, 2**40), "float32", 4, "no tensor is"),
        ((2**60,), "float32", 4, r"4 bytes are not float32\[1152921504606846976\]"),
        ((2**62, 4), "float32", 0, "no tensor is"),
        ((0, 2**62, 2**62), "float32", 0, "no tensor is"),
        ((1,) * 33, "float32", 4, "Expected `int` <= 32"),
        ((1,) * 9999, "float32", 4, "Expected `int` <= 32"),
        ((1,), "complex64", 8, r"brings blob x of unknown dtype complex64$"),
        ((1,), "o\nbject", 8, r"brings blob x of unknown dtype o\\nbject$"),
    ],
)
def test_tensor_that_disagrees_with_its_header_is_refused(
    shape: tuple[int, ...], dtype: str, frame_bytes: int, match: str
) -> None:
    assert_is_one_line([header_of(shape, dtype), bytearray(frame_bytes)], match)


def header(*parts: bytes) -> list[bytes]:
    return [b"".join(parts)]


def packed(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


BEAT = b"\x93" + packed("beat") + packed("trainer:0:0")
BEGIN = ["values", "trainer:0:0/0", [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("frames", "match"),
    [
        ([], "cannot be read"),
        ([b""], "truncated"),
        ([b"GET / HTTP/1.1\r\n\r\n"], "cannot be read"),
        (header(packed(["sudo", "x"])), r"Invalid value 'sudo'.*do all roles run the same version of htrain\?"),
        (header(packed({"type": "beat"})), "Expected `array`"),
        (header(packed(["ready"])), "at least length 2"),
        (header(packed(["ready", 5])), "Expected `str`, got `int`"),
        (header(packed([*BEGIN, -1, []])), "Expected `int` >= 0"),
        (header(packed([*BEGIN, 2**40, []])), "Expected `int` <"),
        (header(packed([*BEGIN, 1, [["x", "int8", 1.5]], b""])), "Expected `int`, got `float`"),
        (
            header(packed([*BEGIN, 1, [["x", "int8", 1]], b"1234567"])),
            "brings 7 bytes of dimensions for tensors of 1 dimensions$",
        ),
        (header(packed([*BEGIN, 1, 7, b""])), "Expected `array`"),
        (header(packed(["ready", "a"]), b"tail"), "trailing characters"),
        (header(BEAT, b"\x81\xa1a", b"\x91" * 100_000), "recursion"),
        (header(BEAT, b"\x81\xa1a\x81\x80\x01"), "hashable"),
        (header(b"\x92", packed("ready"), b"\xa1\xff"), "codec can't decode"),
        (header(BEAT, b"\x81\xa1a\xdd\x7f\xff\xff\xff"), "truncated"),
        (header(BEAT, b"\xdf\xff\xff\xff\xff"), "truncated"),
        (header(b"\x92", packed("ready"), b"\xdb\xff\xff\xff\xff"), "truncated"),
        ([packed(["ready", "a"]), b"x"], "a message Ready from a announces 0 frames and brings 1$"),
        ([packed(["order", "stop"]), b"x"], "a message Order announces 0 frames and brings 1$"),
        ([header_of((1,))], "a message Values from trainer:1:2/3 announces 1 frames and brings 0$"),
        ([header_of((0,)), b"", b""], "announces 0 frames and brings 2$"),
        (
            [packed([*BEGIN, 1, [["x", "int8", 1], ["x", "int8", 1]], bytes(16)]), b"a"],
            "trainer:0:0/0 brings a blob twice: x, x$",
        ),
    ],
)
def test_malformed_message_is_one_clear_line(frames: list[bytes], match: str) -> None:
    assert_is_one_line(frames, match)


@pytest.mark.parametrize("place", [b"\x95" + packed("values") + packed("s") + packed([0, 0, 0, 0]) + packed(1), BEAT])
def test_a_lie_about_a_length_allocates_nothing(place: bytes) -> None:
    inner = b"" if place != BEAT else b"\x81\xa1a"
    for length in (b"\x10\x00\x00\x00", b"\x7f\xff\xff\xff"):
        tracemalloc.start()
        with pytest.raises(RunError, match="truncated"):
            decode([place + inner + b"\xdd" + length])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=60), max_size=4))
def test_garbage_is_refused_and_never_crashes(frames: list[bytes]) -> None:
    assert received_bytes(frames) in range(-1, sum(map(len, frames[1:])) + 1)


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_a_message_with_changed_bytes_is_read_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    sent = {"a": torch.arange(12).reshape(3, 4), "b": torch.ones(5, dtype=torch.bfloat16), "c": torch.zeros(0, 2)}
    frames = writable(frames_of(sent))
    for _ in range(rng.randint(1, 4)):
        frames[0][rng.randrange(len(frames[0]))] = rng.randrange(256)
    assert received_bytes(frames) in range(-1, len(frames[1]) + 1)
