"""Memory that each role of a device needs: one account of it, for the search, for what `htrain show` says, for the checks and the refusals.

    own          the process itself, with its threads and sockets (htrain.spec.footprint)
    weights      dense weights, rows of tables and their marks, the centres of a dense PS
    state        the optimizer's
    caches       the slots of caches, and what stands beside them
    values       what ops make, for every step that may be under way at once: activations, gradients, rows; and batches that are read ahead
    messages     what comes in from other devices, for as many steps
    sync         snapshots and differences of the background sync, buckets of collectives

Rows by distinct id count as often as is to be expected. It is the most that may be there at once, counted on the train net before anything is
fused. Tables that are mapped from files take what the machine has to spare, and count nothing but their marks.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import fields

from htrain.costs.loads import MemoryUse
from htrain.costs.roles import batches_read_ahead, contexts_of
from htrain.net.names import SPARSE_PS, TRAINER, WORKERS, role_of
from htrain.net.net import Net, Op
from htrain.net.placement import spread
from htrain.ops import OPS
from htrain.ops.collective import gathered_bytes
from htrain.sizes import memory_text
from htrain.spec.centres import hosts_of, in_group
from htrain.spec.cluster import Cluster
from htrain.spec.footprint import mark_bytes, role_bytes
from htrain.spec.options import Options


def memory_of(train: Net, tags: Mapping[int, str], cluster: Cluster, options: Options) -> dict[str, MemoryUse]:
    """What each device of the cluster holds, of the ops that `tags` puts somewhere, by position; messages are not in it.

    Requires: a train net with the blobs that are to be expected (htrain.costs.expected).
    """
    found = {device: MemoryUse(own=role_bytes(cluster.processes_of(device))) for device in cluster.devices}
    inputs = sum(train.blobs[name].num_bytes(options.batch_size) for name in train.inputs)
    ahead = contexts_of(TRAINER, cluster, options) + options.holder.batch_copies * batches_read_ahead(options)
    found[TRAINER] += MemoryUse(values=inputs * ahead)
    for device, held in _parameters(train, tags, cluster, options):
        found[device] += held
    for index, device in tags.items():
        home = TRAINER if device == WORKERS else device
        found[home] += _op(train, train.ops[index], device, cluster, options)
    for device, num_bytes in _centers(train, tags, cluster, options).items():
        told = (
            2 * cluster.groups * num_bytes if options.dense_sync.encodes else 0
        )  # what each group is known to have, and what it is owed
        found[device] += MemoryUse(
            weights=options.dense_sync.centre_copies * num_bytes, sync=2 * cluster.groups * num_bytes + told
        )
    return found


def made_bytes(train: Net, op: Op, cluster: Cluster, options: Options) -> int:
    """Bytes that an op makes in a step; a view makes nothing."""
    if OPS[op.type].view:
        return 0
    made = sum(train.blobs[name].num_bytes(options.batch_size) for name in op.outputs)
    return gathered_bytes(op, made, cluster.groups * cluster.trainers)


def largest_made(net: Net | None, batch_size: int) -> int:
    """Bytes of the largest value that an op of a net makes in a step, or of its longest message, whose values lie in one piece."""
    if net is None:
        return 0
    pieces: Counter[Hashable] = Counter()
    for op in net.ops:
        transfer = OPS[op.type].transfer
        if transfer in ("send", "receive"):
            (name,) = op.inputs or op.outputs
            pieces[transfer, op.attrs["peer"], op.attrs["message"]] += net.blob(name).num_bytes(batch_size)
        elif not OPS[op.type].view:
            pieces.update({name: net.blob(name).num_bytes(batch_size) for name in op.outputs})
    return max(pieces.values(), default=0)


def synced_bytes(train: Net, name: str, cluster: Cluster, options: Options) -> int:
    """Bytes of a parameter that the background sync exchanges: those of a trained weight, where there are several groups."""
    parameter = train.parameters[name]
    is_synced = options.dense_sync.has_rounds(cluster) and parameter.is_replicated
    return parameter.num_bytes if is_synced else 0


def _parameters(
    train: Net, tags: Mapping[int, str], cluster: Cluster, options: Options
) -> Iterator[tuple[str, MemoryUse]]:
    """Each parameter, on the device of the ops that touch it."""
    homes = {
        name: device for index, device in tags.items() for name in train.ops[index].inputs if name in train.parameters
    }
    for name, device in homes.items():
        parameter = train.parameters[name]
        is_table = parameter.kind == "table"
        marks = mark_bytes(parameter.shape[0], parameter.num_bytes, cluster.processes_of(device)) if is_table else 0
        if options.sparse_sync.store == "mapped" and train.holds_rows(parameter):
            yield device, MemoryUse(weights=marks)
            continue
        kind = {"cache": "caches", "state": "state"}.get(parameter.kind, "weights")
        yield (
            device,
            MemoryUse(
                **{kind: parameter.num_bytes + marks},
                sync=(2 + options.dense_sync.encodes) * synced_bytes(train, name, cluster, options),
            ),
        )


def _op(train: Net, op: Op, device: str, cluster: Cluster, options: Options) -> MemoryUse:
    made = made_bytes(train, op, cluster, options) * contexts_of(device, cluster, options)
    kept = OPS[op.type].keeps(op, [train.blob(name) for name in op.inputs], options.batch_size)
    return MemoryUse(values=made, caches=int(kept), sync=made if device == WORKERS else 0)


def _centers(train: Net, tags: Mapping[int, str], cluster: Cluster, options: Options) -> dict[str, int]:
    """Bytes of the weights whose centre is on each device: a dense PS, or, where each group has a share of them, the holder with the largest share."""
    hosts = hosts_of(options.dense_sync, cluster)
    synced = {
        name: num_bytes for name in train.parameters if (num_bytes := synced_bytes(train, name, cluster, options))
    }
    if not hosts or not in_group(hosts[0]):
        return {host: total for host, total in zip(hosts, _totals(synced, len(hosts)), strict=True) if total}
    homes = {name: device for index, device in tags.items() for name in train.ops[index].inputs if name in synced}
    own = {device: {name: synced[name] for name, home in homes.items() if home == device} for device in homes.values()}
    return {device: max(_totals(num_bytes, len(hosts))) for device, num_bytes in own.items()}


def _totals(num_bytes: Mapping[str, int], count: int) -> list[int]:
    """The bytes in each of `count` places over which these are spread."""
    totals = [0] * count
    for name, place in spread(num_bytes, count).items():
        totals[place] += num_bytes[name]
    return totals


def held_steps(home: str, reader: str, cluster: Cluster, options: Options) -> int:
    """Steps of which `reader` may hold what `home` sends it: a trainer that looks ahead has the rows of the next one, too."""
    ahead = 2 if role_of(home) == SPARSE_PS and role_of(reader) == TRAINER and options.looks_ahead else 1
    return ahead * contexts_of(reader, cluster, options)


def messages_of(train: Net, tags: Mapping[int, str], cluster: Cluster, options: Options) -> dict[str, MemoryUse]:
    """What each device holds of values that other devices make, one copy for each value and reader.

    Requires: every op has a tag.
    """
    homes = dict.fromkeys(train.inputs, TRAINER)
    homes |= {name: tags[index] for index, op in enumerate(train.ops) for name in op.outputs}
    crossings = {(name, tags[index]) for index, op in enumerate(train.ops) for name in op.inputs if name in homes}
    crossings |= {(name, TRAINER) for name in train.outputs}
    found: dict[str, int] = {}
    for name, reader in crossings:
        home, reader = (TRAINER if device == WORKERS else device for device in (homes[name], reader))
        if home != reader:
            held = train.blobs[name].num_bytes(options.batch_size) * held_steps(home, reader, cluster, options)
            found[reader] = found.get(reader, 0) + held
    return {device: MemoryUse(messages=num_bytes) for device, num_bytes in found.items()}


def memory_of_train(train: Net, tags: Mapping[int, str], cluster: Cluster, options: Options) -> dict[str, MemoryUse]:
    """What each device holds of a train net whose every op has a tag, messages included."""
    messages = messages_of(train, tags, cluster, options)
    return {d: use + messages.get(d, MemoryUse()) for d, use in memory_of(train, tags, cluster, options).items()}


_TOLD = {
    "own": "the process itself", "weights": "weights and rows", "state": "optimizer state", "caches": "caches",
    "values": "values of the steps under way", "messages": "messages", "sync": "sync buffers",
}  # fmt: skip
_FEWER = "a smaller --batch-size or --net-replicas"
_CURES = {
    "trainer": {"weights": "add sparse PSs", "state": "add sparse PSs", "caches": "a smaller cache"},
    "group_ps": dict.fromkeys(("weights", "state", "sync"), "add group PSs"),
    "sparse_ps": dict.fromkeys(("weights", "state"), "add sparse PSs, --table-store mapped"),
    "dense_ps": dict.fromkeys(("weights", "sync"), "add dense PSs"),
}


def use_text(use: MemoryUse) -> str:
    """The use of memory in words, the largest first: `1.2 GiB values of the steps under way, 320.0 MiB the process
    itself`.
    """
    parts = sorted(((getattr(use, f.name), f.name) for f in fields(use)), key=lambda part: -part[0])
    return ", ".join(f"{memory_text(size)} {_TOLD[name]}" for size, name in parts if size)


def too_large_text(device: str, use: MemoryUse, limit_bytes: int) -> str:
    """Why a device cannot hold its share, in words: what takes the room, and what would help."""
    role = role_of(device)
    largest = max((f.name for f in fields(use) if f.name != "own"), key=lambda name: getattr(use, name))
    cure = "" if use.own >= limit_bytes else f"{_CURES[role].get(largest, _FEWER)}, or "
    return (
        f"'{device}' needs {memory_text(use.total)} of memory ({use_text(use)}), {role}_memory is {memory_text(limit_bytes)}: "
        f"{cure}raise {role}_memory"
    )
