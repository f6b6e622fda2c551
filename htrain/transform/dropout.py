"""Dropouts: a seed for each of a net, so that two in one batch drop other values (docs/decisions/net.md)."""

import hashlib
from dataclasses import replace

from htrain.net.blobs import BATCH_KEY
from htrain.net.net import Net, Op
from htrain.ops import OPS
from htrain.ops.draw import DRAWS

_DRAWING = ("Dropout", *DRAWS)


def seed_dropouts(net: Net, seed: int) -> Net:
    """`net` with a seed of its own on every Dropout and every draw, made of `seed` and the name of its output."""
    return net.with_ops(_seeded(op, seed) if op.type in _DRAWING else op for op in net.ops)


def without_dropouts(net: Net) -> Net:
    """`net` with nothing dropped, nor the input that its draws are made of."""
    ops = (OPS[op.type].in_evaluation(op) if BATCH_KEY.name in op.inputs else op for op in net.ops)
    inputs = tuple(name for name in net.inputs if name != BATCH_KEY.name)
    return replace(net, inputs=inputs).with_ops(ops)


def _seeded(op: Op, seed: int) -> Op:
    digest = hashlib.blake2b(f"{seed}:{op.outputs[0]}".encode(), digest_size=7).digest()
    return replace(op, attrs={**op.attrs, "seed": int.from_bytes(digest, "big")})
