"""The passes between caches and store, of all tables of a device at once: nobody who reads or writes rows asks for Python's lock between tables (cDLRM 5)."""

from dataclasses import replace

from htrain.net.net import Attr, Net
from htrain.ops import OPS
from htrain.ops.effects import in_order


def join_passes(net: Net) -> Net:
    """Have one op write and read the rows of all tables that are here.

    Requires: a device's net of passes (`htrain.ops.lookahead.apart`), in which each of its tables is written and read.
    Ensures:  it computes the same.
    """
    served = [op for op in net.ops if OPS[op.type].serves_cache]
    writes, reads_of = [op for op in served if not op.outputs], {op.inputs[0]: op for op in served if op.outputs}
    if not writes:
        return net
    reads = [reads_of[op.inputs[0]] for op in writes]
    stored = [name for op in reads for name in op.inputs[:-1]]
    asked = [op.inputs[place] for place in (-2, -1) for op in writes] + [op.inputs[-1] for op in reads]
    attrs: dict[str, Attr] = {
        "parts": tuple(len(op.inputs) - 1 for op in reads),
        "first_row": tuple(int(str(op.attrs["first_row"])) for op in reads),
    }
    outputs = tuple(op.outputs[0] for op in reads)
    joint = replace(reads[0], type="ExchangeRows", inputs=(*stored, *asked), outputs=outputs, attrs=attrs)
    others = [op for op in net.ops if not OPS[op.type].serves_cache]
    return net.with_ops(in_order(net, [*others, joint]))
