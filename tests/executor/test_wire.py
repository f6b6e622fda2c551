"""Messages: what is encoded is decoded, and what is damaged is refused in one line."""

import random
import tracemalloc
import warnings
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.errors import RunError
from htrain.executor.wire import (
    DTYPES,
    Addresses,
    Beat,
    Context,
    Failed,
    Hello,
    Message,
    Order,
    Ready,
    State,
    TensorSpec,
    Values,
    decode,
    encode,
    spec_of,
)

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
    st.builds(Ready, st.text()),
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


def values_of(tensors: dict[str, torch.Tensor]) -> Values:
    return Values("trainer:1:2/3", CONTEXT, 7, [spec_of(name, tensor) for name, tensor in tensors.items()])


def writable(frames: list[Any]) -> list[bytearray]:
    return [bytearray(frame) for frame in frames]


def spec(shape: tuple[int, ...], dtype: str = "float32") -> Values:
    return Values("trainer:1:2/3", CONTEXT, 7, [TensorSpec("x", dtype, shape)])


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
    values = values_of(sent)
    message, received = decode(writable(encode(values, list(sent.values()))))
    assert message == values
    assert list(received) == list(sent)
    for name, tensor in sent.items():
        assert received[name].dtype == tensor.dtype
        assert received[name].shape == tensor.shape
        assert torch.equal(received[name], tensor)


@pytest.mark.parametrize("bits", ["nan", "inf", "-inf", "-0.0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_special_floats_keep_their_bits(dtype: torch.dtype, bits: str) -> None:
    tensor = torch.tensor([float(bits)], dtype=dtype)
    _, received = decode(encode(values_of({"x": tensor}), [tensor]))
    assert received["x"].view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_parameter_that_wants_gradients_is_sent_without_them(dtype: torch.dtype) -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 3, dtype=dtype))
    _, received = decode(encode(values_of({"w": parameter}), [parameter]))
    assert not received["w"].requires_grad
    assert torch.equal(received["w"], torch.ones(2, 3, dtype=dtype))


def test_context_is_a_key_that_survives_the_wire() -> None:
    message, _ = decode(encode(Values("trainer:1:2/3", CONTEXT, 7, [])))
    assert isinstance(message, Values)
    assert {CONTEXT: "pass"}[message.context] == "pass"
    with pytest.raises(AttributeError):
        message.context.step = 41  # type: ignore[misc]


@pytest.mark.parametrize("dtype", DTYPES)
def test_neither_end_copies_a_large_contiguous_tensor(dtype: str) -> None:
    tensor = torch.zeros(1 << 16, 3, dtype=DTYPES[dtype])
    header, frame = encode(values_of({"x": tensor}), [tensor])
    tensor.fill_(1)
    buffer = bytearray(frame)
    assert any(buffer), "the frame shows what the tensor holds now"
    _, received = decode([header, buffer])
    before = received["x"].clone()
    buffer[:] = bytes(len(buffer))
    assert dtype == "bool" or not torch.equal(received["x"], before), "the tensor shows what the frame holds now"


@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), st.sampled_from([0, 1, 7, 8191, 70_000])), max_size=6))
def test_small_tensors_come_in_one_piece_of_memory_and_leave_the_frames(kinds: list[tuple[str, int]]) -> None:
    sent = {f"t{k}": torch.arange(size).to(DTYPES[dtype]) for k, (dtype, size) in enumerate(kinds)}
    header, *frames = map(bytearray, encode(values_of(sent), list(sent.values())))
    _, received = decode([header, *frames])
    small = [frame for frame in frames if len(frame) < 1 << 16]
    for frame in small:
        frame[:] = bytes(len(frame))
    assert all(torch.equal(received[name], value) for name, value in sent.items())
    places = [t.data_ptr() for name, t in received.items() if 0 < t.nbytes < 1 << 16 and t.dtype != torch.bool]
    assert not places or max(places) - min(places) <= sum(len(frame) + 64 for frame in small)


def test_tensor_at_an_odd_address_is_copied_to_an_aligned_one() -> None:
    sent = torch.arange(6, dtype=torch.float64)
    header, frame = encode(values_of({"x": sent}), [sent])
    shifted = memoryview(bytearray(b"?" + bytes(frame)))[1:]
    _, received = decode([header, shifted])
    assert received["x"].data_ptr() % 8 == 0
    assert torch.equal(received["x"], sent)


def test_read_only_frame_gives_a_tensor_without_a_warning() -> None:
    sent = torch.arange(6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, received = decode([bytes(frame) for frame in encode(values_of({"x": sent}), [sent])])
    assert torch.equal(received["x"], sent)


def test_a_byte_that_is_no_bool_becomes_true() -> None:
    _, received = decode([encode(spec((3,), "bool"))[0], bytearray([0, 1, 77])])
    assert received["x"].view(torch.uint8).tolist() == [0, 1, 1]


def test_dtype_that_messages_do_not_carry_is_refused_by_name() -> None:
    with pytest.raises(RunError, match=r"^blob 'phase' is torch.complex64, a message carries float32, .*: cast it"):
        spec_of("phase", torch.zeros(2, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("shape", "dtype", "frame_bytes", "match"),
    [
        ((2, 3), "float32", 20, r"from trainer:1:2/3 brings blob x: 20 bytes are not float32\[2,3\]$"),
        ((2, 3), "float32", 28, "28 bytes are not"),
        ((), "int64", 0, r"0 bytes are not int64\[\]$"),
        ((3,), "int64", 0, "0 bytes are not"),
        ((0, 3), "int64", 8, "8 bytes are not"),
        ((-1,), "float32", 4, r"4 bytes are not float32\[-1\]$"),
        ((-1, -1), "float32", 4, "4 bytes are not"),
        ((-2, -3), "float32", 24, "24 bytes are not"),
        ((2**40, 2**40), "float32", 4, "4 bytes are not"),
        ((2**62, 4), "float32", 0, "0 bytes are not"),
        ((0, 2**62, 2**62), "float32", 0, "0 bytes are not"),
        ((2**63, 0), "float32", 0, "0 bytes are not"),
        ((1,) * 65, "float32", 4, "4 bytes are not"),
        ((1,) * 9999, "float32", 4, "4 bytes are not"),
        ((1,), "complex64", 8, r"brings blob x of unknown dtype complex64$"),
        ((1,), "o\nbject", 8, r"brings blob x of unknown dtype o\\nbject$"),
    ],
)
def test_tensor_that_disagrees_with_its_header_is_refused(
    shape: tuple[int, ...], dtype: str, frame_bytes: int, match: str
) -> None:
    assert_is_one_line([encode(spec(shape, dtype))[0], bytearray(frame_bytes)], match)


def header(*parts: bytes) -> list[bytes]:
    return [b"".join(parts)]


def packed(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


BEAT = b"\x93" + packed("beat") + packed("trainer:0:0")
VALUES = ["values", "trainer:0:0/0", [0, 0, 0, 0]]


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
        (header(packed([*VALUES, -1, []])), "Expected `int` >= 0"),
        (header(packed([*VALUES, 2**40, []])), "Expected `int` <"),
        (header(packed([*VALUES, 1, [["x", "int8", [1.5]]]])), "Expected `int`, got `float`"),
        (header(packed(["ready", "a"]), b"tail"), "trailing characters"),
        (header(BEAT, b"\x81\xa1a", b"\x91" * 100_000), "recursion"),
        (header(BEAT, b"\x81\xa1a\x81\x80\x01"), "hashable"),
        (header(b"\x92", packed("ready"), b"\xa1\xff"), "codec can't decode"),
        (header(BEAT, b"\x81\xa1a\xdd\x7f\xff\xff\xff"), "truncated"),
        (header(BEAT, b"\xdf\xff\xff\xff\xff"), "truncated"),
        (header(b"\x92", packed("ready"), b"\xdb\xff\xff\xff\xff"), "truncated"),
        ([packed(["ready", "a"]), b"x"], "a message Ready from a announces 0 tensors and brings 1$"),
        ([packed(["order", "stop"]), b"x"], "a message Order announces 0 tensors and brings 1$"),
        (encode(spec((0,))), "a message Values from trainer:1:2/3 announces 1 tensors and brings 0$"),
        ([*encode(spec((0,))), b"", b""], "announces 1 tensors and brings 2$"),
        (
            [packed([*VALUES, 1, [["x", "int8", [1]], ["x", "int8", [1]]]]), b"a", b"b"],
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
    assert received_bytes(frames) in (-1, sum(map(len, frames[1:])))


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_a_message_with_changed_bytes_is_read_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    sent = {"a": torch.arange(12).reshape(3, 4), "b": torch.ones(5, dtype=torch.bfloat16), "c": torch.zeros(0, 2)}
    frames = writable(encode(values_of(sent), list(sent.values())))
    for _ in range(rng.randint(1, 4)):
        frames[0][rng.randrange(len(frames[0]))] = rng.randrange(256)
    assert received_bytes(frames) in (-1, sum(map(len, frames[1:])))
