"""EASGD's nets: a round between a holder of weights and the dense PSs."""

import pytest
import torch
from interpreter import run_parts

from htrain.net.names import net_name
from htrain.net.net import Init, Net, Parameter
from htrain.spec.cluster import Cluster
from htrain.spec.dense_sync import Easgd
from htrain.spec.options import Options
from htrain.strategies.centres import assign_centers
from htrain.strategies.easgd import Elastic


def weight(name: str, *shape: int, trained: bool = True) -> Parameter:
    return Parameter(name, shape, "float32", "weight", Init("uniform", (-1.0, 1.0)), trained=trained)


def net_of(*parameters: Parameter) -> Net:
    return Net("net", (), (), (), {}, {p.name: p for p in parameters})


def test_centres_are_balanced_by_bytes() -> None:
    net = net_of(weight("a", 100), weight("b", 60), weight("c", 50), weight("frozen", 500, trained=False))
    assert assign_centers({"group_ps:0": net}, ("dense_ps:0", "dense_ps:1")) == {
        "a": "dense_ps:0",
        "b": "dense_ps:1",
        "c": "dense_ps:1",
    }


@pytest.mark.parametrize(("alpha", "groups"), [(0.25, 2), ("auto", 3), ("auto", 9)])
def test_a_round_of_sync_moves_group_and_centre_towards_each_other_and_keeps_their_sum(
    alpha: float, groups: int
) -> None:
    """Where the user names no rate they meet halfway."""
    net = net_of(weight("a", 4, 3), weight("b", 3), weight("frozen", 2, trained=False))
    strategy = Elastic(Easgd(alpha), Cluster(groups=groups, dense_ps=2), Options())  # type: ignore[arg-type]
    centers, nets = strategy.centers({"group_ps:0": net}), strategy.nets({"group_ps:0": net})
    assert centers == {"a": "dense_ps:0", "b": "dense_ps:1"}
    parts = {
        "group_ps:0": nets["sync_group_ps_0"],
        **{d: nets[f"center_{net_name(d)}_group_ps_0"] for d in centers.values()},
    }
    assert "frozen" not in parts["group_ps:0"].parameters

    start = {d: {name: torch.randn(p.shape) for name, p in part.parameters.items()} for d, part in parts.items()}
    after = {d: {name: value.clone() for name, value in values.items()} for d, values in start.items()}
    run_parts(parts, after, {}, seed=0)
    rate = 0.25 if alpha == 0.25 else 0.5
    for name, center in centers.items():
        group, old = start["group_ps:0"][name], start[center][name]
        torch.testing.assert_close(after["group_ps:0"][name], (1 - rate) * group + rate * old)
        torch.testing.assert_close(after[center][name], (1 - rate) * old + rate * group)


def test_one_group_has_nothing_to_synchronise_with() -> None:
    strategy = Elastic(Easgd(), Cluster(), Options())
    assert (
        strategy.centers({"group_ps:0": net_of(weight("a", 3))}),
        strategy.nets({"group_ps:0": net_of(weight("a", 3))}),
    ) == ({}, {})
