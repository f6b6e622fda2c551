"""Who sends what to whom: messages of a step and bytes of an example on each edge between devices, background sync included."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from htrain.executor.record.measured import predicted_edges
from htrain.net.names import DENSE_PS, GROUP_PS, SPARSE_PS, TRAINER, device_at, number_of, role_of
from htrain.net.net import Net
from htrain.plan.plan import Plan

_MOST_LONG_HEADS = 12  # columns; a wider matrix has short heads
_DARKEST = 0.6  # the text of a cell stays readable


@dataclass(frozen=True)
class Edge:
    """`messages` of a step, `num_bytes` of an example, from `source` to `target`; a sync counts by its share of a step."""

    source: str
    target: str
    messages: float
    num_bytes: float

    @property
    def messages_text(self) -> str:
        """The number of messages: whole where it is."""
        return f"{self.messages:.0f}" if self.messages == int(self.messages) else f"{self.messages:.2f}"


def edges_of(plan: Plan) -> tuple[Edge, ...]:
    """Every edge, that with the most bytes first."""
    messages = _messages(plan)
    edges = predicted_edges(plan)
    found = (Edge(*pair, messages.get(pair, 0.0), num_bytes) for pair, num_bytes in edges.items())
    return tuple(sorted(found, key=lambda edge: (-edge.num_bytes, edge.source, edge.target)))


def _messages(plan: Plan) -> Mapping[tuple[str, str], float]:
    count: dict[tuple[str, str], float] = {}
    steps = [(net, 1) for device in plan.cluster.devices if (net := plan.step_net(device))]
    rounds = [(net, plan.options.dense_sync.round_steps) for net in plan.nets_of_rounds().values()]
    for net, period in (*steps, *rounds):
        for pair in _sends(net):
            count[pair] = count.get(pair, 0.0) + 1 / period
    return count


def _sends(net: Net) -> Iterator[tuple[str, str]]:
    """Sender and receiver of each message of a net; sends that share a number go in one message."""
    messages = {(op.node_name, str(op.attrs["peer"]), op.attrs["message"]) for op in net.ops if op.type == "Send"}
    return ((source, device_at(target, source)) for source, target, _ in sorted(messages, key=str))


@dataclass(frozen=True)
class Matrix:
    """Traffic from the device of a row to that of a column.

    A cell is None where nothing goes there, else an edge and how dark it is drawn, 0 to 1.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[Edge, float] | None, ...]], ...]


def matrix(edges: Sequence[Edge]) -> Matrix:
    """The edges with the most bytes of an example are the darkest."""
    sending = list(dict.fromkeys(edge.source for edge in sorted(edges, key=_order)))
    receiving = list(dict.fromkeys(edge.target for edge in sorted(edges, key=lambda e: _order(e)[::-1])))
    by_pair = {(edge.source, edge.target): edge for edge in edges}
    most = max((edge.num_bytes for edge in edges), default=0.0)
    rows = tuple(
        (source, tuple(_cell(by_pair.get((source, target)), most) for target in receiving)) for source in sending
    )
    return Matrix(tuple(_short(name, len(receiving)) for name in receiving), rows)


def _cell(edge: Edge | None, most: float) -> tuple[Edge, float] | None:
    return (edge, _DARKEST * edge.num_bytes / most if most else 0.0) if edge else None


def _order(edge: Edge) -> tuple[tuple[int, str], tuple[int, str]]:
    return _rank(edge.source), _rank(edge.target)


def _rank(device: str) -> tuple[int, str]:
    return (TRAINER, GROUP_PS, SPARSE_PS, DENSE_PS).index(role_of(device)) * 10**6 + number_of(device), device


def _short(name: str, columns: int) -> str:
    """A column's head; in a wide matrix without what all names of a role share: `gps:3` for `group_ps:3`."""
    if columns <= _MOST_LONG_HEADS:
        return name
    return name.replace("group_ps", "gps").replace("sparse_ps", "sps").replace("dense_ps", "dps")
