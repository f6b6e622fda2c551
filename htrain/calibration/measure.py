"""The rates that the cost model counts with, measured on this host: CPU seconds of one thread, by the kernels that runs use.

Each rate is what `htrain.costs.seconds` divides by: an op's own count of flops or bytes over the seconds that its kernel took.
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import torch

from htrain.errors import ClusterError
from htrain.executor.engine.context import Context
from htrain.executor.engine.program import Values as PassValues
from htrain.executor.engine.program import build_program
from htrain.executor.transport.port import Inbox, Network, Outbox
from htrain.executor.transport.wire import Values
from htrain.net.net import B, Blob, Init, Op, Parameter
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder
from htrain.sync.index import find_all, new_index, put_all

BATCHES = (128, 512, 2048)
LAYERS = ((16, 64), (64, 64), (256, 64), (512, 256), (512, 512), (1024, 1024))  # K, N of FCs in recommendation models
_TABLE_ROWS, _IDS, _DIM = 1_000_000, 1000, 32  # a batch's ids of a table
_CACHE_ROWS, _KEPT = 500_000, 16  # numbers that are kept beside a row
_STREAM = (2048, 512)  # 4 MiB: an activation, beyond the caches of a core
_CHAIN = 200
_MESSAGES = 150
_TENSORS = 27
_TENSOR_BYTES = 8192  # a batch's rows of a table, or so
_PAUSE_SECONDS = 1e-3
_LARGE_BYTES = 1 << 20
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Measured:
    """`rates` are the fields of a cluster file; `gemms[dtype]` the flops per second of an FC [B,K] x [K,N] in that dtype by (B, K, N)."""

    rates: Mapping[str, int]
    gemms: Mapping[str, Mapping[Shape, float]]

    def gemms_by_name(self) -> dict[str, dict[str, float]]:
        """`gemms` for JSON: shapes as BxKxN."""
        return {
            dtype: {"x".join(map(str, s)): rate for s, rate in rates.items()} for dtype, rates in self.gemms.items()
        }

    def gemm_table(self) -> str:
        """A line for each shape of an FC, GFLOP/s in each dtype."""
        lines = [f"{'FC: batch, inputs, outputs':<28}" + "".join(f"{dtype + ' GFLOP/s':>18}" for dtype in self.gemms)]
        for shape in next(iter(self.gemms.values())):
            rates = "".join(f"{rates[shape] / 1e9:>18,.1f}" for rates in self.gemms.values())
            lines.append(f"{', '.join(map(str, shape)):<28}{rates}")
        return "\n".join(lines)


def measure_host(*, seconds: float = 20.0, on_step: Callable[[str], None] = lambda text: None) -> Measured:
    """Measure this host for about `seconds`; `on_step` hears what is being measured, and what came of it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(seconds / 60, on_step)
    finally:
        torch.set_num_threads(threads)


def _measure(each: float, on_step: Callable[[str], None]) -> Measured:
    gemms: dict[str, dict[Shape, float]] = {dtype: {} for dtype in _GEMMS}
    for dtype, type in _GEMMS.items():
        for batch in BATCHES:
            for k, n in LAYERS:
                gemms[dtype][batch, k, n] = 2.0 * batch * k * n / _seconds_of(_gemm(type, batch, k, n), each * 0.5)
        on_step(f"GEMM {dtype}: up to {max(gemms[dtype].values()) / 1e9:,.0f} GFLOP/s")
    flops, half = fit_gemm(gemms["float32"])
    rates: dict[str, float] = {"core_flops": flops, "gemm_half_size": half}
    for field, dtype in (("core_bf16_flops", "bfloat16"), ("core_int8_flops", "int8")):
        rates[field] = statistics.median(rate * (min(s) + half) / min(s) for s, rate in gemms[dtype].items())
    for field, measure in _RATES.items():
        rates[field] = measure(each * 2)
        on_step(f"{field}: {rates[field] / 1e9:,.2f} G/s")
    rates["core_key_nanoseconds"] = key_seconds(each * 2) * 1e9
    on_step(f"finding a key: {rates['core_key_nanoseconds']:,.0f} ns")
    rates["op_nanoseconds"] = _op_seconds(each * 2) * 1e9
    on_step(f"starting an op: {rates['op_nanoseconds']:,.0f} ns")
    message, tensor, bandwidth = _message_costs()
    rates |= {
        "message_nanoseconds": message * 1e9, "message_tensor_nanoseconds": tensor * 1e9, "message_bandwidth": bandwidth
    }  # fmt: skip
    on_step(
        f"a message: {message * 1e6:,.0f} us at each end and {tensor * 1e6:,.1f} us a tensor, {bandwidth / 1e9:,.2f} GB/s"
    )
    return Measured({name: max(1, round(rate)) for name, rate in rates.items()}, gemms)


def fit_gemm(rates: Mapping[Shape, float]) -> tuple[float, float]:
    """R and h of rate(s) = R * s / (s + h), s the smallest side: least squares of 1 / rate, which is linear in 1 / s, by relative error."""
    smallest = np.array([min(shape) for shape in rates], float)
    rate = np.array(list(rates.values()), float)
    terms = (
        np.stack([np.ones_like(smallest), 1 / smallest], 1) * rate[:, None]
    )  # relative: each row is divided by its 1 / rate
    (inverse, slope), *_ = np.linalg.lstsq(terms, np.ones_like(rate), rcond=None)
    if inverse <= 0 or slope < 0:  # noise: no fall-off is seen
        return float(np.max(rate)), 1.0
    return float(1 / inverse), float(max(1.0, slope / inverse))


def _seconds_of(run: Callable[[], object], budget: float) -> float:
    """CPU seconds of one call: the median over rounds of at least a millisecond, within a budget of seconds; of a single one that takes longer than that, as
    the product of a large FC in a precision that the processor has no instructions for."""
    run()
    began = time.thread_time()
    run()
    once = max(time.thread_time() - began, 1e-7)
    if once > budget:
        return once
    calls = max(1, int(1e-3 / once))
    rounds = max(3, min(30, int(budget / (once * calls))))
    found = []
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(calls):
            run()
        found.append((time.thread_time() - began) / calls)
    return statistics.median(found)


def _gemm(type: str, batch: int, k: int, n: int) -> Callable[[], object]:
    """An FC with all that its kernel does: of low precision with the conversion of x and w, which plans do in every step."""
    x, w, bias = torch.randn(batch, k), torch.randn(n, k), torch.randn(n)
    return lambda: OPS[type].kernel(x, w, bias)


# FCRelu is made by the library that fused nets call; FC, which has PyTorch's bits, may run at half its rate
_GEMMS = {"float32": "FCRelu", "bfloat16": "FCBfloat16", "int8": "FCInt8"}


def _rate_of(
    type: str, blobs: tuple[Blob, ...], outputs: tuple[Blob, ...], run: Callable[[], object], budget: float
) -> float:
    """Bytes, as the op's own cost counts them, over seconds."""
    op = Op(type, tuple(b.name for b in blobs), tuple(b.name for b in outputs), {"weighted": False})
    return OPS[type].cost(op, blobs, outputs, 1).bytes / _seconds_of(run, budget)


def _stream(budget: float) -> float:
    x, y = torch.randn(_STREAM), torch.randn(_STREAM)
    blob = Blob("x", _STREAM, "float32")
    return _rate_of("Add", (blob, blob), (blob,), lambda: OPS["Add"].kernel(x, y), budget)


def _table() -> tuple[torch.Tensor, Iterator[torch.Tensor], torch.Tensor]:
    """A table in memory that has been written, ids that come back only after most of it has been read, and rows."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randperm(_TABLE_ROWS, generator=generator).split(_IDS)
    return torch.ones(_TABLE_ROWS, _DIM), cycle(ids), torch.randn(_IDS, _DIM, generator=generator)


_ROWS = (
    Blob("table", (_TABLE_ROWS, _DIM), "float32"),
    Blob("ids", (_IDS,), "int64"),
    Blob("rows", (_IDS, _DIM), "float32"),
)


def _gather(budget: float) -> float:
    table, ids, _ = _table()
    return _rate_of("Lookup", _ROWS[:2], _ROWS[2:], lambda: OPS["Lookup"].kernel(table, next(ids), first_row=0), budget)


def _scatter(budget: float) -> float:
    table, ids, rows = _table()
    state, kernel = torch.ones(_TABLE_ROWS, _DIM), OPS["SparseAdagrad"].kernel
    blobs = (_ROWS[0], _ROWS[0], *_ROWS[1:])

    def run() -> None:
        kernel(table, state, next(ids), rows, lr=0.01, eps=1e-8, first_row=0)

    return _rate_of("SparseAdagrad", blobs, (), run, budget)


def _quantize(budget: float) -> float:
    x = torch.randn(512, 256)
    blob = Blob("x", (512, 256), "float32")
    parts = (Blob("q", (512, 256), "uint8"), Blob("r", (512, 2), "float32"))
    return _rate_of("QuantizeRows", (blob,), parts, lambda: OPS["QuantizeRows"].kernel(x), budget)


def _batched(budget: float) -> float:
    """The products of each example's features, as DLRM's interaction has them."""
    features, num_features = torch.randn(512, 27, _DIM), 27
    positions = torch.tensor([i * num_features + j for i in range(num_features) for j in range(i)])
    definition = OPS["PairwiseDots"]
    assert definition.bind
    kernel = definition.bind(None, positions)
    return 2.0 * 512 * len(positions) * _DIM / _seconds_of(lambda: kernel(features), budget)


_RATES: Mapping[str, Callable[[float], float]] = {
    "core_batched_flops": _batched,
    "core_bandwidth": _stream,
    "core_gather_bandwidth": _gather,
    "core_scatter_bandwidth": _scatter,
    "core_quantize_bandwidth": _quantize,
}


def key_seconds(budget: float) -> float:
    """CPU seconds to find a key in the index of a large cache, and to touch what the cache keeps of its row, within a budget of seconds."""
    everything = np.random.default_rng(0).permutation(_CACHE_ROWS)
    index, slots, kept = new_index(_CACHE_ROWS), np.empty(_IDS, np.int64), np.ones((_CACHE_ROWS, _KEPT), np.int32)
    put_all(index, everything, 0)
    keys = cycle(np.random.default_rng(1).permutation(everything).reshape(-1, _IDS))

    def run() -> None:
        find_all(index, next(keys), slots)
        kept[slots, 0] += 1

    return _seconds_of(run, budget) / _IDS


def _op_seconds(budget: float) -> float:
    """Seconds to start an op: those of a stage of tiny lookups, FCs and activations, as the engine runs it, for each of its ops."""
    builder = NetBuilder("tiny")
    x, ids = builder.input(Blob("x", (B, 4), "float32")), builder.input(Blob("ids", (B,), "int64"))
    builder.parameter(Parameter("w", (4, 4), "float32", "weight", Init("constant", (0.0,))))
    outputs: list[str] = []
    for _ in range(_CHAIN // 4):
        (x,) = builder.add("FC", (x, "w"))
        (x,) = builder.add("Relu", (x,))
        unique, _places = builder.add("Dedupe", (ids,), attrs={"padding_idx": -1})
        outputs += builder.add("Lookup", ("w", unique), attrs={"first_row": 0})
    program = build_program(builder.build((x, *outputs)), {"w": torch.zeros(4, 4)})
    stage, inputs = program.stages[0], {"x": torch.zeros(1, 4), "ids": torch.zeros(1, dtype=torch.int64)}
    with torch.no_grad():
        return _seconds_of(lambda: stage.run(PassValues(dict(inputs), {}), _send_nothing, 1), budget) / len(stage.ops)


def _send_nothing(*arguments: object) -> None:
    raise AssertionError("the chain has no Send")


def _message_costs() -> tuple[float, float, float]:
    """CPU seconds of a message, and of each tensor in it, at each end, and the bytes that a second of CPU takes to or from a socket, over
    TCP loopback."""
    there = Network("tcp")
    here = Network("tcp", token=there.token)  # within one, values would be handed over
    try:
        inbox = there.inbox("b")
        outbox = here.outbox({"b": inbox.address})
        small, many, large = (
            _message_cpu(outbox, inbox, count, size)
            for count, size in ((1, 256), (_TENSORS, _TENSOR_BYTES), (1, _LARGE_BYTES))
        )
        outbox.close()
        inbox.close()
    finally:
        here.close()
        there.close()
    bandwidth = 2 * _LARGE_BYTES / max(large - small, 1e-9)
    tensor = max((many - small) / (_TENSORS - 1) / 2 - _TENSOR_BYTES / bandwidth, 0.0)
    return max(small / 2 - tensor, 0.0), tensor, bandwidth


def _message_cpu(outbox: Outbox, inbox: Inbox, num_tensors: int, num_bytes: int) -> float:
    """CPU seconds of this process for one message, with the threads that move bytes and one that waits for messages: as in a run, each
    goes to sleep between messages and has to be woken."""
    names, tensors = [f"tensor_{k}" for k in range(num_tensors)], [torch.zeros(num_bytes // 4)] * num_tensors
    found = []
    for _ in range(4):
        received: list[bool] = []
        receiver = threading.Thread(target=_receive, args=(inbox, received))
        receiver.start()
        began = time.process_time()
        for number in range(_MESSAGES):
            outbox.send_values("b", Values("a", Context(0, 0, 0, number), 1), names, tensors)
            time.sleep(_PAUSE_SECONDS)
        receiver.join()
        if not all(received):
            raise ClusterError(
                "a message over the loopback did not arrive in 10 s: is this machine too busy to measure?"
            )
        found.append((time.process_time() - began) / _MESSAGES)
    return statistics.median(found[1:])


def _receive(inbox: Inbox, received: list[bool]) -> None:
    while len(received) < _MESSAGES and all(received):
        received.append(inbox.receive(10.0) is not None)
