"""Which values travel encoded: for each one, what it saves on the network against the CPU that it takes (HT 4.2).

The paper leaves open which values to compress. Here a value is encoded where that eases the bottleneck of the group, and the search
for a placement then works with what really travels.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from htrain.costs.seconds import PYTHON_SHARE, locked_seconds, op_seconds
from htrain.net.net import Blob, Net, Op
from htrain.net.placement import Decision, Encoding, Search
from htrain.ops.codec import can_encode, codec_of
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.tagging.workload import CPU, LOCK, MEMORY, RECEIVED, SENT, Floats, Ints, Workload

Flags = NDArray[np.bool_]
Placer = Callable[[Workload], tuple[list[Decision], Search, Ints]]
_ROUNDS = 3  # turns of placing and encoding; they end before, where nothing changes
_TIE = 1e-9  # relative: loads that differ by rounding are the same


def allowed_encodings(net: Net, options: Options) -> dict[str, Encoding]:
    """The strongest encoding that `options` allow each blob of a train net, for those that it makes smaller.

    The net's outputs stay exact, and the reader's columns are never quantized: those of one example may be of very different sizes.
    Requires: gradients are in the net.
    """
    short = options.compression
    if short.compress == "never":
        return {}
    seed = next((i for i, op in enumerate(net.ops) if op.type == "GradientSeed"), len(net.ops))
    wanted: dict[str, Encoding] = {}
    if short.activation_dtype != "float32":
        wanted.update(dict.fromkeys(net.inputs, "bfloat16"))
        wanted.update({o: short.activation_dtype for op in net.ops[:seed] for o in op.outputs})
    gradients = [o for op in net.ops[seed + 1 :] for o in op.outputs]
    if short.gradient_dtype == "bfloat16":
        wanted.update(dict.fromkeys(gradients, "bfloat16"))
    kept = set(net.outputs)
    return {n: e for n, e in wanted.items() if n not in kept and can_encode(net.blobs[n], e, options)}


@dataclass(frozen=True)
class Encodable:
    """What a workload's values would ask if they were encoded: `possible[v]`, bytes per example, CPU seconds at each end, and those under the lock."""

    possible: Flags
    value_bytes: Floats
    value_cpu: Floats
    value_lock: Floats


def encodable(
    net: Net, workload: Workload, allowed: Mapping[str, Encoding], cluster: Cluster, options: Options
) -> Encodable:
    """The encoded form of every value that only trainers and group PSs make and read."""
    in_group = (workload.made_on < workload.num_places) & ~workload.read_on[:, workload.num_places :].any(1)
    possible = in_group & np.array([name in allowed for name in workload.values], bool)
    sizes, cpu, lock = workload.value_bytes.copy(), workload.value_cpu.copy(), workload.value_lock.copy()
    for v in np.flatnonzero(possible).tolist():
        blob = replace(net.blobs[workload.values[v]], name="x")
        num_bytes, seconds, locked = _costs(blob, allowed[workload.values[v]], cluster, options)
        saved = (num_bytes - sizes[v]) / cluster.message_bandwidth
        cpu[v] += seconds + saved
        lock[v] += locked + saved * PYTHON_SHARE
        sizes[v] = num_bytes
    return Encodable(possible, sizes, cpu, lock)


@functools.cache
def _costs(blob: Blob, encoding: Encoding, cluster: Cluster, options: Options) -> tuple[float, float, float]:
    """Bytes of an encoded example, the CPU seconds to encode and decode it and to carry its further parts, at each end in the mean, and those of
    them under Python's lock."""
    codec = codec_of(blob, encoding)
    encode = Op(codec.encode, ("x",), (), codec.encode_attrs)
    decode = Op(codec.decode, (), ("x",), codec.decode_attrs)
    batch = options.batch_size
    seconds = (
        op_seconds(encode, (blob,), codec.parts, cluster, batch),
        op_seconds(decode, codec.parts, (blob,), cluster, batch),
    )
    locked = locked_seconds(encode, seconds[0], cluster) + locked_seconds(decode, seconds[1], cluster)
    more = (len(codec.parts) - 1) * cluster.message_tensor_nanoseconds * 1e-9
    return codec.num_bytes(batch) / batch, (sum(seconds) / 2 + more) / batch, (locked / 2 + more * PYTHON_SHARE) / batch


def encoded(workload: Workload, forms: Encodable, chosen: Flags) -> Workload:
    """The workload whose `chosen` values travel encoded."""
    return replace(
        workload,
        value_bytes=np.where(chosen, forms.value_bytes, workload.value_bytes),
        value_cpu=np.where(chosen, forms.value_cpu, workload.value_cpu),
        value_lock=np.where(chosen, forms.value_lock, workload.value_lock),
    )


def choose(workload: Workload, forms: Encodable, places: Ints, chosen: Flags) -> Flags:
    """Encode one more value, or one less, as long as that eases the bottleneck of a placement, beginning with `chosen`."""
    chosen = chosen.copy()
    deltas = _deltas(workload, forms, places)
    loads = encoded(workload, forms, chosen).loads(places)[:, :MEMORY]
    while True:
        best = _ranks(workload, loads[None])[0]
        sign = np.where(chosen, -1.0, 1.0)[:, None, None]
        ranks = _ranks(workload, loads + sign * deltas)
        ranks[~forms.possible] = np.inf
        v = int(np.lexsort((ranks[:, 1], ranks[:, 0]))[0]) if len(ranks) else 0
        if not len(ranks) or not _below(ranks[v], best):
            return chosen
        loads = loads + sign[v] * deltas[v]
        chosen[v] = not chosen[v]


def _below(rank: Floats, other: Floats) -> bool:
    slack = _TIE * np.abs(other)
    return bool(rank[0] < other[0] - slack[0] or (rank[0] <= other[0] + slack[0] and rank[1] < other[1] - slack[1]))


def _ranks(workload: Workload, loads: Floats) -> Floats:
    """ranks[n,2] of loads[n,d,4], lower is better: the seconds of the busiest device, and a sum that grows with the
    number of devices that are nearly as busy.
    """
    seconds = loads / workload.capacity[:, :MEMORY]
    busiest = seconds.max((1, 2))
    if workload.host_cores:
        busiest = np.maximum(busiest, loads[:, :, 0].sum(1) / workload.host_cores)
    spread = ((seconds[:, : workload.num_places] / np.maximum(busiest, 1e-30)[:, None, None]) ** 4).sum(
        (1, 2)
    ) * busiest
    return np.stack([busiest, spread], 1)


def _deltas(workload: Workload, forms: Encodable, places: Ints) -> Floats:
    """deltas[v, d, 4]: what encoding value v adds to CPU, bytes in, bytes out and the lock of each device."""
    crosses, made = workload.crossings(places)
    copies, every = crosses.sum(1), np.arange(len(made))
    saved = forms.value_bytes - workload.value_bytes
    deltas = np.zeros((len(made), len(workload.devices), MEMORY))
    deltas[:, :, RECEIVED] = crosses * saved[:, None]
    deltas[every, made, SENT] += copies * saved
    for dimension, more in (
        (CPU, forms.value_cpu - workload.value_cpu),
        (LOCK, forms.value_lock - workload.value_lock),
    ):
        deltas[:, :, dimension] = crosses * more[:, None]
        deltas[every, made, dimension] += copies * more
    return deltas


def place_encoded(
    place: Placer, workload: Workload, forms: Encodable, *, always: bool
) -> tuple[list[Decision], Search, Flags]:
    """A placement and the values that travel encoded, found in turns from nothing encoded and from everything; the faster one.

    With `always`, every value that can be is encoded.
    """
    if always or not forms.possible.any():
        decisions, search, _ = place(encoded(workload, forms, forms.possible))
        return decisions, search, forms.possible
    found = []
    for chosen in (np.zeros_like(forms.possible), forms.possible):
        for _ in range(_ROUNDS):
            decisions, search, places = place(encoded(workload, forms, chosen))
            found.append((search.seconds, int(chosen.sum()), decisions, search, chosen))
            better = choose(workload, forms, places, chosen)
            if (better == chosen).all():
                break
            chosen = better
    _, _, decisions, search, chosen = min(found, key=lambda f: f[:2])
    return decisions, search, chosen
