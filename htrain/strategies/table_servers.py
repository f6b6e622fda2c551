"""Tables on sparse PSs, whole or in row ranges: what travels between them and others may be shorter than what they hold."""

from htrain.net.names import SPARSE_PS, role_of
from htrain.net.net import Net
from htrain.net.placement import Encoding
from htrain.ops import OPS
from htrain.spec.options import Options
from htrain.spec.sparse_sync import TableServers
from htrain.strategies.strategy import Strategy
from htrain.transform.compress import encode_crossing


class Served(Strategy[TableServers]):
    """Rows and their gradients travel as the user says."""

    def encoded(self, net: Net) -> Net:
        return compress_rows(net, self.section, self.options)


def compress_rows(net: Net, servers: TableServers, options: Options) -> Net:
    """Encode the rows that sparse PSs look up for others, and the gradients of rows that others send them, as `servers` say.

    Requires: every op is tagged.
    Ensures:  a table, its state, and what is computed of rows and gradients on the device that made them, are as they were.
    """
    encodings: dict[str, Encoding] = {}
    for op in net.ops:
        if role_of(op.node_name) != SPARSE_PS:
            continue
        if op.type == "Lookup" and servers.row_dtype != "float32":
            encodings[op.outputs[0]] = servers.row_dtype
        elif OPS[op.type].steps_rows and servers.row_gradient_dtype != "float32":
            encodings[op.inputs[-1]] = servers.row_gradient_dtype
    encodings = {name: encoding for name, encoding in encodings.items() if net.blobs[name].dtype == "float32"}
    return encode_crossing(
        net, encodings, options, lambda maker, reader: (role_of(maker) == SPARSE_PS) != (role_of(reader) == SPARSE_PS)
    )


COMPILE = Served
