"""Who sends what to whom: messages of a step and bytes of an example on each edge between devices, background sync included."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from htrain.executor.record.measured import predicted_edges
from htrain.net.names import net_name
from htrain.net.net import Net
from htrain.plan.plan import Plan
from htrain.report.markup import shown, table
from htrain.sizes import traffic_text
from htrain.spec.centres import device_at


@dataclass(frozen=True)
class Edge:
    """`messages` of a step, `num_bytes` of an example, from `source` to `target`; a sync counts by its share of a step."""

    source: str
    target: str
    messages: float
    num_bytes: float


def edges_of(plan: Plan) -> tuple[Edge, ...]:
    """Every edge, that with the most bytes first."""
    messages = _messages(plan)
    edges = predicted_edges(plan)
    found = (Edge(*pair, messages.get(pair, 0.0), num_bytes) for pair, num_bytes in edges.items())
    return tuple(sorted(found, key=lambda edge: (-edge.num_bytes, edge.source, edge.target)))


def _messages(plan: Plan) -> Mapping[tuple[str, str], float]:
    count: dict[tuple[str, str], float] = {}
    steps = {net_name(device): 1 for device in plan.cluster.devices}
    for name, net in plan.nets.items():
        period = plan.options.dense_sync.round_steps if name.startswith(("sync_", "center_")) else steps.get(name, 0)
        for pair in _sends(net) if period else ():
            count[pair] = count.get(pair, 0.0) + 1 / period
    return count


def _sends(net: Net) -> Iterator[tuple[str, str]]:
    """Sender and receiver of each message of a net; sends that share a number go in one message."""
    messages = {(op.node_name, str(op.attrs["peer"]), op.attrs["message"]) for op in net.ops if op.type == "Send"}
    return ((source, device_at(target, source)) for source, target, _ in sorted(messages, key=str))


def matrix(edges: Sequence[Edge]) -> str:
    """From the device of the row to that of the column: bytes of an example, the darker the more."""
    sending = list(dict.fromkeys(edge.source for edge in sorted(edges, key=_order)))
    receiving = list(dict.fromkeys(edge.target for edge in sorted(edges, key=lambda e: _order(e)[::-1])))
    by_pair = {(edge.source, edge.target): edge for edge in edges}
    most = max((edge.num_bytes for edge in edges), default=0.0)
    heads = "".join(f"<th>{shown(_short(name, len(receiving)))}</th>" for name in receiving)
    rows = "".join(
        f"<tr><th>{shown(source)}</th>"
        + "".join(_cell(by_pair.get((source, target)), most) for target in receiving)
        + "</tr>\n"
        for source in sending
    )
    return f'<div class="scroll"><table class="matrix"><thead><tr><th>from \\ to</th>{heads}</tr></thead>\n<tbody>{rows}</tbody></table></div>\n'


def _order(edge: Edge) -> tuple[tuple[int, str], tuple[int, str]]:
    return _rank(edge.source), _rank(edge.target)


def _rank(device: str) -> tuple[int, str]:
    role, _, number = device.partition(":")
    return ("trainer", "group_ps", "sparse_ps", "dense_ps").index(role) * 10**6 + int(number or 0), device


def _short(name: str, columns: int) -> str:
    """A column's head; in a wide matrix without what all names of a role share: `gps:3` for `group_ps:3`."""
    return (
        name
        if columns <= 12
        else name.replace("group_ps", "gps").replace("sparse_ps", "sps").replace("dense_ps", "dps")
    )


def _cell(edge: Edge | None, most: float) -> str:
    if edge is None:
        return "<td></td>"
    share = 0.6 * edge.num_bytes / most if most else 0.0
    tip = f"{edge.source} → {edge.target}: {edge.num_bytes:,.1f} bytes an example, {messages_text(edge.messages)} messages a step"
    return (
        f'<td style="background:rgba(var(--heat),{share:.3f})" title="{shown(tip)}">{traffic_text(edge.num_bytes)}</td>'
    )


def messages_text(messages: float) -> str:
    """A number of messages: whole where it is."""
    return f"{messages:.0f}" if messages == int(messages) else f"{messages:.2f}"


def edge_table(edges: Sequence[Edge]) -> str:
    """The edges as a list."""
    heads = ("from", "to", "messages a step", "bytes an example")
    rows = ((shown(e.source), shown(e.target), messages_text(e.messages), f"{e.num_bytes:,.1f}") for e in edges)
    return table("traffic", heads, rows, numbers=heads[2:])
