"""Lookups through HET caches: which tables may have one."""

import pytest
import torch
from torch import nn

from htrain.compiler.pipeline import compile_net
from htrain.errors import ModelError
from htrain.frontend.torch_model import capture
from htrain.simulation.predicted import with_steady_state
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags


class Chained(nn.Module):
    """Rows of one table say which rows of another are looked up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second, self.top = nn.Embedding(50, 4), nn.Embedding(50, width), nn.Linear(4 + width, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.first(ids)
        return self.top(torch.cat([rows.sum(1), self.second(rows.argmax(1)).sum(1)], 1)).squeeze(1)


@pytest.mark.parametrize("width", [4, 3], ids=["one cache", "two caches"])
def test_a_table_that_rows_of_a_cached_one_say_the_ids_of_has_no_cache(width: int) -> None:
    net = capture(Chained(width), {"ids": torch.zeros(4, 5, dtype=torch.int64)})
    cluster = this_machine(group_ps=1, sparse_ps=1)
    told = r"^table 'second\.weight' cannot .* of rows of 'first\.weight', .*: leave it out \(--cache-table second\.weight=none\)$"
    with pytest.raises(ModelError, match=told):
        compile_net(net, cluster, with_flags(cache="het"), name="chained", solver="rules")
    for left_out in ("first.weight", "second.weight"):
        options = with_flags(cache="het", cache_table=((left_out, "none"),))
        plan = compile_net(net, cluster, options, name="chained", solver="rules")
        assert any(op.type == "HetAsk" for net in plan.nets.values() for op in net.ops)


class Several(Chained):
    """The same, beside a table that nobody's rows lead to; the first is never trained, as nothing but places comes of its rows."""

    def __init__(self) -> None:
        super().__init__(3)
        self.third, self.top = nn.Embedding(50, 2), nn.Linear(5, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.first(ids)
        return self.top(torch.cat([self.third(ids[:, 0]), self.second(rows.argmax(1)).sum(1)], 1)).squeeze(1)


def test_one_of_several_caches_does_not_wait_for_rows_of_a_table_without_one() -> None:
    """Its request goes with those of the others."""
    net = capture(Several(), {"ids": torch.zeros(4, 5, dtype=torch.int64)})
    assert not net.net.parameters["first.weight"].trained
    cluster = this_machine(group_ps=1, sparse_ps=1)
    with pytest.raises(ModelError, match=r"^table 'second\.weight' cannot be behind a cache beside other tables"):
        compile_net(net, cluster, with_flags(cache="het"), name="several", solver="rules")
    for left_out in ("second.weight", "third.weight"):
        options = with_flags(cache="het", cache_table=((left_out, "none"),))
        plan = compile_net(net, cluster, options, name="several", solver="rules")
        with_steady_state(plan)  # which raises where no step can end
