"""Which tables a look-ahead cache can stand before."""

import pytest

from htrain.errors import ModelError
from htrain.net.net import B, Blob, Init, Net, Parameter
from htrain.ops.builder import NetBuilder
from htrain.spec.cache import LookAheadCache
from htrain.spec.cluster import Cluster
from htrain.strategies.lookahead import choose_lookahead
from htrain.transform.lookups import lower_lookups


def routed() -> Net:
    """The row of each example is what a layer says."""
    builder = NetBuilder("routed")
    builder.input(Blob("x", (B, 2), "float32"))
    builder.parameter(Parameter("router", (2,), "float32", "weight", Init("constant", (0.0,))))
    builder.parameter(Parameter("experts", (9, 2), "float32", "table", Init("constant", (0.0,))))
    score = builder.add("Mul", ("x", "router"), module="router")[0]
    total = builder.add("ReduceSum", (score,), attrs={"axes": (1,), "keepdims": False}, module="router")[0]
    ids = builder.add("Cast", (total,), attrs={"to": "int64"}, module="router")[0]
    builder.add("Embedding", ("experts", ids), attrs={"padding_idx": -1}, module="experts", outputs=("y",))
    return lower_lookups(builder.build(("y",)))


def test_a_table_whose_ids_a_weight_comes_into_cannot_be_looked_up_ahead() -> None:
    told = r"^table 'experts' cannot be .* its ids are computed of 'router' \(Mul '.*' of module 'router'\), .* \(--cache-table experts=none\)$"
    with pytest.raises(ModelError, match=told):
        choose_lookahead(routed(), LookAheadCache(sets=2), 128, Cluster())
    assert choose_lookahead(routed(), LookAheadCache(tables=(("experts", "none"),)), 128, Cluster()) == ()
