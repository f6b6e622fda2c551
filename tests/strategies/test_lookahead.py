"""Which tables a look-ahead cache can stand before."""

from dataclasses import replace

import pytest

from htrain.errors import ModelError, UsageError
from htrain.net.net import B, Blob, Init, Net, Parameter
from htrain.net.placement import Shard
from htrain.ops.builder import NetBuilder
from htrain.spec.cache import Cache, HetCache, LookAheadCache
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.strategies.het import Het
from htrain.strategies.lookahead import LookAhead, choose_lookahead
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


@pytest.mark.parametrize(("half", "section"), [(LookAhead, LookAheadCache), (Het, HetCache)])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_cache_that_stands_before_no_table_is_refused(
    half: type[LookAhead | Het], section: type[Cache], *, frozen: bool
) -> None:
    """All tables are frozen, or left out: a run of a look-ahead cache ended in a traceback, a HET cache was none in silence."""
    net = routed()
    if frozen:
        tables = {name: replace(p, trained=p.kind != "table") for name, p in net.parameters.items()}
        net = replace(net, parameters=tables)
    said = section() if frozen else section(tables=(("*", "none"),))  # type: ignore[call-arg]
    strategy = half(said, Cluster(), Options(cache=said))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=rf"^--cache {section.kind} has no effect: .* there are none$"):
        strategy.lookups(net, {"experts": (Shard("experts", 0, 9, "sparse_ps:0"),)})
