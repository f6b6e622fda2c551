"""Who publishes what of a plan, against what its roles hold."""

import pytest
from checkpoints import whole_role
from drawn_plans import Drawn

from htrain.executor.launch.publish import Wanted, prepared, shares_of, wholes_of
from htrain.executor.settings import RunSettings
from htrain.net.net import numel


@pytest.mark.parametrize("seed", range(24))
def test_each_number_of_the_model_is_published_by_one_role_that_holds_it(seed: int) -> None:
    plan = Drawn.of(seed).plan()
    shares, left = shares_of(plan), {name: numel(whole.shape, 1) for name, whole in wholes_of(plan).items()}
    assert shares.keys() == set(plan.cluster.roles)
    for role, held in shares.items():
        store = whole_role(plan, role).store
        for each in held:
            left[each.whole] -= store[each.name].numel()
            assert each.kind == wholes_of(plan)[each.whole].kind
    assert set(left.values()) == {0}
    if plan.centers:
        from_centres = {each.whole for role, held in shares.items() for each in held if role.startswith("dense_ps")}
        assert from_centres or all(of.startswith("group") for of in plan.centers.values())


def test_without_an_address_nothing_is_prepared(tmp_path) -> None:  # type: ignore[no-untyped-def]
    settings = RunSettings(tmp_path, "synthetic:", tmp_path)
    found, versions = prepared(Drawn.of(0).plan(), settings, Wanted())
    assert found == settings
    assert versions.news() is None
    with pytest.raises(AssertionError, match="nobody wants a version"):
        versions.begin(0, is_final=True)
